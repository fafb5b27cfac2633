"""What a step is made from: the settings that concern it, and files of the user's. Writes nothing.

A setting that only changes what is shown, spent or waited for makes nothing new: the rule by which
a run of the same name is resumed (actions/run_folder.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from actions import domain
from actions.run_folder import FREE_KEYS
from actions.sources import what_is_read
from sailor.config import Config
from sailor.config_keys import flatten
from sailor.errors import SailorError

Inputs = Mapping[str, Any]
"""What -> its value in JSON types: settings by their keys, files by their paths."""

# Step -> keys, or starts of them, that it looks at. Training looks at all but what is free.
_KEYS: dict[str, tuple[str, ...]] = {
    "prepare": ("data", "tokenizer", "model.vocab_size", "model.vocab_padding"),
    "profile": ("model", "train", "cloud", "runtime.device"),
    "plan": ("model", "train", "cloud", "budget", "planner", "runtime.device"),
    "simulate": ("model", "train", "cloud", "budget", "planner", "runtime.device", "simulate",
                 "checkpoint", "seed"),
    "eval": ("eval", "checkpoint.path"),
    "export": ("export", "checkpoint.path"),
    "report": ("tracker",),
}  # fmt: skip
LOOKS_OUTSIDE = ("check",)
"""Steps about the world as it is now: done every time."""


def inputs_of(step: str, config: Config) -> Inputs:
    """Everything that, when it changes, makes a step's results another's."""
    flat = flatten(config)
    if step == "train":
        settings = {key: value for key, value in flat.items() if not _begins(key, FREE_KEYS)}
    else:
        settings = {key: value for key, value in flat.items() if _begins(key, _KEYS.get(step, ()))}
    return settings | dict(_files(step, config))


def changed(before: Inputs, now: Inputs) -> list[str]:
    """What differs, in words. What only one of them has came or went with a version of Sailor."""
    return [
        f"{key} was {_short(before[key])}, is {_short(value)}"
        for key, value in now.items()
        if key in before and before[key] != value
    ]


def _files(step: str, config: Config) -> Iterator[tuple[str, str]]:
    """Files of the user's that a step reads, by what changes when they do."""
    match step:
        case "prepare":
            if config.tokenizer.path is not None:
                yield f"files of {config.tokenizer.path}", _contents(config.tokenizer.path)
            yield from _read(config)
        case "plan" | "simulate" if config.planner.profile is not None:
            yield f"files of {config.planner.profile}", _contents(config.planner.profile)
        case "train":
            # By name and size, not by time: weights that were copied again are not another model.
            if source := domain.first_weights(config):
                yield f"files of {source}", _sizes(source, times=False)
            if config.faults.path is not None:
                yield f"files of {config.faults.path}", _contents(config.faults.path)


def _read(config: Config) -> Iterator[tuple[str, str]]:
    try:
        found = what_is_read(config)
    except SailorError as error:  # the step itself will say it, with a way out
        yield "the text", f"cannot be read: {error.code}"
        return
    mixed = config.data.mixture
    for name, fingerprint in found.items():
        wish = mixed[name] if name else config.data
        if wish.name == "tokens":
            yield f"files of {wish.path}", _sizes(wish.path or "", times=True)
        else:
            yield f"the text of {name}" if name else "the text", fingerprint


def _contents(said: str) -> str:
    """Digest of a file, or of the small files of a folder."""
    digest = xxhash.xxh3_128()
    path = Path(said).expanduser()
    try:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file() and file.suffix not in (".safetensors", ".bin"):
                digest.update(f"{file.name}\0".encode() + file.read_bytes())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return digest.hexdigest()


def _sizes(said: str, *, times: bool) -> str:
    """Digest of the names and sizes of a folder's files, and of when they were written."""
    digest = xxhash.xxh3_128()
    path = Path(said).expanduser()
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            stat = file.stat()
            digest.update(f"{file.name}\0{stat.st_size}\0{times and stat.st_mtime_ns}\0".encode())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return digest.hexdigest()


def _begins(key: str, starts: tuple[str, ...]) -> bool:
    return any(key == start or key.startswith(f"{start}.") for start in starts)


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
