"""What became of a recipe's steps: one small file a run, ``<runs_dir>/recipes/<run.name>.json``.

Not in the run's folder, which is set aside when a step of training has to be done anew. One process
at a time works at a recipe: it holds the file's lock, which the kernel lets go of however it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from actions.recipe.outputs import Output
from actions.run_folder import run_name
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.observe.summary import write_atomically

DONE, SKIPPED, RUNNING, FAILED, STOPPED = "done", "skipped", "running", "failed", "stopped"
_VERSION = 1


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last word about one step. Times are seconds since the epoch."""

    step: str
    state: str  # done, skipped (done before, and found good), running, failed, stopped
    why: str = ""
    since: float  # when it began, or was skipped
    seconds: float = 0.0  # of work, the last time it was done
    done_at: float = 0.0
    exit_code: int = 0
    inputs: dict[str, Any] = {}
    earlier: str = ""
    outputs: tuple[Output, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether it was done, then or before."""
        return self.state in (DONE, SKIPPED)


class _File(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    recipe: str
    pid: int
    steps: list[StepRecord]


class Record:
    """The records of one recipe's steps, written through."""

    def __init__(self, path: Path, *, recipe: str) -> None:
        self.path = path
        self._recipe = recipe
        self.steps: dict[str, StepRecord] = {}
        self.pid = 0
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError):
            return  # none yet, or of another version: then everything is still to do
        if kept.version == _VERSION:
            self.steps = {step.step: step for step in kept.steps}
            self.pid = kept.pid

    def put(self, step: StepRecord) -> None:
        """Keep the last word about a step. Raises ConfigError E607."""
        self.steps[step.step] = step
        document = _File(
            version=_VERSION, recipe=self._recipe, pid=os.getpid(), steps=list(self.steps.values())
        )
        try:
            write_atomically(self.path, msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error


def kept_for(folder: Path) -> dict[str, str]:
    """Step -> its last state, of the recipe that a run's folder belongs to; empty for no recipe."""
    record = Record(folder.parent / "recipes" / f"{folder.name}.json", recipe="")
    return {name: step.state for name, step in record.steps.items()}


def record_path(config: Config) -> Path:
    """Where the steps of the recipe of a configuration are kept."""
    return Path(config.runs_dir).expanduser() / "recipes" / f"{run_name(config)}.json"


@contextmanager
def held(path: Path, *, recipe: str) -> Iterator[Record]:
    """The record, and nobody else at work on it. Raises ConfigError E606, E607."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_lock(path), timeout=0)
        lock.acquire()
    except Timeout as error:
        raise ConfigError(
            f"recipe {recipe} is being run by another process", code="E606", where=str(path),
            why=f"process {Record(path, recipe=recipe).pid} works at it",
            fix="wait for it, or start a run of its own: run.name=NEW_NAME",
        ) from error  # fmt: skip
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield Record(path, recipe=recipe)
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether somebody is at work on it."""
    if not _lock(path).exists():
        return False
    try:
        with FileLock(_lock(path), timeout=0):
            return False
    except Timeout:
        return True


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"what becomes of a recipe's steps cannot be kept in {path}", code="E607",
        why=str(error), where="runs_dir", fix="runs_dir=ANOTHER/FOLDER",
    )  # fmt: skip
