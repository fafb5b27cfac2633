"""A configuration as dotted keys and plain values: what command lines, files and digests hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

from sailor.config import Config


def keys(kind: type = Config, *, prefix: str = "") -> Iterator[str]:
    """Every dotted key a user may set, groups left out: "seed", "model.num_layers", ..."""
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint) and isinstance(hint, type):
            yield from keys(hint, prefix=f"{prefix}{name}.")
        else:
            yield prefix + name


def groups() -> tuple[str, ...]:
    """Names that hold further keys: the groups of conf/, and run."""
    return tuple(name for name, hint in get_type_hints(Config).items() if is_dataclass(hint))


def flatten(value: Any, *, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a config or of its nested plain form. Lists are values; enumerations
    become their names."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if not isinstance(value, dict):
        return {prefix.rstrip("."): plain(value)}
    flat: dict[str, Any] = {}
    for name, entry in value.items():
        flat |= flatten(entry, prefix=f"{prefix}{name}.")
    return flat


def plain(value: Any) -> Any:
    """A config value as text, number, list or mapping: what YAML and JSON can hold."""
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value
