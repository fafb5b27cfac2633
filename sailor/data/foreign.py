"""Tokens that others made, as a source: Megatron, nanoGPT, llm.c, MosaicML.

Their numbers mean something with the tokenizer that made them only, so that one is named; a number
it does not have ends the preparation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from sailor.data.documents import Skipped
from sailor.data.mds import INDEX, MdsFolder, MdsShard, numbers
from sailor.data.megatron import MegatronFile, damaged, pair_of
from sailor.data.source import Document
from sailor.data.tokenizer import Tokenizer
from sailor.errors import DataError

Tokens = npt.NDArray[np.integer]

_LLM_C_MAGIC = 20240520  # of train_gpt2.c's tokens of 16 bits
_LLM_C_HEADER = 256  # numbers of 32 bits
_BLOCK = 1 << 22  # tokens looked through at a time


class TokenSource:
    """Files of tokens at a path, each a piece."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        """Raises DataError: E501 nothing there, E519 no whole files of tokens."""
        self.name = str(path)
        self.tokenizer = tokenizer.name
        self.vocab_size = tokenizer.vocab_size
        self.end_of_text = tokenizer.end_of_text
        self._files, self._readers = _open(path, end_of_text=self.end_of_text)
        self.num_pieces = len(self._readers)

    def fingerprint(self) -> str:
        """Of the files' names, sizes and times."""
        digest = xxhash.xxh3_128(b"tokens\0")
        for file in self._files:
            stat = file.stat()
            digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def documents(self, piece: int, *, skipped: Skipped) -> Iterator[Document]:
        """Documents without their ends. Raises DataError E505 for a number out of range."""
        for tokens in self._readers[piece]():
            if len(tokens) and tokens[-1] == self.end_of_text:
                tokens = tokens[:-1]
            if not len(tokens):
                skipped["empty"] += 1
                continue
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.vocab_size:
                raise DataError(
                    f"a token is {low if low < 0 else high}, and the tokenizer has "
                    f"{self.vocab_size:,}",
                    code="E505", where=f"data.path={self.name}",
                    why=f"these tokens were not made by the tokenizer {self.tokenizer}",
                    fix="tokenizer=PATH of the one that made them",
                )  # fmt: skip
            yield xxhash.xxh3_64_intdigest(tokens.astype("<u4").tobytes()), tokens


Reader = Callable[[], Iterator[Tokens]]


def _open(path: Path, *, end_of_text: int) -> tuple[list[Path], list[Reader]]:
    """The files at a path, and how each is read."""
    if (path / INDEX).is_file():
        folder = MdsFolder(path)
        column = _token_column(folder)
        return (
            [shard.file for shard in folder.shards],
            [partial(_mds_rows, shard, column) for shard in folder.shards],
        )
    if path.is_dir():
        parts = sorted(path.glob("*.bin"))
    else:
        parts = [path if path.suffix == ".bin" else pair_of(path)[0]]
    parts = [part for part in parts if part.is_file()]
    if not parts:
        raise DataError(
            f"no tokens at {path}", code="E501", where="data.path",
            why="there is neither a .bin file nor an index.json of MDS",
            fix="data.path=FOLDER, or FILE.bin, or the common name of a .bin and its .idx",
        )  # fmt: skip
    files: list[Path] = []
    readers: list[Reader] = []
    for part in parts:
        index = pair_of(part)[1]
        if index.is_file():
            files += [part, index]
            readers.append(MegatronFile(part).documents)
        else:
            files.append(part)
            readers.append(partial(_cut, _flat(part), end_of_text))
    return files, readers


def _mds_rows(shard: MdsShard, column: str) -> Iterator[Tokens]:
    for row in shard.rows(column):
        try:
            yield numbers(row, shard.encodings[column])
        except ValueError as error:
            raise damaged(shard.file, str(error)) from error


def _token_column(folder: MdsFolder) -> str:
    for name in ("tokens", "input_ids"):
        encoding = folder.columns.get(name, "")
        if encoding == "bytes" or encoding.startswith("ndarray"):
            return name
    raise damaged(folder.folder / INDEX, f"no column of tokens among {sorted(folder.columns)}")


def _flat(path: Path) -> Tokens:
    """A stream of 16-bit numbers: nanoGPT's as it is, llm.c's behind its header."""
    size = path.stat().st_size
    header = np.fromfile(path, "<i4", min(_LLM_C_HEADER, size // 4))
    if header.size == _LLM_C_HEADER and header[0] == _LLM_C_MAGIC:
        offset, count = 4 * _LLM_C_HEADER, int(header[2])
        if header[1] != 1 or size != offset + 2 * count:
            raise damaged(path, f"it has {size} bytes, its header speaks of {offset + 2 * count}")
    elif size % 2 or not size:
        raise damaged(path, f"{size} bytes are no 16-bit numbers")
    else:
        offset, count = 0, size // 2
    return np.asarray(np.memmap(path, "<u2", mode="r", offset=offset, shape=(count,)))


def _cut(stream: Tokens, end: int) -> Iterator[Tokens]:
    """A stream's documents: what lies between two ends of text."""
    start = 0
    for first in range(0, len(stream), _BLOCK):
        for at in np.flatnonzero(stream[first : first + _BLOCK] == end):
            stop = first + int(at)
            yield stream[start:stop]
            start = stop + 1
    if start < len(stream):
        yield stream[start:]
