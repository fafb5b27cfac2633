"""Tokens on disk: written once, whole or not at all, with a part that is never trained on."""

from pathlib import Path

import numpy as np
import pytest

from sailor.data.corpus import Corpus, text_at
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import ByteTokenizer, tokenizer
from sailor.data.tokens import MANIFEST, TokenStream, load_manifest, verify
from sailor.errors import ConfigError, DataError

BYTES = ByteTokenizer()


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    """A hundred files, each with a line that says which it is."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:03d}.txt").write_text(f"this is file {number}\n" * 20)
    return text_at(folder)


@pytest.fixture
def prepared(corpus, tmp_path):
    return prepare(TextSource(corpus, BYTES), directory=tmp_path / "cache")


def all_of(manifest, shards) -> bytes:
    return b"".join((Path(manifest.path) / shard.file).read_bytes() for shard in shards)


def test_every_document_is_on_exactly_one_side_and_closed_by_an_end(prepared, corpus):
    train = all_of(prepared, prepared.train).split(b"\0")
    held_out = all_of(prepared, prepared.held_out).split(b"\0")
    assert train.pop() == b""
    assert held_out.pop() == b""
    assert sorted(train + held_out) == sorted(corpus.documents())
    assert set(train).isdisjoint(held_out)
    assert prepared.train_tokens + prepared.held_out_tokens == sum(
        len(document) + 1 for document in corpus.documents()
    )


def test_two_copies_of_a_text_are_on_the_same_side(tmp_path, corpus, prepared):
    held_out = all_of(prepared, prepared.held_out).split(b"\0")[0]
    (corpus.root / "copy.txt").write_bytes(held_out)
    again = prepare(TextSource(text_at(corpus.root), BYTES), directory=tmp_path / "cache")
    assert held_out not in all_of(again, again.train).split(b"\0")
    assert all_of(again, again.held_out).split(b"\0").count(held_out) == 2


def test_preparing_again_writes_nothing(corpus, prepared, tmp_path):
    before = {p: p.stat().st_mtime_ns for p in Path(prepared.path).iterdir()}
    assert prepare(TextSource(corpus, BYTES), directory=tmp_path / "cache") == prepared
    assert {p: p.stat().st_mtime_ns for p in Path(prepared.path).iterdir()} == before


def test_what_a_dead_process_left_half_written_is_not_used(corpus, prepared, tmp_path):
    half = Path(prepared.path).with_name(Path(prepared.path).name + ".partial")
    Path(prepared.path).rename(half)
    (half / MANIFEST).unlink()
    again = prepare(TextSource(corpus, BYTES), directory=tmp_path / "cache")
    assert again == prepared
    assert not half.exists()


def test_a_shard_cut_short_is_noticed_and_written_again(corpus, prepared, tmp_path):
    shard = Path(prepared.path) / prepared.train[0].file
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError) as raised:
        load_manifest(Path(prepared.path))
    assert raised.value.code == "E503"
    assert prepare(TextSource(corpus, BYTES), directory=tmp_path / "cache") == prepared


def test_a_changed_byte_fails_verification(prepared):
    verify(prepared)
    shard = Path(prepared.path) / prepared.train[0].file
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match="not what was written"):
        verify(prepared)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"version": 99}'])
def test_a_damaged_manifest_is_one_clear_error(prepared, content):
    (Path(prepared.path) / MANIFEST).write_bytes(content)
    with pytest.raises(DataError) as raised:
        load_manifest(Path(prepared.path))
    assert raised.value.code == "E503"


def test_a_single_small_file_still_has_something_to_hold_out(tmp_path):
    file = tmp_path / "poem.txt"
    file.write_text("".join(f"line {i} of a rather short poem\n" for i in range(400)))
    manifest = prepare(TextSource(text_at(file), BYTES), directory=tmp_path / "cache")
    assert manifest.held_out_tokens > 0
    assert manifest.train_tokens > 5 * manifest.held_out_tokens


def test_a_text_of_one_document_is_refused(tmp_path):
    file = tmp_path / "word.txt"
    file.write_text("word\n")
    with pytest.raises(DataError, match="too little"):
        prepare(TextSource(text_at(file), BYTES), directory=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("bytes-*[!l]"))


def test_sequences_are_neighbouring_tokens_with_their_successors(prepared):
    stream = TokenStream(prepared, prepared.train, sequence_length=16)
    text = np.frombuffer(all_of(prepared, prepared.train), dtype=np.uint8)
    assert stream.num_sequences == (len(text) - 1) // 16
    read = stream.read(np.array([5, 0, stream.num_sequences - 1]))
    assert read.shape == (3, 17)
    assert np.array_equal(read[0], text[80:97])
    assert np.array_equal(read[1], text[:17])


def test_sequences_do_not_cross_shards(corpus, tmp_path):
    manifest = prepare(TextSource(corpus, BYTES), directory=tmp_path / "c", shard_tokens=1000)
    assert len(manifest.train) > 3
    stream = TokenStream(manifest, manifest.train, sequence_length=64)
    expected = []
    for shard in manifest.train:
        text = np.fromfile(Path(manifest.path) / shard.file, dtype=np.uint8)
        expected += [text[i * 64 : i * 64 + 65] for i in range((len(text) - 1) // 64)]
    assert stream.num_sequences == len(expected)
    assert np.array_equal(stream.read(np.arange(len(expected))), np.stack(expected))


def test_a_stream_shorter_than_one_sequence_is_refused(prepared):
    with pytest.raises(DataError, match="not one sequence"):
        TokenStream(prepared, prepared.held_out, sequence_length=100_000)


def test_bytes_come_back_as_they_were():
    text = bytes(range(1, 256))
    assert BYTES.decode(BYTES.encode([text])[0]) == text
    assert tokenizer("bytes").vocab_size == 256


def test_an_unknown_tokenizer_names_those_there_are():
    with pytest.raises(ConfigError, match="klingon") as raised:
        tokenizer("klingon")
    assert "bytes" in raised.value.fix
