"""What a run is made of, for its record: the keys that were changed, and the versions of things."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from sailor.config import Config
from sailor.config_keys import flatten, plain

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("torch", "numpy", "msgspec", "safetensors", "hydra-core", "skypilot")
_UNTOLD = ("action", "runs_dir", "run.", "ui.", "output", "recipe.")  # where and how, not what


def changed(config: Config) -> dict[str, Any]:
    """Dotted key -> value of whatever the default run (no words at all) has otherwise.

    The defaults are those of the schema, and over them those of conf/ as its files stand.
    """
    usual = _defaults()
    return {
        key: _short(value)
        for key, value in flatten(plain(config)).items()
        if not key.startswith(_UNTOLD) and not _same(usual.get(key), value)
    }


def versions() -> dict[str, str]:
    """Name -> version of what computes: ours, Python, the libraries that are installed."""
    found = {"sailor": _version("sailor-train") or "from a checkout"}
    if commit := _commit():
        found["commit"] = commit
    found["python"] = platform.python_version()
    found |= {name: known for name in _PACKAGES if (known := _version(name))}
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    return found


def _defaults() -> dict[str, Any]:
    """The default run's keys: conf/config.yaml's own list of group files, read one by one."""
    document = yaml.safe_load((_ROOT / "conf" / "config.yaml").read_text())
    chosen = {
        group: option
        for entry in document.pop("defaults")
        if isinstance(entry, Mapping)
        for group, option in entry.items()
        if not group.startswith("override")
    }
    document.pop("hydra", None)
    values = dict(_of_dataclass(Config)) | flatten(document)
    for group, option in chosen.items():
        name = chosen["model"] if option == "${model}" else option
        text = yaml.safe_load((_ROOT / "conf" / group / f"{name}.yaml").read_text()) or {}
        values |= {f"{group}.{key}": value for key, value in flatten(text).items()}
    return values


def _of_dataclass(kind: type, *, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The defaults that the schema itself has."""
    hints = get_type_hints(kind)
    for entry in fields(kind):
        hint, key = hints[entry.name], prefix + entry.name
        if is_dataclass(hint) and isinstance(hint, type):
            yield from _of_dataclass(hint, prefix=f"{key}.")
        elif entry.default is not MISSING:
            yield key, plain(entry.default)
        elif entry.default_factory is not MISSING:
            yield key, plain(entry.default_factory())


def _short(value: Any) -> Any:
    """A list's entries without what they leave open, as a file has them."""
    if not isinstance(value, list):
        return value
    return [
        {name: given for name, given in entry.items() if given is not None}
        if isinstance(entry, dict)
        else entry
        for entry in value
    ]


def _same(one: Any, other: Any) -> bool:
    """YAML's reader of conf/ takes 1e-5 for a word, Hydra's for a number."""
    if isinstance(one, str) and isinstance(other, int | float):
        try:
            return float(one) == other
        except ValueError:
            return False
    return bool(_short(one) == _short(other))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of a checkout, marked where files differ from it; empty outside of one."""
    try:
        said = subprocess.run(
            ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=5.0, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
