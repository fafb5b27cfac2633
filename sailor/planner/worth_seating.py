"""Which shapes of a pipeline are worth a seat in a row of replicas that differ."""

from __future__ import annotations

import numpy as np

from sailor.planner.shapes import Fitted, Shapes


class WorthSeating:
    """The shapes of one microbatch size that no smaller ones, side by side, stand in for.

    Found in the order of their GPUs and only as far as somebody asks. Unsharded, for how many
    owners there will be is not known yet.
    """

    def __init__(self, shapes: Shapes, size: int) -> None:
        self._shapes = shapes
        self._samples = shapes.job.global_batch_size // size
        usable = np.flatnonzero(shapes.fits & (shapes.microbatch_size == size))
        gpus, pace, fill = (each[usable] for each in (shapes.num_gpus, shapes.pace, shapes.fill))
        order = np.lexsort((usable, fill, pace, gpus))[::-1]
        # The next one last: index, GPUs, pace, fill.
        self._left = list(
            zip(*(each[order].tolist() for each in (usable, gpus, pace, fill)), strict=True)
        )
        self._found: list[Fitted] = []

    def up_to(self, num_gpus: int) -> list[Fitted]:
        """Those that take at most ``num_gpus``."""
        while self._left and self._left[-1][1] <= num_gpus:
            index, gpus, pace, fill = self._left.pop()
            if self._stood_in_for(gpus, pace, fill):
                continue
            fitted = self._shapes.fit_unsharded(index, num_microbatches=self._samples)
            if fitted is not None:
                self._found.append(fitted)
        return [fitted for fitted in self._found if fitted.shape.num_gpus <= num_gpus]

    def _stood_in_for(self, gpus: int, pace: float, fill: float) -> bool:
        return any(
            gpus % other.shape.num_gpus == 0
            and other.pipeline.fill <= fill
            and other.pipeline.pace * other.shape.num_gpus <= pace * gpus
            for other in self._found
        )
