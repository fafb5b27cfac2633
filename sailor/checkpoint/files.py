"""Files that last: a folder of this computer or of any store that fsspec knows, spoken to alike.

``place("s3://bucket/run")`` is a StorePath, ``place("/data/run")`` an ordinary Path. Both can be
listed, read and written by the functions below; whatever a store throws arrives as an OSError.
fsspec is imported on first use: most runs have no store.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Sink = Callable[[memoryview], None]

_ATTEMPTS = 3  # to write one object; a store that answers 503 is asked again
_BACKOFF_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StorePath:
    """One name in a store: a bucket's object, or what many of them begin with."""

    store: Any  # an fsspec AbstractFileSystem, which has no types
    path: str

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(store=self.store, path=f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return str(self.store.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.rstrip("/").rpartition("/")[2]


Folder = Path | StorePath


def place(address: str) -> Folder:
    """Where an address points: a path, or ``protocol://...``.

    Raises OSError when fsspec cannot serve it, for want of a package most of all.
    """
    if "://" not in address:
        return Path(address).expanduser()
    import fsspec

    with _os_errors():
        try:
            store, path = fsspec.core.url_to_fs(address)
        except ImportError as error:
            raise OSError(f"{address} needs a package that is not installed: {error}") from error
    return StorePath(store=store, path=str(path))


def is_remote(address: str) -> bool:
    """Whether an address is a store's rather than a path."""
    return "://" in address


def children(folder: Folder) -> list[Folder]:
    """What lies in a folder, in no order; nothing when there is no such folder. Raises OSError."""
    if isinstance(folder, Path):
        return list(folder.iterdir()) if folder.is_dir() else []
    with _os_errors():
        folder.store.invalidate_cache()
        try:
            names = folder.store.ls(folder.path, detail=False)
        except FileNotFoundError:
            return []
        return [StorePath(store=folder.store, path=str(n)) for n in names if n != folder.path]


def exists(path: Folder) -> bool:
    """Whether there is such a file. Raises OSError when a store cannot tell."""
    if isinstance(path, Path):
        return path.is_file()
    with _os_errors():
        path.store.invalidate_cache()
        return bool(path.store.exists(path.path))


def size(path: Folder) -> int:
    """Bytes of a file. Raises OSError."""
    if isinstance(path, Path):
        return path.stat().st_size
    with _os_errors():
        return int(path.store.size(path.path))


def read(path: Folder) -> bytes:
    """All of a small file. Raises OSError."""
    if isinstance(path, Path):
        return path.read_bytes()
    with _os_errors():
        return bytes(path.store.cat_file(path.path))


def read_range(path: Folder, offset: int, length: int) -> bytes:
    """Some bytes of a file, fewer where it ends. One request of a store. Raises OSError."""
    if isinstance(path, Path):
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)
    with _os_errors():
        return bytes(path.store.cat_file(path.path, start=offset, end=offset + length))


def read_into(path: Folder, offset: int, buffer: memoryview) -> int:
    """Fill a buffer of bytes from a file; how many there were before it ended. Raises OSError."""
    if isinstance(path, StorePath):
        found = read_range(path, offset, len(buffer))
        buffer[: len(found)] = found
        return len(found)
    done = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while done < len(buffer) and (count := file.readinto(buffer[done:])):
            done += count
    return done


def chunks(path: Folder, *, most: int) -> Iterator[bytes]:
    """A file from end to end, at most so many bytes at a time. Raises OSError."""
    if isinstance(path, Path):
        with open(path, "rb") as file:
            while chunk := file.read(most):
                yield chunk
        return
    offset, end = 0, size(path)
    while offset < end:
        chunk = read_range(path, offset, min(most, end - offset))
        if not chunk:
            raise OSError(f"{path} ends after {offset} of {end} bytes")
        yield chunk
        offset += len(chunk)


def write(path: Folder, fill: Callable[[Sink], T]) -> T:
    """Make a file of what ``fill`` puts into the sink it is given: all of it, or none.

    Here it is written under another name, synced and renamed. A store shows an object when it is
    whole; one that fails is tried again, so ``fill`` may be called more than once. Raises OSError,
    and what ``fill`` raises.
    """
    if isinstance(path, StorePath):
        return _write_to_store(path, fill)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", buffering=0) as file:
            descriptor = file.fileno()
            done = fill(lambda data: _write_all(descriptor, data))
            os.fsync(descriptor)
        os.rename(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return done


def _write_to_store(path: StorePath, fill: Callable[[Sink], T]) -> T:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _os_errors():
                path.store.makedirs(path.path.rpartition("/")[0], exist_ok=True)
            return _put(path, fill)
        except OSError:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_BACKOFF_S * 4 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def _put(path: StorePath, fill: Callable[[Sink], T]) -> T:
    with _os_errors():
        file = path.store.open(path.path, "wb")

    def sink(data: memoryview) -> None:
        with _os_errors():
            file.write(data)

    try:
        done = fill(sink)
        with _os_errors():
            file.close()
    except BaseException:
        _discard(path, file)
        raise
    return done


def _discard(path: StorePath, file: Any) -> None:
    """Leave nothing of an object that was begun. A store that fails at this too is left alone: what
    no manifest names is no part of any checkpoint."""
    with contextlib.suppress(Exception):
        file.discard()
    with contextlib.suppress(Exception):
        file.closed = True  # else the garbage collector would finish the upload
    with contextlib.suppress(Exception):
        path.store.rm_file(path.path)


def remove(path: Folder) -> None:
    """A file, if it is there. Raises OSError."""
    if isinstance(path, Path):
        path.unlink(missing_ok=True)
        return
    with _os_errors(), contextlib.suppress(FileNotFoundError):
        path.store.rm_file(path.path)


def remove_tree(folder: Folder) -> None:
    """A folder with all that is in it, as far as it can be removed."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError), _os_errors():
        folder.store.rm(folder.path, recursive=True)


def copy_here(folder: StorePath, target: Path) -> Path:
    """The files of a store's folder as ones of this computer; those that are there are not fetched
    again. Returns ``target``. Raises OSError."""
    for file in children(folder):
        here = target / file.name
        if not (here.is_file() and here.stat().st_size == size(file)):

            def fetch(sink: Sink, source: Folder = file) -> None:
                for chunk in chunks(source, most=16 << 20):
                    sink(memoryview(chunk))

            write(here, fetch)
    return target


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Every store has exceptions of its own; all mean that it did not do what was asked."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
