"""The search: limits are hard, the batch is exact, the answer is the best and always the same."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.cluster.pool import Quota
from sailor.errors import NoFeasiblePlan
from sailor.plan import Plan, Replica, Stage
from sailor.planner.estimate import estimate
from sailor.planner.question import Limits, Objective, Space
from sailor.planner.search import machine_counts, search
from sailor.planner.timing import PipelineSeconds
from sailor.profile.analytic import AnalyticProfile
from sailor.units import MIB
from tests.helpers.builders import a_spec
from tests.helpers.planning import a_gpu, a_job, a_machine, a_network, a_pool, an_offer

FASTEST = Objective.max_throughput
CHEAPEST = Objective.min_cost_to_finish


def ask(pool, *, spec=None, job=None, objective=FASTEST, space=None, limits=None):
    return search(
        spec or a_spec(), pool, job=job or a_job(), network=a_network(pool), objective=objective,
        space=space or Space(), limits=limits or Limits(),
    )  # fmt: skip


def a_local_pool(*, memory_mib=8.0, machines=4, gpus=1, price=1.0):
    return a_pool(
        an_offer(
            a_machine(gpu=a_gpu(memory_mib=memory_mib), gpus=gpus), count=machines, price=price
        )
    )


@settings(deadline=None, max_examples=40)
@given(
    memory_mib=st.floats(0.3, 2.0),
    machines=st.integers(1, 5),
    gpus=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([1, 6, 8, 12]),
    quota=st.none() | st.integers(0, 8),
)
def test_no_candidate_breaks_memory_capacity_quota_or_batch(
    memory_mib, machines, gpus, batch, quota
):
    spec, machine = a_spec(), a_machine(gpu=a_gpu(memory_mib=memory_mib), gpus=gpus)
    limit = () if quota is None else (
        Quota(gpu="cpu", region="r", spot=True, limit=quota, metric="gpus"),
    )  # fmt: skip
    pool = a_pool(an_offer(machine, count=machines), quotas=limit)
    try:
        result = ask(pool, spec=spec, job=a_job(batch=batch))
    except NoFeasiblePlan:
        return
    for candidate in result.candidates:
        plan = candidate.plan
        assert plan.problems(spec) == []
        assert plan.global_batch_size == batch
        assert candidate.estimate.fits
        assert all(s.peak_bytes <= memory_mib * MIB for s in candidate.estimate.stages)
        rented = sum(r.num_machines for r in candidate.rentals)
        assert rented <= machines
        assert plan.num_gpus <= rented * gpus
        if quota is not None:
            assert rented * gpus <= quota


def test_the_same_question_has_the_same_answer():
    pool = a_local_pool(machines=5, gpus=2)
    first, again = ask(pool), ask(pool)
    assert [c.plan.to_json() for c in first.candidates] == [
        c.plan.to_json() for c in again.candidates
    ]


def test_the_fitted_step_is_what_the_evaluator_says():
    """The search's own arithmetic is a short cut, never a second opinion."""
    from sailor.planner.shapes import Shapes

    pool = a_local_pool(machines=4, gpus=4, memory_mib=16)
    spec, job, network = a_spec(), a_job(batch=16), a_network(pool)
    profile = AnalyticProfile(spec=spec, sequence_length=16, numerics=job.numerics)
    shapes = Shapes(
        pool.offers[0].machine_type, zone="a", spec=spec, job=job,
        space=Space(tensor_parallel_degrees=(1, 2, 4)), profile=profile, network=network,
    )  # fmt: skip
    bounds = shapes.step_bound(num_gpus=16)
    replicas = shapes.replicas(num_gpus=16)
    checked = 0
    for index, shape in enumerate(shapes.all):
        count = int(replicas[index])
        if count == 0:
            continue
        most = -(-16 // shape.microbatch_size // count)
        fitted = shapes.fit(index, num_replicas=count, num_microbatches=most)
        if fitted is None or (16 // shape.microbatch_size) % count:
            continue
        start, stages = 0, []
        for blocks in fitted.counts:
            stages.append(
                Stage(layers=range(start, start + blocks), gpu="cpu", machine_type="local",
                      zone="a", tensor_parallel=shape.tensor_parallel, recompute=shape.recompute)
            )  # fmt: skip
            start += blocks
        replica = Replica(
            stages=tuple(stages), num_microbatches=most, microbatch_size=shape.microbatch_size
        )
        plan = Plan(
            model="gpt_test", replicas=(replica,) * count, sequence_length=16,
            optimizer_sharding=fitted.optimizer_sharding,
        )  # fmt: skip
        value = estimate(plan, spec=spec, profile=profile, network=network, numerics=job.numerics)
        found = shapes.step_seconds(fitted, num_replicas=count, num_microbatches=most)
        assert found == pytest.approx(value.step_seconds, rel=1e-9)
        assert bounds[index] <= found * (1 + 1e-9)
        checked += 1
    assert checked > 20


@settings(deadline=None, max_examples=15)
@given(memory_mib=st.floats(0.3, 1.0), machines=st.integers(1, 4), batch=st.sampled_from([2, 4, 6]))
def test_a_small_pool_is_used_as_well_as_any_enumeration_can(memory_mib, machines, batch):
    """Every partition of the machines into pipelines, every cut, every share of the batch."""
    spec, job = a_spec(num_layers=3), a_job(batch=batch)
    pool = a_local_pool(memory_mib=memory_mib, machines=machines)
    network = a_network(pool)
    profile = AnalyticProfile(spec=spec, sequence_length=16, numerics=job.numerics)
    space = Space(microbatch_sizes=(1,), recompute=(False,), optimizer_sharding=(False,))
    best = None
    for depths in _partitions(machines, spec.num_layers):
        for cuts in product(*(list(_cuts(spec.num_layers, depth)) for depth in depths)):
            for shares in _shares(batch, len(depths)):
                plan = _plan(cuts, shares)
                value = estimate(
                    plan, spec=spec, profile=profile, network=network, numerics=job.numerics
                )
                if value.fits and (best is None or value.step_seconds < best):
                    best = value.step_seconds
    try:
        found = ask(pool, spec=spec, job=job, space=space).best.estimate.step_seconds
    except NoFeasiblePlan:
        assert best is None
        return
    assert best is not None
    assert found == pytest.approx(best, rel=2e-3)  # reduction is not weighed when seating


def _partitions(total, deepest):
    """Multisets of depths that use at most ``total`` machines."""

    def of(left, largest):
        yield ()
        for depth in range(1, min(left, largest) + 1):
            for rest in of(left - depth, depth):
                yield (depth, *rest)

    return [p for p in of(total, deepest) if p]


def _cuts(blocks, depth):
    if depth == 1:
        yield (blocks,)
        return
    for first in range(1, blocks - depth + 2):
        for rest in _cuts(blocks - first, depth - 1):
            yield (first, *rest)


def _shares(batch, replicas):
    if replicas == 1:
        yield (batch,)
        return
    for first in range(1, batch - replicas + 2):
        for rest in _shares(batch - first, replicas - 1):
            yield (first, *rest)


def _plan(cuts, shares):
    replicas = []
    for counts, share in zip(cuts, shares, strict=True):
        start, stages = 0, []
        for count in counts:
            stages.append(
                Stage(layers=range(start, start + count), gpu="cpu", machine_type="local", zone="a")
            )
            start += count
        replicas.append(Replica(stages=tuple(stages), num_microbatches=share, microbatch_size=1))
    return Plan(model="gpt_test", replicas=tuple(replicas), sequence_length=16)


def test_the_cheapest_plan_rents_no_idle_machine():
    result = ask(a_local_pool(machines=4, price=1.0), objective=CHEAPEST)
    best = result.best
    assert sum(r.num_gpus for r in best.rentals) == best.plan.num_gpus


def test_cheapest_and_fastest_differ_when_more_machines_pay_less_well():
    pool = a_local_pool(machines=4)
    cheap = ask(pool, objective=CHEAPEST).best
    fast = ask(pool, objective=FASTEST).best
    assert cheap.estimate.dollars_per_step <= fast.estimate.dollars_per_step
    assert fast.estimate.step_seconds <= cheap.estimate.step_seconds


def test_spot_that_is_dearer_than_on_demand_is_named_and_not_used():
    machine = a_machine(gpu=a_gpu())
    pool = a_pool(an_offer(machine, price=3.0, spot=True), an_offer(machine, price=2.0, spot=False))
    result = ask(pool)
    assert not result.best.rentals[0].offer.spot
    assert "dearer than on-demand" in result.warnings[0]


def test_zones_without_a_machine_are_named():
    machine = a_machine(gpu=a_gpu())
    pool = a_pool(
        an_offer(machine, zone="a"), an_offer(machine, zone="empty", count=0),
        an_offer(machine, zone="b", region="full"),
        quotas=(Quota(gpu="cpu", region="full", spot=True, limit=0, metric="gpus"),),
    )  # fmt: skip
    (warning,) = ask(pool).warnings
    assert warning == "no machine to be had: local in empty, local in b (quota)"


def test_regions_that_differ_in_name_alone_have_the_same_plans():
    """They are searched once: what is found for one is moved to the other."""
    fast, slow = (
        a_machine(name, gpu=a_gpu(name=name, memory_mib=2.0, peak_flops_fp32=flops))
        for name, flops in (("fast", 1e11), ("slow", 7e10))
    )

    def region(name, prices=(1.0, 1.0)):
        return [
            an_offer(kind, zone=f"{name}{zone}", region=name, count=2, price=price)
            for zone in "ab"
            for kind, price in zip((fast, slow), prices, strict=True)
        ]

    job = a_job(batch=256)
    one = ask(a_pool(*region("r")), job=job)
    two = ask(a_pool(*region("r"), *region("s")), job=job)
    times = {name: set() for name in "rs"}
    for candidate in two.candidates:
        (name,) = {stage.zone[0] for _, _, stage in candidate.plan.stages()}
        assert {rental.offer.zone.region for rental in candidate.rentals} == {name}
        times[name].add((candidate.estimate.step_seconds, candidate.plan.describe()))
    assert times["r"] == times["s"]
    assert two.best.estimate.step_seconds == one.best.estimate.step_seconds
    # A region at another price is not the same: it has plans, and prices, of its own.
    dearer = ask(a_pool(*region("r"), *region("s", (3.0, 1.0))), job=job, objective=CHEAPEST)
    assert {rental.offer.zone.region for rental in dearer.best.rentals} == {"r"}


def test_two_kinds_of_machine_train_together_with_shares_to_their_speed():
    fast = a_machine("fast", gpu=a_gpu(memory_mib=8), network_bytes_per_second=1e11)
    slow_gpu = a_gpu(memory_mib=8, name="cpu2", peak_flops=4e10, peak_flops_fp32=4e10,
                     memory_bytes_per_second=4e9)  # fmt: skip
    slow = a_machine("slow", gpu=slow_gpu, network_bytes_per_second=1e11)
    pool = a_pool(an_offer(fast, count=2), an_offer(slow, count=2))
    best = ask(pool, spec=a_spec(hidden_size=128, head_size=32, ffn_hidden_size=512, num_layers=4),
               job=a_job(batch=64)).best  # fmt: skip
    shares = {r.stages[0].machine_type: r.num_microbatches * r.microbatch_size
              for r in best.plan.replicas}  # fmt: skip
    assert set(shares) == {"fast", "slow"}
    assert shares["fast"] > shares["slow"]


def test_zones_that_cannot_reach_each_other_are_never_mixed():
    machine = a_machine(gpu=a_gpu())
    other = a_machine("other", gpu=a_gpu())
    pool = a_pool(
        an_offer(machine, zone="a", network="one"), an_offer(other, zone="b", network="two")
    )
    for candidate in ask(pool, job=a_job(batch=64)).candidates:
        assert len({s.zone for _, _, s in candidate.plan.stages()}) == 1


def test_the_layout_asked_for_is_kept():
    result = ask(a_local_pool(machines=4), space=Space(num_stages=2, num_replicas=2))
    assert all(r.num_stages == 2 for r in result.best.plan.replicas)
    assert len(result.best.plan.replicas) == 2


@pytest.mark.parametrize(
    ("depth", "width", "each"),
    [(4, None, 2), (3, 1, 2), (None, 3, 2), (2, 3, 3), (4, 20, 40), (3, None, 40), (None, 21, 40)],
)
def test_the_layout_asked_for_is_kept_over_machines_of_two_zones(depth, width, each):
    """A pipeline that no zone can hold alone, or as many replicas as both hold together; with few
    machines, of which all fleets are looked at, and with more."""
    kinds = [a_machine(name, gpu=a_gpu(name=name, memory_mib=8.0)) for name in ("one", "two")]
    pool = a_pool(
        *(
            an_offer(kind, zone=zone, count=each)
            for kind, zone in zip(kinds, "ab", strict=True)
        )
    )  # fmt: skip
    space = Space(num_stages=depth, num_replicas=width)
    result = ask(pool, spec=a_spec(num_layers=6), job=a_job(batch=256), space=space)
    for candidate in result.candidates:
        assert depth is None or {r.num_stages for r in candidate.plan.replicas} == {depth}
        assert width is None or len(candidate.plan.replicas) == width
    needed = (depth or 1) * (width or 1)
    if needed > each:
        assert len({stage.zone for _, _, stage in result.best.plan.stages()}) == 2


def test_replicas_that_are_too_many_for_the_machines_are_refused_with_what_each_needs():
    with pytest.raises(NoFeasiblePlan) as refused:
        ask(a_local_pool(machines=4, memory_mib=0.2), space=Space(num_replicas=3))
    assert "pp1" in (refused.value.why or "")
    assert refused.value.where == "planner.data_parallel=3"
    assert "planner.data_parallel=null" in (refused.value.fix or "")


def test_counts_grow_ever_wider_apart_and_end_with_the_most():
    assert machine_counts(5) == (1, 2, 3, 4, 5)
    assert machine_counts(20) == (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20)
    assert machine_counts(0) == ()


def test_a_pipeline_of_one_stage_has_no_bubble():
    assert PipelineSeconds.of([2.0]).seconds(3) == 6.0


def test_twin_zones_of_one_region_are_used_together():
    """Two zones alike in everything offer twice the machines of one: half the fleet is no limit."""
    machine = a_machine(gpu=a_gpu(memory_mib=8.0))
    pool = a_pool(an_offer(machine, zone="a", count=2), an_offer(machine, zone="b", count=2))
    # A batch large enough that four machines are worth their gradient reduction.
    best = ask(pool, job=a_job(batch=256)).best
    assert {rental.offer.zone.name: rental.num_machines for rental in best.rentals} == {
        "a": 2,
        "b": 2,
    }
    assert best.plan.num_gpus == 4
