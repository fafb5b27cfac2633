"""Tokens written once: in bounded memory, pieces side by side, going on where a process died.

A folder of tokens is complete or absent: while it is written it has another name, and every piece
that is whole says so in a file of its own, which a later process believes.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import msgspec
from filelock import FileLock

from sailor.data.documents import Skipped
from sailor.data.shards import Shard, ShardWriter, token_type
from sailor.data.source import Source, is_held_out
from sailor.data.tokens import MANIFEST, VERSION, Manifest, load_manifest
from sailor.errors import DataError

log = logging.getLogger(__name__)

SHARD_TOKENS = 1 << 28
_SIDE_BY_SIDE = 4  # pieces; tokenizers use all cores for a batch by themselves
_EMPTY = 1 << 64  # more than any hash

Told = Callable[[int, int], None]
"""Told (pieces done, pieces in all)."""


class _Stopped(Exception):
    """Another piece failed."""


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole piece has come to."""

    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]
    num_documents: int
    least_hash: int
    """Smallest hash of its documents."""
    skipped: dict[str, int]


def prepare(
    source: Source, *, directory: Path, shard_tokens: int = SHARD_TOKENS,
    progress: Told | None = None,
) -> Manifest:  # fmt: skip
    """Write a source's tokens into a folder of ``directory`` that is named after it; if it is
    there, only look.

    One process at a time writes, others wait for it. Raises DataError E504 when there is too little
    to hold any of it out, E518 when the disk is full, and what reading the source raises.
    """
    fingerprint = source.fingerprint()
    target = directory / f"{source.tokenizer}-{fingerprint[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / ".lock"):
        if target.exists():
            try:
                return load_manifest(target)
            except DataError:
                shutil.rmtree(target)  # damaged: its source is here, so write it again
        partial = directory / f"{target.name}.partial"
        partial.mkdir(exist_ok=True)
        try:
            pieces = _all_pieces(source, partial, shard_tokens, progress or (lambda *_: None))
            manifest = _manifest(source, fingerprint, pieces)
        except DataError:
            if not any(partial.iterdir()):
                partial.rmdir()
            raise
        except OSError as error:
            raise DataError(
                "tokens cannot be written", code="E518", where=str(partial), why=str(error),
                fix="data.cache=/ANOTHER/DISK   or   make room: whole pieces are kept",
            ) from error  # fmt: skip
        _complete(partial, manifest)
        os.replace(partial, target)
    return msgspec.structs.replace(manifest, path=str(target))


def _all_pieces(source: Source, folder: Path, shard_tokens: int, progress: Told) -> list[_Piece]:
    """Every piece, whole. When the rule holds nothing out, once more with one document held out."""
    pieces = _written(source, folder, shard_tokens, progress, least=None)
    if any(piece.held_out for piece in pieces) or not pieces:
        return pieces
    least = min(piece.least_hash for piece in pieces)
    for file in folder.iterdir():
        file.unlink()
    return _written(source, folder, shard_tokens, progress, least=least)


def _written(
    source: Source, folder: Path, shard_tokens: int, progress: Told, *, least: int | None
) -> list[_Piece]:
    """The pieces, several at once; the first that fails stops the others between two documents."""
    failed = Event()
    number = range(source.num_pieces)
    with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="prepare") as threads:
        jobs = [
            threads.submit(_piece, source, i, folder, shard_tokens, least, failed) for i in number
        ]
        left = set(jobs)
        try:
            while left:
                done, left = wait(left, timeout=1.0, return_when=FIRST_EXCEPTION)
                progress(len(jobs) - len(left), len(jobs))
                if any(job.exception() for job in done):
                    break
        finally:  # Ctrl-C included: what is whole is kept
            if left:
                failed.set()
                threads.shutdown(wait=True, cancel_futures=True)
    for job in jobs:
        error = None if job.cancelled() else job.exception()
        if error is not None and not isinstance(error, _Stopped):
            raise error
    return [job.result() for job in jobs]


def _piece(
    source: Source, number: int, folder: Path, shard_tokens: int, least: int | None,
    stop: Event,
) -> _Piece:  # fmt: skip
    """A piece as it was left by an earlier process, or written now."""
    note = folder / f"piece-{number:05d}.json"
    if (found := _noted(note, folder)) is not None:
        return found
    dtype = token_type(source.vocab_size)
    train, held_out = (
        ShardWriter(folder, f"{name}-{number:05d}", dtype=dtype, shard_tokens=shard_tokens)
        for name in ("train", "held_out")
    )
    skipped: Skipped = Counter()
    count, smallest = 0, _EMPTY
    try:
        for hash_, tokens in source.documents(number, skipped=skipped):
            if stop.is_set():
                raise _Stopped
            side = held_out if is_held_out(hash_) or hash_ == least else train
            side.add(tokens, end=source.end_of_text)
            count, smallest = count + 1, min(smallest, hash_)
        train.close()
        held_out.close()
    finally:
        train.abandon()
        held_out.abandon()
    piece = _Piece(
        train=tuple(train.shards), held_out=tuple(held_out.shards), num_documents=count,
        least_hash=smallest if count else -1, skipped=dict(skipped),
    )  # fmt: skip
    beside = note.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(piece))
    os.replace(beside, note)
    return piece


def _noted(note: Path, folder: Path) -> _Piece | None:
    """A piece whose note and files are whole."""
    try:
        piece = msgspec.json.decode(note.read_bytes(), type=_Piece)
        whole = all((folder / shard.file).is_file() for shard in piece.train + piece.held_out)
    except (OSError, ValueError):
        return None
    return piece if whole else None


def _manifest(source: Source, fingerprint: str, pieces: Sequence[_Piece]) -> Manifest:
    """Of all pieces. Raises DataError E504 when a side has no document."""
    train = tuple(shard for piece in pieces for shard in piece.train)
    held_out = tuple(shard for piece in pieces for shard in piece.held_out)
    skipped: Counter[str] = Counter()
    for piece in pieces:
        skipped.update(piece.skipped)
    count = sum(piece.num_documents for piece in pieces)
    if not train or not held_out:
        left_out = "; left out: " + words(skipped) if skipped else ""
        raise DataError(
            "the text is too little to hold any of it out", code="E504", where=source.name,
            why=f"it has {count} documents, which are all alike or fewer than two{left_out}",
            fix="data.path=MORE_TEXT   or   data.field=FIELD of JSON lines that has it",
        )  # fmt: skip
    if skipped:
        log.warning("%s: left out %s", source.name, words(skipped))
    return Manifest(
        version=VERSION, corpus=source.name, fingerprint=fingerprint, tokenizer=source.tokenizer,
        vocab_size=source.vocab_size, dtype=token_type(source.vocab_size).name,
        num_documents=count, skipped=dict(skipped), train=train, held_out=held_out,
    )  # fmt: skip


def _complete(folder: Path, manifest: Manifest) -> None:
    """The manifest in place of the pieces' notes; files of no piece go."""
    kept = {shard.file for shard in manifest.train + manifest.held_out}
    for file in folder.iterdir():
        if file.name not in kept:
            file.unlink()
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST).write_bytes(encoded)


def words(skipped: dict[str, int] | Counter[str]) -> str:
    """ "3 documents (empty), 1 document (not UTF-8)"."""
    return ", ".join(
        f"{number:,} document{'s' if number != 1 else ''} ({reason})"
        for reason, number in sorted(skipped.items())
    )
