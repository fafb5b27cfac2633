"""action=debug.bundle: what somebody needs who is to find out what went wrong, in one file.

    python run.py action=debug.bundle run=NAME      of that run
    python run.py action=debug.bundle               of the newest one in runs_dir, if there is any

Configuration, the end of the event log, ends of logs, journal, plan, summary, tracebacks and the
versions of what is installed. Never weights, text or tokens, no key, no variable of the
environment; what looks like a secret is blanked on the way in, the home folder is called ~.
Nothing is sent anywhere: look into it, then attach it to a report yourself.
"""

from __future__ import annotations

import getpass
import gzip
import importlib.metadata
import io
import json
import os
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from actions.console import Console
from actions.status import no_such_run
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.observe.redact import redact, redact_fields

LAST_EVENTS = 5000
LAST_BYTES = 256 << 10  # of each log
MOST_TRACEBACKS = 5
TRACEBACKS = "sailor-bug-*.txt"  # as run.py calls them, in the folder for temporary files
_WHOLE = ("config.yaml", "plan.json", "summary.json", "journal.json", "machines.jsonl")


def run(config: Config, console: Console) -> int:
    """Write the bundle and say where it is. Raises ConfigError E607 and E608."""
    root = Path(config.runs_dir).expanduser()
    folder = _folder(root, config.run.name)
    name = folder.name if folder is not None else "no-run"
    target = root / f"sailor-bundle-{name}.tar.gz"
    members = dict(contents(folder, command=console.command))
    try:
        root.mkdir(parents=True, exist_ok=True)
        write(target, members)
    except OSError as error:
        raise ConfigError(
            f"the bundle cannot be written to {root}", code="E607", why=str(error),
            where="runs_dir", fix="runs_dir=ANOTHER/FOLDER",
        ) from error  # fmt: skip
    size = target.stat().st_size
    console.document({"action": "debug.bundle", "path": str(target), "bytes": size,
                      "members": sorted(members)})  # fmt: skip
    console.print(
        f"{target}\n{len(members)} files, {size / 1024:,.0f} KiB; nothing was sent anywhere\n"
        f"look into it   tar -xzOf {target} | less",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    return 0


def contents(folder: Path | None, *, command: str) -> Iterator[tuple[str, str]]:
    """(name in the bundle, text), everything redacted. ``folder``: of a run, where there is one."""
    yield "versions.txt", versions(command=command)
    for path in tracebacks():
        yield f"tracebacks/{path.name}", _text(path)
    if folder is None:
        return
    for name in _WHOLE:
        if (folder / name).is_file():
            yield name, _text(folder / name)
    if (folder / "events.jsonl").is_file():
        yield "events.jsonl", _events(folder / "events.jsonl")
    for path in sorted((folder / "logs").glob("*")):
        if path.is_file():
            yield f"logs/{path.name}", _text(path, last=LAST_BYTES)


def versions(*, command: str) -> str:
    """What runs here. No variable of the environment, no name of the user."""
    installed = {
        f"{found.metadata['Name']}=={found.version}" for found in importlib.metadata.distributions()
    }
    lines = [
        f"command   {command}", f"python    {sys.version.split()[0]}",
        f"system    {platform.system()} {platform.release()} {platform.machine()}",
        f"cores     {os.cpu_count()}", "", *sorted(installed, key=str.lower),
    ]  # fmt: skip
    return clean("\n".join(lines) + "\n")


def tracebacks() -> list[Path]:
    """The newest of this user's, as E901 left them."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(TRACEBACKS):
        try:
            state = path.lstat()
        except OSError:
            continue  # somebody is tidying up
        if state.st_uid == os.geteuid() and not path.is_symlink():
            found.append((state.st_mtime, path))
    return [path for _, path in sorted(found)[-MOST_TRACEBACKS:]]


def clean(text: str) -> str:
    """Without secrets, and without the name of whoever runs it where that is in a path."""
    home = str(Path.home())
    text = redact(text)
    if home != "/":
        text = text.replace(home, "~")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return text  # a user without a name
    return text.replace(f"/home/{user}", "~")


def write(target: Path, members: dict[str, str]) -> None:
    """The archive, for its owner alone; whole or not at all. Raises OSError."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for name, text in members.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"sailor-bundle/{name}")
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _folder(root: Path, name: str | None) -> Path | None:
    """The run's folder, or of the newest run."""
    if name is not None:
        if not (root / name / "config.yaml").exists():
            raise no_such_run(root / name, root=root)
        return root / name
    runs = [path.parent for path in root.glob("*/config.yaml")]
    return max(runs, key=lambda path: path.stat().st_mtime, default=None)


def _text(path: Path, *, last: int | None = None) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - last) if last is not None else 0)
            data = file.read()
    except OSError as error:
        return f"cannot be read: {error}\n"
    if path.suffix == ".json":
        with suppress(ValueError):
            return clean(json.dumps(redact_fields(json.loads(data)), indent=1) + "\n")
    cut = f"(the last {last:,} of {size:,} bytes)\n" if last is not None and size > last else ""
    return clean(cut + data.decode(errors="replace"))


def _events(path: Path) -> str:
    """The last lines, each cleaned field by field where it is one."""
    lines = path.read_bytes().decode(errors="replace").splitlines()[-LAST_EVENTS:]
    cleaned = []
    for line in lines:
        with suppress(ValueError):  # a torn one is cleaned as text
            line = json.dumps(redact_fields(json.loads(line)))
        cleaned.append(clean(line))
    return "\n".join(cleaned) + "\n"
