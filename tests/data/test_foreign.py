"""Tokens that others made: read as they wrote them, refused when they are not whole."""

import json
import struct
from collections import Counter

import numpy as np
import pytest

from sailor.data.foreign import TokenSource
from sailor.data.mds import numbers
from sailor.data.megatron import MegatronFile, export_megatron, write_megatron
from sailor.data.prepare import prepare
from sailor.data.tokenizer import ByteTokenizer
from sailor.errors import DataError


class Thousand(ByteTokenizer):
    """A tokenizer of a thousand numbers, 999 ending a document."""

    name = "thousand"
    vocab_size = 1000
    end_of_text = 999


TOKENIZER = Thousand()
DOCUMENTS = [np.arange(i, i + 5 + i % 40, dtype=np.int64) % 900 for i in range(120)]


def documents_of(path):
    skipped: Counter[str] = Counter()
    source = TokenSource(path, TOKENIZER)
    return [
        tokens.tolist()
        for piece in range(source.num_pieces)
        for _, tokens in source.documents(piece, skipped=skipped)
    ]


EXPECTED = [document.tolist() for document in DOCUMENTS]


@pytest.mark.parametrize("vocab_size", [1000, 70_000])
def test_megatron_files_of_ours_read_back_equal(tmp_path, vocab_size):
    count = write_megatron(tmp_path / "d", DOCUMENTS, vocab_size=vocab_size)
    assert count == sum(map(len, DOCUMENTS))
    for name in ("d", "d.bin", "d.idx"):
        read = list(MegatronFile(tmp_path / name).documents())
        assert [tokens.tolist() for tokens in read] == EXPECTED


def test_megatrons_own_builder_and_reader_agree_with_ours(tmp_path):
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.int32)
    for tokens in DOCUMENTS:
        half = len(tokens) // 2
        builder.add_item(torch.from_numpy(tokens[:half]))
        builder.add_item(torch.from_numpy(tokens[half:]))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    assert documents_of(tmp_path / "theirs") == EXPECTED
    write_megatron(tmp_path / "ours", DOCUMENTS, vocab_size=1000)
    theirs = indexed.IndexedDataset(str(tmp_path / "ours"))
    assert [theirs[i].tolist() for i in range(len(theirs))] == EXPECTED
    assert theirs.document_indices.tolist() == list(range(len(DOCUMENTS) + 1))


def test_nanogpt_and_llm_c_streams_are_cut_at_ends_of_text(tmp_path):
    stream = np.concatenate([np.append(d, 999) for d in DOCUMENTS]).astype("<u2")
    stream.tofile(tmp_path / "train.bin")
    assert documents_of(tmp_path / "train.bin") == EXPECTED
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(stream)
    (tmp_path / "llmc").mkdir()
    (tmp_path / "llmc" / "a.bin").write_bytes(header.tobytes() + stream.tobytes())
    assert documents_of(tmp_path / "llmc") == EXPECTED


def mds(folder, encoding, encode):
    """A folder as MosaicML's writer leaves it, with a column of text beside the tokens."""
    folder.mkdir()
    config = json.dumps({"column_names": ["id", "text", "tokens"]}).encode()
    rows = []
    for i, tokens in enumerate(DOCUMENTS):
        columns = [struct.pack("<q", i), b"some words", encode(tokens)]
        sizes = struct.pack("<2I", len(columns[1]), len(columns[2]))
        rows.append(sizes + b"".join(columns))
    offsets = np.cumsum([4 + 4 * (len(rows) + 1) + len(config), *map(len, rows)])
    data = struct.pack("<I", len(rows)) + offsets.astype("<u4").tobytes() + config + b"".join(rows)
    (folder / "shard.00000.mds").write_bytes(data)
    index = {
        "version": 2,
        "shards": [{
            "format": "mds", "compression": None, "samples": len(rows), "zip_data": None,
            "column_names": ["id", "text", "tokens"],
            "column_encodings": ["int", "str", encoding], "column_sizes": [8, None, None],
            "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
        }],
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index))


def shaped(tokens):
    """One axis, its length in two bytes."""
    return bytes([1 << 2 | 1]) + struct.pack("<H", len(tokens)) + tokens.astype("<u2").tobytes()


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("bytes", lambda tokens: tokens.astype("<i8").tobytes()),
        ("ndarray:uint16", shaped),
        ("ndarray", lambda tokens: bytes([16]) + shaped(tokens)),
    ],
)
def test_mds_columns_of_tokens_are_documents(tmp_path, encoding, encode):
    mds(tmp_path / "m", encoding, encode)
    assert documents_of(tmp_path / "m") == EXPECTED


