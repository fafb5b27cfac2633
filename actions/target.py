"""Which checkpoint export, eval and check mean, and the run it belongs to. Reads, never writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from actions import domain
from actions.run_folder import run_name, said_of
from sailor.checkpoint.files import Folder, copy_here, place
from sailor.checkpoint.store import newest, problems_of
from sailor.config import Config
from sailor.errors import ConfigError, DataError
from sailor.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One step of one run. ``config`` is what the run was trained with."""

    run: str
    folder: Path
    config: Config
    checkpoint: Path
    step: int

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return domain.model_spec(self.config)


def target(config: Config) -> Target:
    """The checkpoint named by checkpoint.path, else the newest complete one of the run.

    Raises ConfigError E608 when there is no such run, E603 when its configuration cannot be read,
    and DataError E516 when it has no checkpoint.
    """
    named = checkpoint_path(config)
    folder = Path(config.runs_dir).expanduser() / run_name(config)
    if isinstance(named, Path) and (named.parent.parent / "config.yaml").exists():
        folder = named.parent.parent
    saved = saved_config(folder)
    if named is None:
        address = saved.checkpoint.directory or str(folder / "checkpoints")
        try:
            found = newest(place(address))
        except OSError as error:
            raise DataError(
                f"the checkpoints of run {folder.name} cannot be listed", code="E516",
                where=address, why=str(error),
            ) from error  # fmt: skip
        if found is None:
            raise DataError(
                f"run {folder.name} has no complete checkpoint", code="E516", where=address,
                why="one is written every checkpoint.persist_every steps, and at the end",
                fix=f"{said_of(folder, 'status')}   shows how far it is",
            )  # fmt: skip
        named = found.path
    path = _brought_here(named, folder)
    return Target(
        run=folder.name, folder=folder, config=saved, checkpoint=path, step=_step(path)
    )  # fmt: skip


def _brought_here(found: Folder, folder: Path) -> Path:
    """The checkpoint as files of this computer. Raises DataError E516."""
    if isinstance(found, Path):
        return found
    try:
        return copy_here(found, folder / "fetched" / found.name)
    except OSError as error:
        raise DataError(
            f"the checkpoint {found} cannot be fetched", code="E516", where=str(found),
            why=str(error),
        ) from error  # fmt: skip


def checkpoint_path(config: Config) -> Folder | None:
    """checkpoint.path, when it is said. Raises DataError E516 for a store that cannot be asked."""
    said = config.checkpoint.path
    if said is None:
        return None
    try:
        found = place(said)
    except OSError as error:
        raise damaged(said, str(error)) from error
    return found.absolute() if isinstance(found, Path) else found


def check_whole(checkpoint: Folder) -> None:
    """Read a checkpoint from end to end. Raises DataError E516 unless every byte is as written."""
    _step(checkpoint)
    problems = problems_of(checkpoint)
    if problems:
        raise damaged(checkpoint, "\n".join(problems))


def damaged(checkpoint: Folder | str, why: str) -> DataError:
    """E516 for a checkpoint that is not what was written."""
    name = str(checkpoint).rstrip("/").rpartition("/")[2]
    return DataError(
        f"the checkpoint {name} cannot be used", code="E516", where=str(checkpoint),
        why=why, fix="checkpoint=PATH of another step; action=check checkpoint=PATH looks at one",
    )  # fmt: skip


def saved_config(folder: Path) -> Config:
    """The configuration of the run in a folder. Raises ConfigError E603, E608."""
    path = folder / "config.yaml"
    if not path.exists():
        others = sorted(path.parent.name for path in folder.parent.glob("*/config.yaml"))
        raise ConfigError(
            f"there is no run {folder.name}", code="E608", where=str(folder),
            why="runs there are: " + (", ".join(others) or "none"),
            fix="run.name=NAME of one of them   or   checkpoint=PATH",
        )  # fmt: skip
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), type=Config)
    except (OSError, ValueError, yaml.YAMLError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(
            f"run {folder.name} has a configuration that cannot be read",
            code="E603", why=str(error), where=str(path), fix="run.name=ANOTHER_RUN",
        ) from error  # fmt: skip


def _step(path: Folder) -> int:
    """Raises DataError E516 for a path that is no checkpoint's."""
    number = path.name.removeprefix("step-")
    if number == path.name or not number.isdigit():
        raise damaged(path, "a checkpoint is a folder with a name like step-00000200")
    return int(number)
