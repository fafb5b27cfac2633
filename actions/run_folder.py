"""The folder of one run: its name, its lock, and whether this configuration may go on in it.

``<runs_dir>/<run.name>/`` holds config.yaml plan.json events.jsonl summary.json report.html logs/
checkpoints/. One process at a time may have it open. The same name with the same configuration
resumes; with another one it is refused and nothing is touched. Nothing is ever deleted here.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from filelock import FileLock, Timeout

from actions.arguments import command as command_line
from sailor.config import Config
from sailor.config_keys import flatten, plain
from sailor.errors import ConfigError

# Keys that may differ when a run is resumed: they change what is shown, spent, waited for or kept,
# never what is computed. A key or the start of one.
FREE_KEYS = (
    "action", "output", "runs_dir", "run", "ui", "tracker", "budget", "runtime", "simulate",
    "data.cache", "planner.patience", "checkpoint.keep", "checkpoint.keep_every",
    "checkpoint.compare_every", "checkpoint.anchor", "cloud.live",
    "cloud.replace", "cloud.trace", "cloud.cluster", "cloud.shared_files", "cloud.python",
    "cloud.nodes_per_cluster", "cloud.launches", "cloud.join", "cloud.idle", "cloud.controller",
    "cloud.controller_keeps", "data.prepared",
    "checkpoint.path", "export", "eval", "cloud.isolated", "migrate", "cloud.standbys",
    "recipe",
)  # fmt: skip


MIXTURE = "data.mixture"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """An open run folder. ``resumed``: it existed before, with the same configuration."""

    name: str
    path: Path
    resumed: bool

    @property
    def plan(self) -> Path:
        """The plan that was chosen."""
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        """The append-only log that everything else is drawn from."""
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        """The run in figures."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The run in pictures."""
        return self.path / "report.html"

    @property
    def logs(self) -> Path:
        """Logs of the controller, agents and workers."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """Durable checkpoints, unless checkpoint.directory says otherwise."""
        return self.path / "checkpoints"

    @property
    def is_done(self) -> bool:
        """Whether the run reached its last step."""
        return read_summary(self.path).get("status") == "done"


def run_name(config: Config) -> str:
    """The name of the run: as given, else model, cloud and a word of the configuration's digest."""
    if config.run.name is not None:
        return config.run.name
    return f"{config.model.name}-{config.cloud.name}-{config_digest(config)[:6]}"


def config_digest(config: Config) -> str:
    """Hex digest of everything that decides what is computed; the same for a run and its resume."""
    document = json.dumps(_identity(flatten(config)), sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old value, new value) where two flat configurations forbid a resume.

    Keys that only one of them has came or went with a version of Sailor and are not compared; but
    the sources of a mixture are named by its user, and one that only one of them has counts.
    """
    before, now = _identity(old), _identity(new)
    changed = {
        key: (before[key], value)
        for key, value in now.items()
        if key in before and before[key] != value
    }
    there, here = _sources(before), _sources(now)
    added = {f"{MIXTURE}.{name}": ("no source", "a source") for name in sorted(here - there)}
    gone = {f"{MIXTURE}.{name}": ("a source", "no source") for name in sorted(there - here)}
    return changed | added | gone


@contextmanager
def open_run(config: Config, *, command: str) -> Iterator[RunFolder]:
    """The run's folder, made if need be and locked until the end of the block.

    Raises ConfigError: E606 another process has it open, E603 it belongs to another configuration,
    E607 it cannot be written.
    """
    name = run_name(config)
    path = Path(config.runs_dir).expanduser() / name
    if config.run.fresh and path.exists():
        with hold(path, name=name):
            path.rename(_aside(path))
    with hold(path, name=name):
        saved = path / "config.yaml"
        # A run that never began, for want of data or machines, has no claim on its name.
        resumed = saved.exists() and (path / "events.jsonl").exists()
        if resumed:
            refuse_another(path, config)
        else:
            _write_config(saved, config, command=command)
        yield RunFolder(name=name, path=path, resumed=resumed)


_USUAL = "runs"  # runs_dir, where nothing else is said


def said_of(folder: Path, action: str) -> str:
    """The command of an action for a run's folder, or for a folder of runs."""
    runs, words = folder, [f"action={action}"]
    if (folder / "config.yaml").exists():
        runs = folder.parent
        words.append(f"run={folder.name}")
    if runs != Path(_USUAL):
        words.append(f"runs_dir={runs}")
    return command_line(words)


