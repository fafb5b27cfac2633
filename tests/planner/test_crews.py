"""Shares of a batch: to a sample, and the same by arrays as one by one."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from sailor.planner.costs import Template, Way
from sailor.planner.crews import exact_shares, fewer, share_crews
from sailor.planner.dealing import taken_away
from sailor.planner.timing import PipelineSeconds
from sailor.planner.whole_rounds import Pipelines


def a_template(*, size: int, fill: float, pace: float) -> Template:
    way = Way(
        index=0, site=0, tensor_parallel=1, microbatch_size=size, recompute=False, block=1.0,
        first=0.0, last=0.0,
    )  # fmt: skip
    return Template((way,), (1,), PipelineSeconds(fill=fill, pace=pace), (1,))


def some_crews(r: random.Random) -> list[tuple[Template, int]]:
    crews = []
    for _ in range(r.choice([1, 2, 3])):
        pace = r.uniform(1, 4)
        fill = pace * r.choice([1.0, 1.0, r.uniform(1, 5)])
        template = a_template(size=r.choice([1, 2, 3, 6]), fill=fill, pace=pace)
        crews.append((template, r.choice([1, 2, 5])))
    return crews


def seconds_of(crews, shares) -> float:
    return max(t.pipeline.seconds(n) for (t, _), n in zip(crews, shares, strict=True) if n)


def test_shares_take_the_least_time_of_all_that_hold_the_batch():
    """A crew whose first microbatch ended after the time of parts of microbatches was sent away,
    although with whole ones nobody is sooner: 512 fast replicas beside 512 slow ones stood idle."""
    for seed in range(60):
        r = random.Random(seed)
        crews, batch = some_crews(r), r.choice([4, 9, 16])
        shares = share_crews(crews, batch=batch)
        sizes = [t.microbatch_size * count for t, count in crews]
        best = min(
            seconds_of(crews, some)
            for some in product(*(range(batch // size + 2) for size in sizes))
            if sum(n * size for n, size in zip(some, sizes, strict=True)) >= batch
        )
        assert seconds_of(crews, shares) == pytest.approx(best, rel=1e-9), seed


def test_sets_of_crews_by_arrays_take_as_long_as_one_by_one():
    r = random.Random(0)
    sets = [some_crews(r) for _ in range(80)]
    one_by_one = [seconds_of(crews, share_crews(crews, batch=24)) for crews in sets]
    half = Pipelines.of(sets[:40]), Pipelines.of(sets[40:])
    assert np.concatenate([each.seconds(24) for each in half]) == pytest.approx(one_by_one)
    rows = np.arange(40)
    beside = half[0].beside(half[1], mine=rows, others=rows).seconds(24)
    both = [a + b for a, b in zip(sets[:40], sets[40:], strict=True)]
    assert beside == pytest.approx([seconds_of(c, share_crews(c, batch=24)) for c in both])


def test_what_is_taken_away_is_exact_wherever_it_can_be():
    for seed in range(200):
        r = random.Random(seed)
        sizes = [r.choice([2, 3, 4, 5, 6, 9]) for _ in range(r.choice([1, 2, 3]))]
        spare = [r.randrange(5) for _ in sizes]
        excess = r.randrange(20)
        able = any(
            sum(n * size for n, size in zip(some, sizes, strict=True)) == excess
            for some in product(*(range(n + 1) for n in spare))
        )
        taken = taken_away(sizes, spare, excess)
        assert (taken is not None) == able, seed
        if taken is not None:
            assert sum(n * size for n, size in zip(taken, sizes, strict=True)) == excess, seed
            assert all(0 <= n <= most for n, most in zip(taken, spare, strict=True)), seed


def test_sizes_that_do_not_divide_the_batch_add_up_together_or_not_at_all():
    six, two = (a_template(size=size, fill=1.0, pace=1.0) for size in (6, 2))
    assert exact_shares([(six, 2), (two, 2)], batch=16) == (1, 1)
    assert exact_shares([(six, 2)], batch=16) is None


def test_replicas_that_do_more_than_the_batch_are_left_out():
    """616 replicas with 6 samples and 616 with one are more than 4,096: a microbatch to take away
    there is not, so all took another round, or the slower ones were not looked at."""
    fast, slow = a_template(size=6, fill=2.0, pace=2.0), a_template(size=1, fill=1.9, pace=1.9)
    crews = fewer([(fast, 616), (slow, 616)], batch=4096)
    assert crews == [(fast, 616), (slow, 400)]
    assert exact_shares(crews, batch=4096) == (1, 1)
