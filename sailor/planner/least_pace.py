"""No cut of a model has a faster slowest stage than this: a bound for all shapes at once. Pure."""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.shape_space import FloatArray


def least_pace(
    layers: int, stages: FloatArray, *, block: FloatArray, first: FloatArray, last: FloatArray,
    inner: FloatArray, alone: FloatArray,
) -> FloatArray:  # fmt: skip
    """The slowest stage of the best cut into whole blocks, were memory no object.

    ``first``, ``last`` and ``inner`` are what such a stage is busy with besides its blocks,
    ``alone`` a single stage with everything. The answer is one of those plus a number of blocks,
    and whether a pace is enough is monotone in it: three bisections, all shapes at once.
    """

    def enough(pace: FloatArray) -> npt.NDArray[np.bool_]:
        ends = [np.floor((pace - extra) / block + 1e-9) for extra in (first, last)]
        between = np.floor((pace - inner) / block + 1e-9)
        middle = np.where(stages > 2, (stages - 2) * between, 0)
        some = (ends[0] >= 1) & (ends[1] >= 1) & ((between >= 1) | (stages < 3))
        held: npt.NDArray[np.bool_] = some & (ends[0] + ends[1] + middle >= layers)
        return held

    best = np.full(stages.shape, inf)
    for extra in (first, last, inner):
        low, high = np.zeros(stages.shape), np.full(stages.shape, float(layers))
        for _ in range(layers.bit_length() + 1):
            middle = np.floor((low + high) / 2)
            held = enough(extra + middle * block)
            low, high = np.where(held, low, middle), np.where(held, middle, high)
        pace = extra + high * block
        best = np.where(enough(pace), np.minimum(best, pace), best)
    least: FloatArray = np.where(stages == 1, alone, best) * (1 - 1e-9)
    return least
