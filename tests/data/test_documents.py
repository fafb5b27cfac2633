"""Files of several kinds as documents; what is none is counted and left out."""

import gzip
import json
from collections import Counter
from pathlib import PurePosixPath

import pytest

from sailor.data.corpus import Corpus, text_at
from sailor.data.documents import format_of, is_divisible
from sailor.errors import DataError

TEXTS = [f"document {i} says {'so ' * (i % 7)}\nand ends.\n" for i in range(200)]
LINES = "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(TEXTS))


def read(path, **options):
    skipped: Counter[str] = Counter()
    documents = [text.decode() for text in text_at(path, **options).documents(skipped=skipped)]
    return documents, dict(skipped)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"), ("a.py", "text"), ("a", "text"), ("a.json", "text"),
        ("a.jsonl", "json lines"), ("a.JSONL.gz", "json lines"), ("a.json.gz", "json lines"),
        ("a.jsonl.zst", "json lines"), ("a.txt.gz", "text"), ("a.parquet", "parquet"),
    ],
)  # fmt: skip
def test_a_name_tells_what_a_file_holds(name, kind):
    assert format_of(PurePosixPath(name)) == kind


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.json.gz", "d.jsonl.zst"])
def test_json_lines_are_documents_packed_or_not(tmp_path, name):
    data = LINES.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zst"):
        data = pytest.importorskip("zstandard").compress(data)
    (tmp_path / name).write_bytes(data)
    assert read(tmp_path) == (TEXTS, {})


def test_parquet_rows_are_documents(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": [*TEXTS, None, ""], "id": list(range(len(TEXTS) + 2))})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "d.parquet")
    assert read(tmp_path) == (TEXTS, {"no field 'text'": 1, "empty": 1})


def test_the_field_of_the_text_can_be_named(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"content": "here"}\n')
    assert read(tmp_path, field="content") == (["here"], {})
    assert read(tmp_path) == ([], {"no field 'text'": 1})


def test_bad_lines_are_counted_and_the_others_read(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(
        b'{"text": "one"}\n'
        b"not json\n"
        b'["a list"]\n'
        b'{"text": ""}\n'
        b'{"text": 5}\n'
        b"\n"
        b'{"text": "broken \xff byte"}\n'
        b'{"text": "half \\ud800 pair"}\n'
        b'{"text": "two"}'
    )
    documents, skipped = read(tmp_path)
    assert documents == ["one", "two"]
    assert sum(skipped.values()) == 6
    assert skipped["empty"] == 1


def test_text_that_is_not_utf8_is_left_out_by_name(tmp_path):
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (tmp_path / "plain.txt").write_text("café\n")
    assert read(tmp_path) == (["café\n"], {"not UTF-8": 1})


def test_long_lines_are_not_cut_within_a_character(tmp_path):
    (tmp_path / "one_line.txt").write_text("é" * 200_001)
    documents, skipped = read(tmp_path)
    assert "".join(documents) == "é" * 200_001
    assert len(documents) > 1
    assert skipped == {}


@pytest.mark.parametrize("name", ["d.jsonl", "d.txt"])
@pytest.mark.parametrize("most", [64, 1000, 4096])
def test_pieces_of_a_large_file_have_each_line_once(tmp_path, name, most):
    (tmp_path / name).write_text(LINES)
    corpus = text_at(tmp_path)
    pieces = corpus.pieces(most_bytes=most)
    assert len(pieces) == -(-len(LINES) // most)
    parts = [text for piece in pieces for text in corpus.documents(piece)]
    whole = list(corpus.documents())
    assert parts == whole if name == "d.jsonl" else b"".join(parts) == b"".join(whole)


def test_small_files_share_a_piece_and_packed_ones_are_not_divided(tmp_path):
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text("x" * 100)
    (tmp_path / "large.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    assert not is_divisible(PurePosixPath("large.jsonl.gz"))
    pieces = text_at(tmp_path).pieces(most_bytes=300)
    assert [len(piece) for piece in pieces] == [3, 3, 3, 1, 1]


@pytest.mark.parametrize("name", ["d.jsonl.gz", "d.jsonl.zst"])
def test_a_packed_file_that_is_cut_off_is_named(tmp_path, name):
    if name.endswith(".zst"):
        data = pytest.importorskip("zstandard").compress(LINES.encode())
    else:
        data = gzip.compress(LINES.encode())
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=name) as raised:
        list(text_at(tmp_path).documents())
    assert raised.value.code == "E502"


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"d\.parquet"):
        list(text_at(tmp_path).documents())


def test_text_in_a_store_is_read_as_in_a_folder(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/texts/b/two.txt", b"second\n")
    store.pipe("/bucket/texts/a.jsonl", b'{"text": "first"}\n')
    store.pipe("/bucket/texts/.hidden", b"hidden")
    try:
        corpus = text_at("memory://bucket/texts")
        assert list(corpus.documents()) == [b"first", b"second\n"]
        first = corpus.fingerprint()
        store.pipe("/bucket/texts/b/two.txt", b"changed text\n")
        assert text_at("memory://bucket/texts").fingerprint() != first
        assert list(text_at("memory://bucket/texts/b/two.txt").documents()) == [b"changed text\n"]
    finally:
        store.rm("/bucket", recursive=True)


def test_an_empty_place_in_a_store_is_one_clear_error():
    pytest.importorskip("fsspec")
    with pytest.raises(DataError) as raised:
        text_at("memory://nothing/here")
    assert raised.value.code == "E501"


def test_a_store_whose_package_is_missing_says_which(tmp_path):
    with pytest.raises(DataError, match="cannot be") as raised:
        text_at("nosuchprotocol://bucket/x")
    assert raised.value.code == "E502"


def test_a_corpus_says_which_file_has_vanished(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    corpus = Corpus(
        name="x", root=tmp_path, files=(PurePosixPath("a.txt"), PurePosixPath("gone.txt"))
    )
    with pytest.raises(DataError, match=r"gone\.txt"):
        corpus.pieces()