def read_summary(path: Path) -> dict[str, Any]:
    """summary.json of a run folder; empty when there is none to be read."""
    try:
        document = json.loads((path / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def owner_pid(path: Path) -> int | None:
    """The process that has a run folder open, or None. Looks at the lock, so a leftover does not
    deceive it."""
    if not (path / _LOCK).exists():
        return None
    try:
        with FileLock(path / _LOCK, timeout=0):
            return None
    except Timeout:
        return _owner(path)


def seems_open(path: Path) -> bool:
    """Whether the process that last opened a run folder is still there.

    For looking often: it takes no lock, which a start of the run could miss; a leftover of a
    killed process whose number another one has got deceives it.
    """
    pid = _owner(path)
    return pid is not None and psutil.pid_exists(pid)


_LOCK = ".lock"
_OWNER = ".owner.json"


@contextmanager
def hold(path: Path, *, name: str) -> Iterator[None]:
    """Hold a run folder's lock. The kernel lets go of it when the process ends, however it ends.

    Raises ConfigError: E606 another process has it open, E607 it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / _LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        pid = _owner(path)
        raise ConfigError(
            f"run {name} is open in another process",
            code="E606",
            why=f"process {pid} works in it" if pid else "its lock is held",
            where=str(path),
            fix=f"{said_of(path, 'watch')}   shows it"
            f"\nkill -INT {pid or 'PID'}   asks it to save and stop"
            "\nrun.name=NEW_NAME   starts another run",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"run folder {path} cannot be written",
            code="E607", why=str(error), where="runs_dir, run.name", fix="runs_dir=ANOTHER/FOLDER",
        ) from error  # fmt: skip
    try:
        document = {"pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        (path / _OWNER).write_text(json.dumps(document))
        yield
    finally:
        (path / _OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(path: Path) -> int | None:
    try:
        return int(json.loads((path / _OWNER).read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # just being written, or by another version: the message does without


def refuse_another(path: Path, config: Config) -> None:
    """Raise ConfigError E603 unless a run's folder is of this configuration."""
    saved, name = path / "config.yaml", path.name
    try:
        document = yaml.safe_load(saved.read_text())
        if not isinstance(document, dict):
            raise ValueError("not a mapping")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"run {name} has a configuration that cannot be read",
            code="E603", why=str(error), where=str(saved), fix="run.name=NEW_NAME",
        ) from error  # fmt: skip
    changed = differences(flatten(document), flatten(config))
    if not changed:
        return
    shown = [f"{key}: {old} there, {new} here" for key, (old, new) in changed.items()]
    can_say = not any(key.startswith(f"{MIXTURE}.") for key in changed)
    back = " ".join(f"{key}={_word(old)}" for key, (old, _) in changed.items())
    raise ConfigError(
        f"run {name} exists with another configuration",
        code="E603",
        why="\n".join(shown[:12] + ([f"and {len(shown) - 12} more"] if len(shown) > 12 else [])),
        where=str(saved),
        fix="run.name=NEW_NAME   for a run of its own"
        "\nrun.fresh=true   to start over; the old folder is set aside"
        + (f"\n{back}   to resume the old one" if len(changed) <= 3 and can_say else ""),
    )


def _write_config(path: Path, config: Config, *, command: str) -> None:
    """Renamed into place, so that a folder has a whole configuration or none."""
    text = f"# {command}\n" + yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    beside = path.with_suffix(".partial")
    beside.write_text(text)
    beside.replace(path)


def _identity(flat: Mapping[str, Any]) -> dict[str, Any]:
    def is_free(key: str) -> bool:
        return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)

    return {key: value for key, value in flat.items() if not is_free(key)}


def _sources(flat: Mapping[str, Any]) -> set[str]:
    prefix = f"{MIXTURE}."
    return {key.removeprefix(prefix).partition(".")[0] for key in flat if key.startswith(prefix)}


def _aside(path: Path) -> Path:
    """The first free name to set a folder aside under."""
    number = 1
    while (aside := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return aside


def _word(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
