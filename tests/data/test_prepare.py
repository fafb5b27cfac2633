"""Preparing in pieces: the same tokens however it went, and nothing done twice."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from sailor.data.corpus import text_at
from sailor.data.prepare import prepare
from sailor.data.source import TextSource, training_texts
from sailor.data.tokenizer import ByteTokenizer
from sailor.errors import DataError

BYTES = ByteTokenizer()


@pytest.fixture
def folder(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for part in range(3):
        lines = [json.dumps({"text": f"part {part}, line {i}: {'la ' * i}"}) for i in range(120)]
        (text / f"{part}.jsonl").write_text("\n".join(lines))
    return text


def source(folder, **options):
    return TextSource(text_at(folder), BYTES, **{"piece_bytes": 8 << 10, **options})


def tokens(manifest, shards):
    return b"".join((Path(manifest.path) / shard.file).read_bytes() for shard in shards)


class Breaking(TextSource):
    """Fails when a certain piece is reached; counts those that are read."""

    def __init__(self, *arguments, breaks: int | None, error: Exception, **options):
        super().__init__(*arguments, **options)
        self.breaks, self.error, self.read = breaks, error, []

    def documents(self, piece, *, skipped):
        self.read.append(piece)
        if piece == self.breaks:
            raise self.error
        yield from super().documents(piece, skipped=skipped)


def test_the_number_of_pieces_does_not_change_the_tokens(folder, tmp_path):
    many = prepare(source(folder), directory=tmp_path / "many")
    one = prepare(source(folder, piece_bytes=1 << 30), directory=tmp_path / "one")
    assert len(many.train) > 3
    assert len(one.train) == 1
    assert tokens(many, many.train) == tokens(one, one.train)
    assert tokens(many, many.held_out) == tokens(one, one.held_out)
    assert many.num_documents == one.num_documents == 360


def test_what_was_whole_when_a_process_died_is_not_read_again(folder, tmp_path):
    straight = prepare(source(folder), directory=tmp_path / "straight")
    total = source(folder).num_pieces
    broken = Breaking(
        text_at(folder), BYTES, piece_bytes=8 << 10, breaks=total - 1,
        error=DataError("cannot read it", code="E502"),
    )  # fmt: skip
    with pytest.raises(DataError, match="cannot read it"):
        prepare(broken, directory=tmp_path / "c")
    whole = len(list((tmp_path / "c").glob("*.partial/piece-*.json")))
    assert whole > 0
    again = Breaking(
        text_at(folder), BYTES, piece_bytes=8 << 10, breaks=None, error=AssertionError()
    )
    manifest = prepare(again, directory=tmp_path / "c")
    assert len(again.read) == total - whole
    assert tokens(manifest, manifest.train) == tokens(straight, straight.train)
    assert not list((tmp_path / "c").glob("*.partial"))


def test_a_full_disk_is_one_clear_error_and_keeps_what_is_whole(folder, tmp_path):
    full = Breaking(
        text_at(folder), BYTES, piece_bytes=8 << 10, breaks=5,
        error=OSError(errno.ENOSPC, "No space left on device"),
    )  # fmt: skip
    with pytest.raises(DataError, match="cannot be written") as raised:
        prepare(full, directory=tmp_path / "c")
    assert raised.value.code == "E518"
    assert raised.value.exit_code == 5
    assert "No space left" in raised.value.why
    assert list((tmp_path / "c").glob("*.partial"))


def test_documents_that_were_left_out_are_counted_in_the_manifest(folder, tmp_path, caplog):
    with (folder / "1.jsonl").open("a") as file:
        file.write("\nnot json\n" + '{"text": ""}\n')
    manifest = prepare(source(folder), directory=tmp_path / "c")
    assert manifest.skipped == {"not a JSON object": 1, "empty": 1}
    assert "left out 1 document (empty), 1 document (not a JSON object)" in caplog.text


def test_progress_is_told_up_to_the_end(folder, tmp_path):
    told = []
    prepare(source(folder), directory=tmp_path / "c", progress=lambda *at: told.append(at))
    assert told[-1] == (source(folder).num_pieces,) * 2
    assert told == sorted(told)


def test_a_tokenizer_is_learned_from_what_is_trained_on(folder, tmp_path):
    manifest = prepare(source(folder), directory=tmp_path / "c")
    train = tokens(manifest, manifest.train)
    assert sorted(training_texts(text_at(folder))) == sorted(train.split(b"\0")[:-1])


def test_text_without_any_document_says_what_was_left_out(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"content": "one"}\n{"content": "two"}\n')
    with pytest.raises(DataError, match="too little") as raised:
        prepare(TextSource(text_at(tmp_path / "d.jsonl"), BYTES), directory=tmp_path / "c")
    assert "no field 'text'" in raised.value.why
    assert "data.field" in raised.value.fix


def test_shards_are_of_the_narrowest_type(folder, tmp_path):
    manifest = prepare(source(folder), directory=tmp_path / "c")
    assert np.dtype(manifest.dtype) == np.uint8
