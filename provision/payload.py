"""What a machine is given: this project's code, what it needs, and the script that starts it.

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


def make_payload(into: Path) -> Payload:
    """Pack code, requirements and bootstrap.sh under ``into``; the same content is made once."""
    code = _archive(_ROOT)
    requirements = "\n".join(requirements_of_this()) + "\n"
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


def requirements_of_this() -> list[str]:
    """What the core install needs, extras left out."""
    pyproject = _ROOT / "pyproject.toml"
    if pyproject.exists():
        project = tomllib.loads(pyproject.read_text())["project"]
        return [str(line) for line in project["dependencies"]]
    found = importlib.metadata.requires(_DISTRIBUTION) or []
    return [line for line in found if "extra ==" not in line]


def _archive(root: Path) -> bytes:
    """The sailor package as a .tar.gz that is the same for the same files."""
    buffer = io.BytesIO()
    # No time stamp in the gzip header, so that equal code has an equal digest.
    with (
        _gzip(buffer) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted((root / "sailor").rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts or path.suffix == ".pyc":
                continue
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _gzip(buffer: io.BytesIO) -> io.BufferedIOBase:
    import gzip

    return gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)
