"""A folder of several sources: shared files, each source's own held-out documents, its weights."""

import numpy as np
import pytest

from sailor.data.blend import PARTS
from sailor.data.corpus import text_at
from sailor.data.mixture import Ingredient, mix
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import ByteTokenizer
from sailor.data.tokens import TokenStream, check_streams, load_manifest, verify
from sailor.errors import DataError

LENGTH = 16


@pytest.fixture
def prepared(tmp_path):
    """Two sources, of which each line says which it is."""
    found = {}
    for name, lines in (("web", 900), ("code", 300)):
        text = tmp_path / f"{name}.txt"
        text.write_text("".join(f"{name} {i:04d} {name * (i % 7)}\n" for i in range(lines)))
        source = TextSource(text_at(text), ByteTokenizer())
        found[name] = prepare(source, directory=tmp_path / "cache")
    return found


def mixed(prepared, tmp_path, **weights):
    return mix(
        {n: Ingredient(tokens=prepared[n], weight=w) for n, w in weights.items()},
        directory=tmp_path / "cache",
    )  # fmt: skip


def test_a_mixture_has_every_source_with_its_share_and_its_held_out_documents(prepared, tmp_path):
    manifest = mixed(prepared, tmp_path, web=3, code=1)
    assert [(part.name, part.share / PARTS) for part in manifest.parts] == [
        ("code", 0.25), ("web", 0.75),
    ]  # fmt: skip
    assert load_manifest(tmp_path / "cache" / manifest.path.rpartition("/")[2]) == manifest
    verify(manifest)
    for side in ("train_tokens", "held_out_tokens"):
        parts = [getattr(prepared[name], side) for name in ("code", "web")]
        assert getattr(manifest, side) == sum(parts)
        assert min(parts) > 0


def test_what_is_read_of_a_source_is_that_sources_text(prepared, tmp_path):
    manifest = mixed(prepared, tmp_path, web=3, code=1)
    for shards in (manifest.train, manifest.held_out):
        stream = TokenStream(manifest, shards, sequence_length=LENGTH)
        assert stream.sources == ("code", "web")
        assert sum(stream.blend.counts) == stream.num_sequences
        tokens = stream.read(np.arange(stream.num_sequences)).astype(np.uint8)
        first = stream.blend.starts[1]
        assert b"web" not in tokens[:first].tobytes()
        assert b"code" not in tokens[first:].tobytes()


def test_other_weights_cost_no_second_copy(prepared, tmp_path):
    one, two = (mixed(prepared, tmp_path, web=w, code=1) for w in (3, 2))
    assert one.path != two.path
    for shard in one.train:
        files = [(tmp_path / "cache" / m.path.rpartition("/")[2] / shard.file) for m in (one, two)]
        assert files[0].samefile(files[1])
    again = mixed(prepared, tmp_path, code=1, web=3)
    assert again == one, "in whatever order they are written"


def test_a_damaged_mixture_is_made_again(prepared, tmp_path):
    one = mixed(prepared, tmp_path, web=1, code=1)
    missing = tmp_path / "cache" / one.path.rpartition("/")[2] / one.train[0].file
    missing.unlink()
    again = mixed(prepared, tmp_path, web=1, code=1)
    assert again == one
    assert missing.exists()
    verify(again)  # every byte of it, or it raises


def test_a_source_that_is_too_short_is_named(prepared, tmp_path):
    (tmp_path / "short.txt").write_text("one line\n" * 150)
    short = prepare(
        TextSource(text_at(tmp_path / "short.txt"), ByteTokenizer()), directory=tmp_path / "cache"
    )
    manifest = mixed({**prepared, "short": short}, tmp_path, web=1, short=1)
    check_streams(manifest, sequence_length=LENGTH)
    with pytest.raises(DataError, match="in short") as raised:
        check_streams(manifest, sequence_length=600)
    assert raised.value.code == "E504"
    assert "data.mixture.short" in raised.value.where
