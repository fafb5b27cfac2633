"""action=check: whether everything is there that a run needs, or a checkpoint is what was written.

    python run.py action=check cloud=gcp              what is missing, with a command for each
    python run.py action=check run.name=NAME          a run's newest checkpoint, byte for byte
    python run.py action=check checkpoint=PATH        that checkpoint, also an address of a store

Reads only.
"""

from __future__ import annotations

from actions.console import Console
from actions.readiness import check_place
from actions.target import check_whole, checkpoint_path, damaged, target
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import read_manifest
from sailor.config import Config
from sailor.units import gib


def run(config: Config, console: Console) -> int:
    """Check the checkpoint that is named, or of the run that is; else the place to run in."""
    if checkpoint_path(config) is None and config.run.name is None:
        return check_place(config, console)
    return check_checkpoint(config, console)


def check_checkpoint(config: Config, console: Console) -> int:
    """Check checkpoint.path, or the newest of the run. Raises DataError E516 (exit 5)."""
    named = checkpoint_path(config)
    path = target(config).checkpoint if named is None else named
    with console.waiting("reading the checkpoint from end to end"):
        check_whole(path)
    try:
        manifest = read_manifest(path)
    except CorruptSnapshot as error:
        raise damaged(path, str(error)) from error
    total = sum(file.num_bytes for file in manifest.files.values())
    boxes = sum(len(file.boxes) for file in manifest.files.values())
    console.print(
        f"{path}\nstep {manifest.step:,} of {manifest.model}: {boxes:,} boxes in "
        f"{len(manifest.files)} files, {gib(total)}; every byte is as written",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    console.document(
        {
            "action": "check",
            "checkpoint": str(path),
            "step": manifest.step,
            "model": manifest.model,
            "files": len(manifest.files),
            "boxes": boxes,
            "bytes": total,
        }
    )
    return 0