def test_mosaicmls_own_writer_is_read(tmp_path):
    streaming = pytest.importorskip("streaming")
    with streaming.MDSWriter(
        out=str(tmp_path / "m"), columns={"tokens": "ndarray:int32", "id": "str"}, size_limit=4096
    ) as writer:
        for i, tokens in enumerate(DOCUMENTS):
            writer.write({"tokens": tokens.astype(np.int32), "id": str(i)})
    assert documents_of(tmp_path / "m") == EXPECTED


def test_numbers_with_a_fixed_shape_have_no_header():
    assert numbers(struct.pack("<3I", 1, 2, 3), "ndarray:uint32:3").tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="no tokens"):
        numbers(b"\0" * 8, "ndarray:float32:2")


def test_tokens_become_shards_with_ends_between_documents(tmp_path):
    write_megatron(tmp_path / "d", DOCUMENTS, vocab_size=1000)
    manifest = prepare(TokenSource(tmp_path / "d", TOKENIZER), directory=tmp_path / "cache")
    assert manifest.tokenizer == "thousand"
    assert manifest.train_tokens + manifest.held_out_tokens == sum(len(d) + 1 for d in DOCUMENTS)
    assert manifest.held_out_tokens > 0
    assert manifest.dtype == "uint16"


def test_prepared_tokens_leave_as_megatron_files_and_come_back(tmp_path):
    write_megatron(tmp_path / "d", DOCUMENTS, vocab_size=1000)
    manifest = prepare(TokenSource(tmp_path / "d", TOKENIZER), directory=tmp_path / "cache")
    names = export_megatron(manifest, end_of_text=999, base=tmp_path / "out" / "again")
    back = [document for name in names for document in documents_of(name)]
    assert sorted(back) == sorted(EXPECTED)
    assert all(tokens[-1] == 999 for tokens in MegatronFile(names[0]).documents())


def test_a_number_the_tokenizer_does_not_have_is_refused(tmp_path):
    write_megatron(tmp_path / "d", [*DOCUMENTS, np.array([1, 1000])], vocab_size=2000)
    with pytest.raises(DataError, match="a token is 1000") as raised:
        prepare(TokenSource(tmp_path / "d", TOKENIZER), directory=tmp_path / "cache")
    assert raised.value.code == "E505"
    assert "tokenizer=PATH" in raised.value.fix


def change(path, offset, data):
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda d: (d / "d.idx").write_bytes(b"something else"), "begin"),
        (lambda d: (d / "d.idx").write_bytes((d / "d.idx").read_bytes()[:12]), "header"),
        (lambda d: (d / "d.idx").write_bytes((d / "d.idx").read_bytes()[:-3]), "speaks of"),
        (lambda d: (d / "d.bin").write_bytes((d / "d.bin").read_bytes()[:-2]), "speaks of"),
        (lambda d: change(d / "d.idx", 9, struct.pack("<Q", 7)), "version 7"),
        (lambda d: change(d / "d.idx", 17, b"\x07"), "type 7"),
        (lambda d: change(d / "d.idx", 34, struct.pack("<i", -5)), "bytes"),
        (lambda d: change(d / "d.idx", 34 + 12 * 120, struct.pack("<q", 9)), "documents"),
    ],
)
def test_megatron_files_that_are_not_whole_are_refused_by_name(tmp_path, damage, why):
    write_megatron(tmp_path / "d", DOCUMENTS, vocab_size=1000)
    damage(tmp_path)
    with pytest.raises(DataError) as raised:
        MegatronFile(tmp_path / "d")
    assert raised.value.code == "E519"
    assert why in raised.value.why


def test_an_mds_shard_that_is_cut_off_is_refused(tmp_path):
    mds(tmp_path / "m", "bytes", lambda tokens: tokens.astype("<i8").tobytes())
    shard = tmp_path / "m" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(DataError) as raised:
        documents_of(tmp_path / "m")
    assert raised.value.code == "E519"
    assert "speaks of" in raised.value.why


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"shards": [{"format": "json"}]}'])
def test_an_mds_index_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(DataError) as raised:
        TokenSource(tmp_path, TOKENIZER)
    assert raised.value.code == "E519"


def test_a_folder_without_tokens_says_what_is_read(tmp_path):
    with pytest.raises(DataError) as raised:
        TokenSource(tmp_path, TOKENIZER)
    assert raised.value.code == "E501"
    assert ".bin" in raised.value.why


def test_an_odd_number_of_bytes_is_no_stream(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    with pytest.raises(DataError) as raised:
        TokenSource(tmp_path / "a.bin", TOKENIZER)
    assert "16-bit" in raised.value.why
