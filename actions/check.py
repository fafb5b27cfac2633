"""action=check: whether a durable checkpoint is what was written, byte for byte. Reads only."""

from __future__ import annotations

from actions.console import Console
from actions.target import check_whole, checkpoint_path, damaged, target
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import read_manifest
from sailor.config import Config
from sailor.units import gib


def run(config: Config, console: Console) -> int:
    """Check checkpoint.path, or the newest of the run. Raises DataError E516 (exit 5)."""
    path = checkpoint_path(config) or target(config).checkpoint
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
