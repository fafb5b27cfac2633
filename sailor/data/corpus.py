"""Which text a run learns from: files under one folder, of this computer or of a store. No torch.

The default is the Python standard library's own source: real text that every machine has. A
document is a file, a part of a large one, or a row of a file of rows (documents.py).
"""

from __future__ import annotations

import difflib
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

import xxhash

from sailor.data.documents import (
    MAX_DOCUMENT_BYTES,
    Skipped,
    format_of,
    is_divisible,
    read_documents,
)
from sailor.errors import ConfigError, DataError

MIN_DOCUMENT_BYTES = 1 << 10
PIECE_BYTES = 64 << 20
_PARTS = 200  # a small text is cut at least this fine, where its lines allow

# Tests repeat themselves, and site-packages is whatever else is installed.
_NOT_LIBRARY = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A file, or the lines of it that begin in bytes [start, stop)."""

    file: PurePosixPath
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Some files under one folder, in a fixed order. ``name`` is for people and for logs.

    ``root`` is a path or, as fsspec writes it, ``protocol://...``; ``files`` are relative to it.
    """

    name: str
    root: Path | str
    files: tuple[PurePosixPath, ...]
    field: str = "text"
    """Where the text of a JSON line or a parquet row is."""

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, resized or touched. Reads no contents.

        Raises DataError E502.
        """
        digest = xxhash.xxh3_128(f"{self.field}\0".encode())
        for file in self.files:
            size, version = self._stat(file)
            digest.update(f"{file.as_posix()}\0{size}\0{version}\0".encode())
        return digest.hexdigest()

    def pieces(self, *, most_bytes: int = PIECE_BYTES) -> tuple[tuple[Range, ...], ...]:
        """The text in portions of about ``most_bytes`` on disk, each to be read by itself."""
        pieces: list[tuple[Range, ...]] = []
        held: list[Range] = []
        held_bytes = 0
        for file in self.files:
            size, _ = self._stat(file)
            if size > most_bytes and is_divisible(file):
                starts = range(0, size, most_bytes)
                pieces += [(Range(file=file, start=s, stop=s + most_bytes),) for s in starts]
                continue
            if held and held_bytes + size > most_bytes:
                pieces.append(tuple(held))
                held, held_bytes = [], 0
            held.append(Range(file=file))
            held_bytes += size
        return (*pieces, tuple(held)) if held else tuple(pieces)

    def documents(
        self, piece: tuple[Range, ...] | None = None, *, skipped: Skipped | None = None
    ) -> Iterator[bytes]:
        """The text of a piece, or all of it, document by document. What is none is left out and
        counted in ``skipped``.

        Raises DataError E502 for a file that cannot be read, ConfigError E605 where a library for
        its kind is missing.
        """
        count: Skipped = Counter() if skipped is None else skipped
        for part in tuple(Range(file=file) for file in self.files) if piece is None else piece:
            with self._named(part.file), self._opened(part.file) as stream:
                yield from read_documents(
                    stream, part.file, start=part.start, stop=part.stop,
                    part_bytes=self._part_bytes, field=self.field, skipped=count,
                )  # fmt: skip

    @cached_property
    def _part_bytes(self) -> int:
        total = sum(self._stat(file)[0] for file in self.files if format_of(file) == "text")
        return min(max(total // _PARTS, MIN_DOCUMENT_BYTES), MAX_DOCUMENT_BYTES)

    @cached_property
    def _store(self) -> tuple[Any, str]:
        """The fsspec filesystem of a remote root, and the root's name in it."""
        return _store_at(str(self.root))

    def _stat(self, file: PurePosixPath) -> tuple[int, str]:
        """Bytes of a file, and what changes when it is written again."""
        with self._named(file):
            if isinstance(self.root, Path):
                stat = (self.root / file).stat()
                return stat.st_size, str(stat.st_mtime_ns)
            store, root = self._store
            info = store.info(f"{root}/{file}")
            marks = ("ETag", "etag", "md5Hash", "mtime", "created", "LastModified")
            version = next((str(info[mark]) for mark in marks if info.get(mark)), "")
            return int(info["size"]), version

    @contextmanager
    def _opened(self, file: PurePosixPath) -> Iterator[IO[bytes]]:
        if isinstance(self.root, Path):
            with (self.root / file).open("rb") as stream:
                yield stream
        else:
            store, root = self._store
            with store.open(f"{root}/{file}", "rb") as stream:
                yield stream

    @contextmanager
    def _named(self, file: PurePosixPath) -> Iterator[None]:
        """Raises DataError E502 in the name of the file, whatever could not read it."""
        try:
            yield
        except (ConfigError, DataError):
            raise
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise DataError(
                f"cannot read {file}", code="E502", where=str(self.root),
                why=str(error) or type(error).__name__,
                fix="make the file readable and whole, or leave it out of data.path",
            ) from error  # fmt: skip
        except Exception as error:  # a store's or a decompressor's own kinds
            if type(error).__module__.partition(".")[0] not in _LIBRARIES:
                raise
            raise DataError(
                f"cannot read {file}", code="E502", where=str(self.root), why=str(error),
                fix="check that the store can be reached and the file is whole",
            ) from error  # fmt: skip


