"""The weights of one durable checkpoint, some rows at a time: for export and evaluation. No torch.

Puts boxes together again without holding more than is asked for: only the rows wanted are read, and
files are not mapped, for a mapped file counts as memory of whoever looks at it. Digests are checked
by ``store.verify``, which reads a checkpoint once from end to end; here they are not looked at
again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import Reader
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import KINDS, Box, cut


class CheckpointWeights:
    """A complete checkpoint of a model, addressed by the model's own tensors."""

    def __init__(self, folder: Path, *, spec: ModelSpec) -> None:
        """``folder`` is one step's. Raises CorruptSnapshot when it is none, or of another model."""
        self._reader = Reader(folder)
        self.manifest = self._reader.manifest
        self._boxes = {t.name: cut(t, pieces=self.manifest.pieces) for t in spec.tensors}
        there = {box for file in self.manifest.files.values() for box in file.boxes}
        wanted = {box.name for boxes in self._boxes.values() for box in boxes}
        if wanted != there:
            odd = min(wanted ^ there)
            raise CorruptSnapshot(
                f"the checkpoint is not of a model like {spec.name}: {odd} is in one alone",
                where=str(folder),
            )

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
        return self._reader.rows(kind, box.name, start, stop)
