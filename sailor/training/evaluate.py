"""Which held-out sequences an evaluation reads, and who reads them. Pure arithmetic, no torch.

The list, and how it is cut into microbatches, depends on the plan's microbatch size alone, so the
held-out loss has the same bits whichever replicas work on it. The last microbatch is filled up with
sequences that are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sailor.data.blend import Blend, given
from sailor.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """``sequences`` [num_microbatches, size]; the first ``num_samples`` of them, flat, count."""

    sequences: npt.NDArray[np.int64]
    num_samples: int

    def share(self, replica: int, *, plan: Plan) -> range:
        """The microbatches a replica works on: as much of them as of the global batch."""
        before = sum(r.num_samples for r in plan.replicas[:replica])
        upto = before + plan.replicas[replica].num_samples
        count = len(self.sequences)
        return range(
            count * before // plan.global_batch_size, count * upto // plan.global_batch_size
        )


def evaluation(plan: Plan, *, eval_samples: int, blend: Blend) -> Evaluation:
    """``eval_samples`` sequences spread evenly over the held-out ones, or all if they are fewer."""
    chosen = held_out_sequences(eval_samples=eval_samples, blend=blend)
    num_samples = len(chosen)
    size = min(replica.microbatch_size for replica in plan.replicas)
    filled = np.resize(chosen, -(-num_samples // size) * size)
    return Evaluation(sequences=filled.reshape(-1, size), num_samples=num_samples)


def held_out_sequences(*, eval_samples: int, blend: Blend) -> npt.NDArray[np.int64]:
    """``eval_samples`` of the held-out sequences, spread evenly, or all if they are fewer.

    Of a mixture each source is asked for its share, at least one, and gives all it has if it has
    fewer.
    """
    asked = given(eval_samples, blend.shares)
    chosen = []
    for start, count, wish in zip(blend.starts, blend.counts, asked, strict=True):
        number = max(1, min(wish, count))
        chosen.append(start + np.arange(number, dtype=np.int64) * count // number)
    return np.concatenate(chosen)
