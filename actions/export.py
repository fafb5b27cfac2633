"""action=export: a run's checkpoint as a folder that other tools load.

A Hugging Face folder with the tokenizer and generation settings, or a torch distributed checkpoint
with the optimizer's state. The checkpoint is read from end to end first, digests compared, and then
streamed. Asked again for the same, it says that it is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actions.console import Console, Told
from actions.origin import GENERATION, ORIGIN, TOKENIZER, read_tokens
from actions.target import Target, check_whole, damaged, target
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import COMPLETE
from sailor.checkpoint.weights import CheckpointWeights
from sailor.config import Config, ExportFormat
from sailor.errors import ConfigError, DataError
from sailor.models.hf.config import CONFIG, config_of, spec_of
from sailor.models.hf.write import Rows, write_folder
from sailor.models.spec import ModelSpec
from sailor.units import gib, parse_bytes

PROVENANCE = "sailor.json"
_SHAPE_FREE = {"name": "", "vocab_size": 0, "vocab_padding": 0}


def run(config: Config, console: Console) -> int:
    """Export, and say where to and how it is loaded.

    Raises DataError: E514 no such architecture, E515 it cannot be written, E516 the checkpoint is
    none or damaged; ConfigError E517 when the folder holds something else.
    """
    found = target(config)
    folder = _folder(config, found)
    provenance = _provenance(config, found)
    there = _there(folder, provenance)
    if not there:
        with console.waiting("reading the checkpoint from end to end"):
            check_whole(found.checkpoint)
        try:
            with console.waiting(f"writing {folder}") as tell:
                _export(config, found, folder, provenance, tell)
        except CorruptSnapshot as error:
            raise damaged(found.checkpoint, str(error)) from error
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    console.print(
        f"{found.run} at step {found.step:,} {'is there already' if there else 'exported'}: "
        f"{folder}   {gib(size)}\n{_how_to_load(config, folder)}",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    console.document(
        {
            "action": "export",
            "run": found.run,
            "step": found.step,
            "checkpoint": str(found.checkpoint),
            "format": config.export.format.value,
            "directory": str(folder),
            "bytes": size,
            "written": not there,
        }
    )
    return 0


def _folder(config: Config, found: Target) -> Path:
    if config.export.directory is not None:
        return Path(config.export.directory).expanduser().absolute()
    kind = config.export.format.value
    return (found.folder / "export" / f"{kind}-step-{found.step:08d}").absolute()


def _provenance(config: Config, found: Target) -> dict[str, Any]:
    """What an export is of; the same for the same bytes."""
    wish = config.export
    try:
        marker = (found.checkpoint / COMPLETE).read_text().strip()
    except OSError as error:
        raise damaged(found.checkpoint, f"it is not complete: {error}") from error
    return {
        "run": found.run,
        "step": found.step,
        "checkpoint": marker,
        "format": wish.format.value,
        "dtype": wish.dtype.value,
        "max_shard": parse_bytes(wish.max_shard),
    }


def _there(folder: Path, provenance: Mapping[str, Any]) -> bool:
    """Whether this very export is in the folder. Raises ConfigError E517 for anything else there.

    An export in progress goes by another name, so what is in the folder is whole.
    """
    if not folder.exists():
        return False
    try:
        found = json.loads((folder / PROVENANCE).read_text())
    except (OSError, ValueError):
        found = None
    if found == provenance:
        return True
    raise ConfigError(
        f"{folder} is there already, and is something else", code="E517", where=str(folder),
        why="it is no export of Sailor" if found is None else f"it is {found}",
        fix="export.directory=ANOTHER/FOLDER   or remove that one",
    )  # fmt: skip


class _Counted:
    """Weights that say how far they have been read."""

    def __init__(self, weights: Rows, tell: Told, *, total: int) -> None:
        self._weights, self._tell, self._total = weights, tell, total
        self._seen: set[str] = set()

    def rows(self, tensor: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        self._seen.add(tensor)
        self._tell(len(self._seen), self._total)
        return self._weights.rows(tensor, start, stop)


def _export(
    config: Config, found: Target, folder: Path, provenance: dict[str, Any], tell: Told
) -> None:  # fmt: skip
    spec = found.spec
    weights = CheckpointWeights(found.checkpoint, spec=spec)
    label = (json.dumps(provenance, indent=1) + "\n").encode()
    if config.export.format is ExportFormat.dcp:
        _export_dcp(folder, spec=spec, weights=weights, label=label)
        return
    write_folder(
        folder, spec=spec, config=_model_config(found),
        weights=_Counted(weights, tell, total=len(spec.tensors)),
        dtype=config.export.dtype.value, max_shard_bytes=parse_bytes(config.export.max_shard),
        files={**_files(found.folder / TOKENIZER), **_generation(found), PROVENANCE: label},
    )  # fmt: skip


def _export_dcp(
    folder: Path, *, spec: ModelSpec, weights: CheckpointWeights, label: bytes
) -> None:  # fmt: skip
    from sailor.models.dcp import write_dcp  # torch

    rows = {tensor.name: tensor.shape[0] for tensor in spec.tensors}
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was ended
    try:
        write_dcp(
            partial, spec=spec, read=lambda kind, name: weights.read(kind, name, 0, rows[name])
        )
        (partial / PROVENANCE).write_bytes(label)
        partial.rename(folder)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}", code="E515", where=str(folder), why=str(error),
            fix="export.directory=/ANOTHER/DISK/FOLDER   or   make room",
        ) from error  # fmt: skip
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _model_config(found: Target) -> dict[str, Any]:
    """config.json: that of the model the run began as, if it is still that model."""
    made = config_of(found.spec)
    origin = found.folder / ORIGIN / CONFIG
    if origin.exists():
        config: dict[str, Any] = json.loads(origin.read_text())
        if _shape(spec_of(config, name="")) == _shape(found.spec):
            return config
    return {**made, **_ends(found)}


def _shape(spec: ModelSpec) -> dict[str, Any]:
    """What makes two models compute the same."""
    return {**asdict(spec), **_SHAPE_FREE, "vocab_size": spec.num_tokens}


def _generation(found: Target) -> dict[str, bytes]:
    """generation_config.json: that of the model the run began as, or where a text ends."""
    kept = _files(found.folder / ORIGIN).get(GENERATION)
    if kept is not None:
        return {GENERATION: kept}
    return {GENERATION: (json.dumps(_ends(found), indent=2) + "\n").encode()}


def _ends(found: Target) -> dict[str, Any]:
    """The token that ends a text also begins one, and nothing is padding."""
    end = read_tokens(found.folder).end_of_text
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a folder of the run; none when it is not there."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _how_to_load(config: Config, folder: Path) -> str:
    if config.export.format is ExportFormat.dcp:
        return f"start a run from it   python run.py model=SAME model.init_from={folder}"
    return f'load it with   AutoModelForCausalLM.from_pretrained("{folder}")'
