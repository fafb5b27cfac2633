"""What a machine is given: this project's code, what it needs, and the script that starts it.

Machines that train need the sailor package; a controller's own machine rents them and needs all.
One folder, made once per run, named by its content, copied to every machine. Nothing secret is in
it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import shutil
import tarfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import sailor

_ROOT = Path(sailor.__file__).resolve().parents[1]
_DISTRIBUTION = "sailor-train"


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """A folder ready to be copied. ``digest`` names its content (hex)."""

    folder: Path
    digest: str


_TRAINS = ("sailor",)
_RENTS = ("sailor", "provision", "actions", "conf", "run.py", "pyproject.toml")


def make_payload(into: Path, *, rents: str = "") -> Payload:
    """Pack code, requirements and bootstrap.sh under ``into``; the same content is made once.

    ``rents``: the extra of ours (cloud) whose requirements a machine needs that rents others; it
    gets all of the project.
    """
    code = _archive(_ROOT, _RENTS if rents else _TRAINS)
    requirements = "\n".join(requirements_of_this(extra=rents)) + "\n"
    script = (Path(__file__).parent / "bootstrap.sh").read_bytes()
    digest = hashlib.sha256(code + requirements.encode() + script).hexdigest()[:16]
    folder = into / f"payload-{digest}"
    if not folder.exists():
        partial = into / f".payload-{digest}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "code.tar.gz").write_bytes(code)
        (partial / "requirements.txt").write_text(requirements)
        (partial / "bootstrap.sh").write_bytes(script)
        partial.rename(folder)
    return Payload(folder=folder, digest=digest)


def requirements_of_this(*, extra: str = "") -> list[str]:
    """What the core install needs, and one extra, if any."""
    pyproject = _ROOT / "pyproject.toml"
    if pyproject.exists():
        project = tomllib.loads(pyproject.read_text())["project"]
        more = project["optional-dependencies"][extra] if extra else []
        return [str(line) for line in (*project["dependencies"], *more)]
    found = importlib.metadata.requires(_DISTRIBUTION) or []
    core = [line for line in found if "extra ==" not in line]
    mark = f"extra == '{extra}'"
    more = [line.partition(";")[0].strip() for line in found if mark in line.replace('"', "'")]
    return [*core, *more] if extra else core


def _archive(root: Path, parts: Iterable[str]) -> bytes:
    """Parts of the project as a .tar.gz that is the same for the same files."""
    buffer = io.BytesIO()
    # No time stamp in the gzip header, so that equal code has an equal digest.
    with (
        _gzip(buffer) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in (file for part in parts for file in _files(root / part)):
            if path.is_dir() or "__pycache__" in path.parts or path.suffix == ".pyc":
                continue
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []


def _gzip(buffer: io.BytesIO) -> io.BufferedIOBase:
    import gzip

    return gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)
