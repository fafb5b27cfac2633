"""A folder that Hugging Face ``datasets`` saved (``save_to_disk``), as text. No torch.

The library maps the Arrow files into memory, so rows are read without holding the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from sailor.data.corpus import PIECE_BYTES, Range
from sailor.data.documents import Skipped, document_of, library
from sailor.errors import DataError

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_ROWS_AT_ONCE = 256


class SavedDataset:
    """One split of a saved dataset; a Range of it counts rows. ``field`` has the text."""

    def __init__(self, path: Path, *, field: str, split: str) -> None:
        """Raises DataError E501 for a folder without a dataset or without that split."""
        self._folder = _folder_of(path, split=split)
        self.name = str(self._folder)
        self.field = field

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, resized or touched. Reads no contents."""
        digest = xxhash.xxh3_128(f"dataset {self.field}\0".encode())
        for file in self._files:
            stat = file.stat()
            digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def pieces(self, *, most_bytes: int = PIECE_BYTES) -> tuple[tuple[Range, ...], ...]:
        """Runs of rows of about ``most_bytes`` on disk. Raises DataError E502, ConfigError E605."""
        rows = len(self._rows)
        size = sum(file.stat().st_size for file in self._files)
        step = max(1, rows * most_bytes // max(size, 1))
        whole = PurePosixPath(self._folder.name)
        return tuple(
            (Range(file=whole, start=start, stop=min(start + step, rows)),)
            for start in range(0, rows, step)
        )

    def documents(
        self, piece: tuple[Range, ...] | None = None, *, skipped: Skipped | None = None
    ) -> Iterator[bytes]:
        """The text of some rows, or of all; what is none is left out and counted in ``skipped``.

        Raises DataError E502 for a file that cannot be read.
        """
        count: Skipped = Counter() if skipped is None else skipped
        rows = self._rows
        ranges = [range(r.start, r.stop or len(rows)) for r in piece or ()]
        for chosen in ranges if piece is not None else [range(len(rows))]:
            if self.field not in rows.column_names:
                count[f"no field {self.field!r}"] += len(chosen)
                continue
            part = rows.select_columns([self.field]).select(chosen)
            for batch in self._batches(part):
                for text in batch[self.field]:
                    if (document := document_of(text, self.field, count)) is not None:
                        yield document

    def _batches(self, part: Any) -> Iterator[dict[str, list[Any]]]:
        batches = part.iter(batch_size=_ROWS_AT_ONCE)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
                raise _unreadable(self._folder, error) from error
            if batch is None:
                return
            yield batch

    @cached_property
    def _rows(self) -> Any:
        datasets = library("datasets", extra="datasets")
        try:
            return datasets.load_from_disk(str(self._folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(self._folder, error) from error

    @cached_property
    def _files(self) -> list[Path]:
        return sorted(file for file in self._folder.iterdir() if file.is_file())


def _folder_of(path: Path, *, split: str) -> Path:
    """The folder with the rows: itself, or that of a split."""
    if (path / _STATE).is_file():
        return path
    if not (path / _SPLITS).is_file():
        why = f"neither {_STATE} nor {_SPLITS} is there" if path.is_dir() else "no such folder"
        raise DataError(
            f"there is no saved dataset at {path}", code="E501", where="data.path", why=why,
            fix="save it first: datasets.load_dataset(NAME).save_to_disk(FOLDER)   or   data=text",
        )  # fmt: skip
    if not (path / split / _STATE).is_file():
        there = sorted(folder.parent.name for folder in path.glob(f"*/{_STATE}"))
        raise DataError(
            f"the dataset at {path} has no split {split!r}", code="E501", where="data.split",
            why="splits there are: " + (", ".join(there) or "none"),
            fix=f"data.split={there[0]}" if there else "save it again",
        )  # fmt: skip
    return path / split


def _unreadable(folder: Path, error: Exception) -> DataError:
    return DataError(
        f"cannot read the dataset {folder}", code="E502", where=str(folder),
        why=str(error) or type(error).__name__, fix="save or copy it again",
    )  # fmt: skip
