"""From the bytes of a file to documents of text: plain text, JSON lines, parquet; gzip, zstandard.

What is no document is left out and counted, by reason: one bad line in a million must neither end
the work nor go unseen. Nothing here holds more than one part of a file.
"""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, cast

import msgspec

from sailor.errors import ConfigError

MAX_DOCUMENT_BYTES = 64 << 10
"""Plain text is cut into documents no longer than this; a document of JSON lines stays whole."""

_PACKED = {".gz", ".zst"}
_JSON_LINES = {".jsonl", ".ndjson", ".json"}
_DIVISIBLE = {"text", "json lines"}
_READ_BYTES = 1 << 20

Skipped = Counter[str]
"""Reason -> documents (or whole files) that were left out."""


def format_of(file: PurePosixPath) -> str:
    """What a file holds, by its name: "text", "json lines" or "parquet"."""
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in _PACKED]
    last = suffixes[-1] if suffixes else ""
    if last in _JSON_LINES and (last != ".json" or is_packed(file)):
        return "json lines"  # a lone .json is one document, code or settings more often than data
    return "parquet" if last == ".parquet" else "text"


def is_packed(file: PurePosixPath) -> bool:
    """Whether a file is compressed as a whole."""
    return file.suffix.lower() in _PACKED


def is_divisible(file: PurePosixPath) -> bool:
    """Whether a part of a file can be read without what comes before it."""
    return format_of(file) in _DIVISIBLE and not is_packed(file)


def read_documents(
    stream: IO[bytes], file: PurePosixPath, *, start: int, stop: int | None, part_bytes: int,
    field: str, skipped: Skipped,
) -> Iterator[bytes]:  # fmt: skip
    """The documents of a file, or of those of its lines that begin in [start, stop).

    Plain text comes in parts of at most ``part_bytes``, cut after a line where there is one.
    ``field`` has the text of a JSON line or of a parquet row. Raises OSError and what the
    decompressor raises (EOFError, zlib.error, ...), and ConfigError E605 for a missing library.
    """
    kind = format_of(file)
    if kind == "parquet":
        yield from _parquet(stream, field, skipped)
        return
    with _unpacked(stream, file) as plain:
        whole = start == 0 and stop is None
        lines = None if whole else _lines_of(plain, start, stop)
        if kind == "json lines":
            yield from _json_lines(lines or iter(plain), field, skipped)
        else:
            yield from _texts(_parts(lines or _blocks(plain), part_bytes), skipped)


@contextmanager
def _unpacked(stream: IO[bytes], file: PurePosixPath) -> Iterator[IO[bytes]]:
    match file.suffix.lower():
        case ".gz":
            with gzip.GzipFile(fileobj=stream) as plain:
                yield cast(IO[bytes], plain)
        case ".zst":
            yield io.BufferedReader(_Zstandard(stream), _READ_BYTES)
        case _:
            yield stream


class _Zstandard(io.RawIOBase):
    """What frames of zstandard hold. The library's own reader takes a file that is cut off for one
    that ends; this one raises EOFError."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._new = library("zstandard").ZstdDecompressor().decompressobj
        self._stream = stream
        self._frame = self._new()
        self._fed = False  # whether the frame has begun
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As RawIOBase has it."""
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._fed = self._new(), False
            packed = packed or self._stream.read(_READ_BYTES)
            if not packed:
                if self._fed:
                    raise EOFError("its last frame is cut off")
                return 0
            self._fed = True
            self._ready = self._frame.decompress(packed)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def _lines_of(stream: IO[bytes], start: int, stop: int | None) -> Iterator[bytes]:
    """The lines that begin in [start, stop)."""
    at = start
    if start > 0:  # the line that begins before, and ends here, belongs to the range before
        stream.seek(start - 1)
        at = start - 1 + len(stream.readline())
    while stop is None or at < stop:
        line = stream.readline()
        if not line:
            return
        at += len(line)
        yield line


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_READ_BYTES):
        yield block


def _parts(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The text in parts of at most ``size`` bytes, cut after a line where there is one, else
    between two characters."""
    held = bytearray()
    for block in blocks:
        held += block
        start = 0
        while len(held) - start > size:
            stop = held.rfind(b"\n", start, start + size) + 1
            if stop <= start:
                stop = _between_characters(held, start, start + size)
            yield bytes(held[start:stop])
            start = stop
        del held[:start]
    if held:
        yield bytes(held)


def _between_characters(text: bytearray, start: int, stop: int) -> int:
    """The last place up to ``stop`` where no UTF-8 character is cut; without one, ``stop``."""
    for at in range(stop, max(start, stop - 4), -1):
        if text[at] & 0xC0 != 0x80:
            return at
    return stop


def _texts(parts: Iterator[bytes], skipped: Skipped) -> Iterator[bytes]:
    for part in parts:
        if b"\0" in part:
            skipped["not text"] += 1
        elif not _is_utf8(part):
            skipped["not UTF-8"] += 1
        else:
            yield part


def _json_lines(lines: Iterator[bytes], field: str, skipped: Skipped) -> Iterator[bytes]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for line in lines:
        if not line.strip():
            continue
        try:
            text = decode(line).get(field)
        except (msgspec.DecodeError, UnicodeDecodeError):
            skipped["not a JSON object"] += 1
            continue
        if (document := document_of(text, field, skipped)) is not None:
            yield document


def _parquet(stream: IO[bytes], field: str, skipped: Skipped) -> Iterator[bytes]:
    parquet = library("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(stream)
    except ValueError as error:  # pyarrow's errors are ValueErrors
        raise OSError(str(error)) from error
    if field not in file.schema_arrow.names:
        skipped[f"no field {field!r}"] += file.metadata.num_rows
        return
    for batch in file.iter_batches(batch_size=256, columns=[field]):
        for text in batch.column(0).to_pylist():
            if (document := document_of(text, field, skipped)) is not None:
                yield document


def document_of(text: Any, field: str, skipped: Skipped) -> bytes | None:
    """The document a value is, or None and a count."""
    if not isinstance(text, str):
        skipped[f"no field {field!r}"] += 1
    elif not text:
        skipped["empty"] += 1
    elif "\0" in text:
        skipped["not text"] += 1
    else:
        try:
            return text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            skipped["not UTF-8"] += 1
    return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def library(name: str, *, extra: str = "data") -> Any:
    """An import that may be missing; ``extra`` brings it. Raises ConfigError E605."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"the library {error.name} is not installed", code="E605", where="data.path",
            why="files of that kind are read with it", fix=f"pip install -e '.[{extra}]'",
        ) from error  # fmt: skip