_LIBRARIES = {"zstandard", "zstd", "pyarrow", "botocore", "aiohttp", "gcsfs", "adlfs", "azure"}


def standard_library() -> Corpus:
    """The .py files of this Python's standard library, about 11 MB."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path.relative_to(root)
        for path in root.rglob("*.py")
        if not _NOT_LIBRARY & set(path.relative_to(root).parts[:-1])
    )
    if not files:
        raise DataError(
            "this Python carries no standard library sources", code="E501", where=str(root),
            fix="set data.path to a folder or file with text",
        )  # fmt: skip
    return Corpus(name="python standard library", root=root, files=_posix(files))


def text_at(path: Path | str, *, field: str = "text") -> Corpus:
    """The file, or all files of the folder (hidden ones aside), at a path or an fsspec address.

    Raises DataError E501 when there is nothing to read, E502 when a store cannot be asked.
    """
    if isinstance(path, str) and "://" in path:
        return _text_in_store(path, field=field)
    path = Path(path)
    if path.is_file():
        found = [path]
        root = path.parent
    else:
        root = path
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
    files = _posix([file.relative_to(root) for file in found if file.stat().st_size > 0])
    if not files:
        why = "there is no such file or folder" if not path.exists() else "it holds no text"
        raise _nothing_at(str(path), why)
    return Corpus(name=str(path), root=root, files=files, field=field)


def _text_in_store(address: str, *, field: str) -> Corpus:
    """The object, or all objects whose names begin with it as with a folder's."""
    store, root = _store_at(address)
    try:
        single = store.isfile(root)
        sizes = {root: store.size(root)} if single else store.find(root, detail=True)
    except FileNotFoundError:
        sizes = {}
    except Exception as error:  # every store has exceptions of its own
        raise DataError(
            f"{address} cannot be listed", code="E502", where="data.path", why=str(error),
            fix="check the address, the network and the store's credentials",
        ) from error  # fmt: skip
    base = root.rpartition("/")[0] if single else root.rstrip("/")
    names = []
    for name, info in sizes.items():
        size = info if isinstance(info, int) else info["size"]
        inner = PurePosixPath(name).relative_to(base)
        if size and not any(part.startswith(".") for part in inner.parts):
            names.append(inner)
    if not names:
        raise _nothing_at(address, "there is no object with text of that name")
    return Corpus(
        name=address, root=str(store.unstrip_protocol(base)), files=tuple(sorted(names)),
        field=field,
    )  # fmt: skip


def _store_at(address: str) -> tuple[Any, str]:
    """The fsspec filesystem of an address, and its path there. Raises DataError E502."""
    import fsspec

    try:
        store, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{address} cannot be reached", code="E502", where="data.path", why=str(error),
            fix="install the package of that store: s3fs, gcsfs or adlfs",
        ) from error  # fmt: skip
    return store, str(path)


def _nothing_at(path: str, why: str) -> DataError:
    near = _near(path)
    if near:
        why += f"; beside it there {'are' if len(near) > 1 else 'is'} {', '.join(near)}"
    return DataError(
        f"nothing to train on at {path}", code="E501", where="data.path", why=why,
        fix=(f"data.path={near[0]}\n" if near else "")
        + "data.path=PATH of a text file or a folder of them"
        "\ndata=stdlib   trains on the sources of Python's own library",
    )  # fmt: skip


def _near(path: str) -> list[str]:
    """What is called much the same in the same folder of this computer."""
    wanted = Path(path).expanduser()
    if "://" in path or wanted.exists() or not wanted.parent.is_dir():
        return []
    names = [entry.name for entry in wanted.parent.iterdir() if not entry.name.startswith(".")]
    found = difflib.get_close_matches(wanted.name, sorted(names), n=3)
    return [str(wanted.parent / name) for name in found]


def _posix(files: list[Path]) -> tuple[PurePosixPath, ...]:
    return tuple(PurePosixPath(file) for file in files)
