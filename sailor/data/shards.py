"""Token numbers as files: written document by document in bounded memory, with their digests."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

Tokens = npt.NDArray[np.integer]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One file of raw token numbers."""

    file: str
    num_tokens: int
    xxh3: str


class ShardWriter:
    """Writes ``name-000.bin``, ``name-001.bin``, ... of about so many tokens, documents whole."""

    def __init__(self, folder: Path, name: str, *, dtype: np.dtype, shard_tokens: int) -> None:
        self.shards: list[Shard] = []
        self._folder = folder
        self._name = name
        self._dtype = dtype
        self._most = shard_tokens
        self._file: IO[bytes] | None = None
        self._num_tokens = 0
        self._digest = xxhash.xxh3_128()

    def add(self, tokens: Tokens, *, end: int) -> None:
        """One document, which ``end`` closes. Raises OSError when the disk is full."""
        if self._file is None:
            self._file = (self._folder / self._next_file).open("wb")
        data = np.append(tokens, end).astype(self._dtype).tobytes()
        self._file.write(data)
        self._digest.update(data)
        self._num_tokens += len(tokens) + 1
        if self._num_tokens >= self._most:
            self.close()

    def close(self) -> None:
        """Complete the file that is being written, if there is one."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        self.shards.append(
            Shard(file=self._next_file, num_tokens=self._num_tokens, xxh3=self._digest.hexdigest())
        )
        self._num_tokens = 0
        self._digest = xxhash.xxh3_128()

    def abandon(self) -> None:
        """Let go of the file without counting it. Whatever a full disk says to that is no news."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    @property
    def _next_file(self) -> str:
        return f"{self._name}-{len(self.shards):03d}.bin"


def token_type(vocab_size: int) -> np.dtype:
    """The narrowest unsigned type that holds every token."""
    for dtype in (np.uint8, np.uint16):
        if vocab_size <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    return np.dtype(np.uint32)
