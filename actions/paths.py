"""Groups of which an option may be a path: ``faults=FILE``, ``tokenizer=FILE``, ``checkpoint=STEP``
and ``model=FOLDER``, which reads the model's shape, so that all after it knows the model by its
numbers. Imports next to nothing: --help does too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from sailor.errors import ConfigError, DataError
from sailor.models.hf.config import read_config, spec_of
from sailor.models.spec import ModelSpec

_SUFFIXES = (".yaml", ".yml", ".json", ".model")
_LONGEST_SEQUENCE = 1024  # as in conf/train/hf.yaml
_FOLDER_OPTION = "hf"

_SETTINGS = {
    "faults": ("faults=file", "faults.path"),
    "tokenizer": ("tokenizer=file", "tokenizer.path"),
    "checkpoint": ("", "checkpoint.path"),
}


def is_path(group: str, value: str, *, options: Sequence[str]) -> bool:
    """Whether a group is given a path where it could have been the name of an option."""
    if group == "model" and value == _FOLDER_OPTION:
        return True
    if group not in (*_SETTINGS, "model") or value in options or not value or "," in value:
        return False
    return "/" in value or value.endswith(_SUFFIXES) or Path(value).exists()


def path_settings(group: str, value: str, *, given: Mapping[str, str]) -> list[str]:
    """The settings that mean ``group=PATH``, those in ``given`` left to the user.

    For a model raises ConfigError E104 when no folder is named, DataError E511 or E512 for a folder
    that is none or cannot be used, and E507 when nothing says how it reads text.
    """
    if group == "model":
        return _model(value, given)
    option, key = _SETTINGS[group]
    return [*([option] if option else []), f"{key}={quoted(_unquoted(value))}"]


def quoted(value: str) -> str:
    """A value in Hydra's quotes, whatever characters it has."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _model(value: str, given: Mapping[str, str]) -> list[str]:
    said = given.get("model.init_from", "") if value == _FOLDER_OPTION else value
    if not said:
        raise ConfigError(
            "model=hf needs the folder of a model", code="E104", where="model=hf",
            fix="model=PATH/TO/FOLDER",
        )  # fmt: skip
    folder = Path(_unquoted(said)).expanduser().absolute()
    spec = spec_of(read_config(folder), name=folder.resolve().name, where=str(folder))
    settings = {f"model.{f.name}": _word(getattr(spec, f.name)) for f in fields(ModelSpec)}
    settings["model.init_from"] = quoted(str(folder))
    positions = given.get("model.max_positions", "")
    most = int(positions) if positions.isdigit() else spec.max_positions
    settings["train.sequence_length"] = str(min(_LONGEST_SEQUENCE, most))
    for key in given:
        settings.pop(key, None)
    words = [f"model={_FOLDER_OPTION}", *(f"{key}={word}" for key, word in settings.items())]
    if value == _FOLDER_OPTION:
        words.append(f"model.init_from={quoted(str(folder))}")
    return words + _tokenizer(folder, given)


def _tokenizer(folder: Path, given: Mapping[str, str]) -> list[str]:
    """A model reads text as it has learned to, unless the user says otherwise."""
    if any(key.partition(".")[0] == "tokenizer" for key in given):
        return []
    from sailor.data.tokenizer import has_tokenizer

    if not has_tokenizer(folder):
        raise DataError(
            f"{folder} has no tokenizer", code="E507", where=str(folder),
            why="neither tokenizer.json nor tokenizer.model is there",
            fix="tokenizer=PATH/TO/tokenizer.json   or   tokenizer=bytes",
        )  # fmt: skip
    return ["tokenizer=file", f"tokenizer.path={quoted(str(folder))}"]


def _word(value: Any) -> str:
    """A value of a model as Hydra reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return value.name
    return quoted(value) if isinstance(value, str) else repr(value)


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
