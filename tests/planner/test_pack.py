"""Seating replicas that differ, and sharing the batch out exactly."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.planner.pack import Group, Option, pack, share_out
from sailor.planner.timing import PipelineSeconds

A_PIPELINE = st.builds(
    lambda pace, more: PipelineSeconds(fill=pace + more, pace=pace),
    st.sampled_from([0.5, 1.0, 1.5, 2.0]),
    st.sampled_from([0.0, 0.5, 2.0]),
)


def step(pipelines, shares):
    return max(p.seconds(n) for p, n in zip(pipelines, shares, strict=True) if n)


@given(st.lists(A_PIPELINE, min_size=1, max_size=3), st.integers(1, 9))
def test_shares_are_exact_and_as_good_as_brute_force(pipelines, num_microbatches):
    shares = share_out(pipelines, num_microbatches=num_microbatches)
    assert sum(shares) == num_microbatches
    ways = product(range(num_microbatches + 1), repeat=len(pipelines))
    best = min(step(pipelines, way) for way in ways if sum(way) == num_microbatches)
    assert step(pipelines, shares) == pytest.approx(best, rel=1e-9)


def test_the_faster_replica_takes_more_of_the_batch():
    fast, slow = PipelineSeconds(fill=1.0, pace=1.0), PipelineSeconds(fill=2.0, pace=2.0)
    assert share_out([fast, slow], num_microbatches=9) == (6, 3)


def test_five_gpus_are_used_by_two_replicas_of_different_depth():
    two = Option(num_gpus=2, pipeline=PipelineSeconds(fill=4.0, pace=2.0))
    three = Option(num_gpus=3, pipeline=PipelineSeconds(fill=4.0, pace=1.4))
    seated = pack([Group(num_gpus=5, options=(two, three))], num_microbatches=16)
    assert sorted(s.option for s in seated) == [0, 1]
    assert sum(s.num_microbatches for s in seated) == 16


def test_nothing_is_seated_where_nothing_has_room():
    four = Option(num_gpus=4, pipeline=PipelineSeconds(fill=1.0, pace=1.0))
    assert pack([Group(num_gpus=3, options=(four,))], num_microbatches=8) == ()


@given(
    gpus=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    options=st.lists(st.tuples(st.integers(1, 3), A_PIPELINE), min_size=1, max_size=3),
    num_microbatches=st.integers(1, 8),
)
def test_the_seating_is_as_good_as_brute_force(gpus, options, num_microbatches):
    offered = tuple(Option(num_gpus=g, pipeline=p) for g, p in options)
    groups = [Group(num_gpus=number, options=offered) for number in gpus]
    seated = pack(groups, num_microbatches=num_microbatches)

    def sets(number):
        for size in range(number + 1):
            for chosen in combinations_with_replacement(offered, size):
                if sum(o.num_gpus for o in chosen) <= number:
                    yield chosen

    best = None
    for chosen in product(*(list(sets(number)) for number in gpus)):
        pipelines = [o.pipeline for part in chosen for o in part]
        if pipelines:
            time = step(pipelines, share_out(pipelines, num_microbatches=num_microbatches))
            best = time if best is None else min(best, time)
    if best is None:
        assert seated == ()
        return
    for index, number in enumerate(gpus):
        used = sum(offered[s.option].num_gpus for s in seated if s.group == index)
        assert used <= number
    assert sum(s.num_microbatches for s in seated) == num_microbatches
    found = max(offered[s.option].pipeline.seconds(s.num_microbatches) for s in seated)
    # the seating is settled to one part in ten thousand of the time
    assert found <= best * (1 + 2e-4)
