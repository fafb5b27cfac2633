"""Which held-out sequences are read, and that every one has exactly one reader."""

import numpy as np
import pytest

from sailor.data.blend import Blend, whole
from sailor.plan import Plan
from sailor.training.evaluate import evaluation
from tests.helpers.engine import LENGTH, a_replica


def plan_of(*replicas):
    return Plan(model="m", replicas=replicas, sequence_length=LENGTH)


PLANS = [
    plan_of(a_replica(microbatches=6)),
    plan_of(a_replica(microbatches=5), a_replica(2, microbatches=1)),
    plan_of(*[a_replica(microbatches=1) for _ in range(9)]),
]


@pytest.mark.parametrize("plan", PLANS, ids=[plan.describe() for plan in PLANS])
@pytest.mark.parametrize("eval_samples", [1, 5, 64, 1000])
def test_every_microbatch_has_one_reader_and_every_sequence_counts_once(plan, eval_samples):
    chosen = evaluation(plan, eval_samples=eval_samples, blend=whole(300))
    shares = [chosen.share(replica, plan=plan) for replica in range(len(plan.replicas))]
    assert [m for share in shares for m in share] == list(range(len(chosen.sequences)))
    counted = chosen.sequences.flatten()[: chosen.num_samples]
    assert len(set(counted)) == len(counted) == min(eval_samples, 300)
    assert 0 <= counted.min() <= counted.max() < 300


def test_replicas_do_not_change_what_is_read():
    first, *others = (evaluation(p, eval_samples=37, blend=whole(300)) for p in PLANS)
    assert all(np.array_equal(first.sequences, other.sequences) for other in others)


def test_sequences_are_spread_over_all_that_is_held_out():
    chosen = evaluation(PLANS[0], eval_samples=10, blend=whole(1000))
    assert chosen.sequences.flatten()[:10].tolist() == list(range(0, 1000, 100))


def test_every_source_of_a_mixture_is_asked_for_its_share():
    blend = Blend(counts=(400, 100, 2), shares=(2, 1, 1), keys=(1, 2, 3))
    read = evaluation(PLANS[0], eval_samples=80, blend=blend)
    chosen = read.sequences.flatten()[: read.num_samples]
    assert np.histogram(chosen, bins=[0, 400, 500, 502])[0].tolist() == [40, 20, 2]
    assert len(set(chosen)) == len(chosen)
