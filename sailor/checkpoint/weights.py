"""The weights of one durable checkpoint, some rows at a time: for export and evaluation. No torch.

Puts boxes together again without holding more than is asked for: files are mapped, only the rows
wanted are copied. Digests are checked by ``store.verify``, which reads a checkpoint once from end
to end; here they are not looked at again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import read_manifest
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import KINDS, Box, cut


class CheckpointWeights:
    """A complete checkpoint of a model, addressed by the model's own tensors."""

    def __init__(self, folder: Path, *, spec: ModelSpec) -> None:
        """``folder`` is one step's. Raises CorruptSnapshot when it is none, or of another model."""
        self._folder = folder
        self.manifest = read_manifest(folder)
        self._boxes = {t.name: cut(t, pieces=self.manifest.pieces) for t in spec.tensors}
        self._file_of = {
            box: name for name, file in self.manifest.files.items() for box in file.boxes
        }
        wanted = {box.name for boxes in self._boxes.values() for box in boxes}
        if wanted != set(self._file_of):
            odd = min(wanted ^ set(self._file_of))
            raise CorruptSnapshot(
                f"the checkpoint is not of a model like {spec.name}: {odd} is in one alone",
                where=str(folder),
            )
        self._open: dict[str, Any] = {}

    def rows(self, tensor: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Weights [start, stop) along the first axis of a tensor. Raises CorruptSnapshot."""
        return self.read(KINDS[0], tensor, start, stop)

    def read(self, kind: str, tensor: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The same of any kind of state: weight, moment1 or moment2."""
        boxes = self._boxes[tensor]
        if boxes[0].axis == 1:  # every box has some columns of all rows
            return np.concatenate([self._slice(kind, b, start, stop) for b in boxes], axis=1)
        overlaps = [
            self._slice(kind, b, max(start - b.offset, 0), min(stop - b.offset, b.extent))
            for b in boxes
            if b.offset < stop and start < b.offset + b.extent
        ]
        return overlaps[0] if len(overlaps) == 1 else np.concatenate(overlaps)

    def _slice(self, kind: str, box: Box, start: int, stop: int) -> npt.NDArray[np.float32]:
        path = self._folder / self._file_of[box.name]
        try:
            if path.name not in self._open:
                self._open[path.name] = safe_open(path, framework="np")
            found: npt.NDArray[np.float32] = self._open[path.name].get_slice(f"{kind}/{box.name}")[
                start:stop
            ]
        except (SafetensorError, OSError) as error:
            raise CorruptSnapshot(f"cannot read {box.name}: {error}", where=str(path)) from error
        return found
