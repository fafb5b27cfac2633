"""The evaluator: its parts add up, and it says what arithmetic says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.cluster.network import Tariff
from sailor.plan import Plan, Replica
from sailor.planner.estimate import estimate
from sailor.planner.price import Rental
from sailor.planner.stage import Seat, boundary_links
from sailor.planner.timing import PipelineSeconds, Ring, ring_seconds, sharing
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.profile import Mark, Numerics, Part
from tests.helpers.builders import a_plan, a_spec, a_stage
from tests.helpers.planning import a_gpu, a_machine, a_network, a_pool, an_offer

NUMERICS = Numerics(compute_bytes=4)


def profile(spec, **changes):
    return AnalyticProfile(spec=spec, sequence_length=16, numerics=NUMERICS, **changes)


def value(plan, *, spec=None, pool=None, tariff=None, rentals=(), **changes):
    spec = spec or a_spec()
    pool = pool or a_pool(an_offer(a_machine(gpu=a_gpu())))
    return estimate(
        plan, spec=spec, profile=profile(spec, **changes), network=a_network(pool, tariff=tariff),
        numerics=NUMERICS, rentals=rentals,
    )  # fmt: skip


def test_one_worker_takes_the_sum_of_its_parts():
    spec, plan = a_spec(), a_plan([], microbatches=[3])
    times = [
        profile(spec).part_seconds(part, gpu=a_gpu(), tensor_parallel=1, microbatch_size=1).total
        for part in (Part.embedding, Part.block, Part.head)
    ]
    found = value(plan)
    compute = next(t.value for t in found.step_terms if t.name == "compute")
    # 3 microbatches; sums in another order
    assert compute == pytest.approx(3 * (times[0] + 4 * times[1] + times[2]), rel=1e-12)
    assert sum(t.value for t in found.step_terms) == found.step_seconds


def test_a_pipeline_fills_once_and_then_keeps_the_pace_of_its_slowest_stage():
    pipeline = PipelineSeconds.of([1.0, 3.0, 2.0])
    assert pipeline.seconds(1) == 6.0
    assert pipeline.seconds(5) == 6.0 + 4 * 3.0


@given(st.floats(0.01, 10), st.floats(0, 10), st.integers(1, 1000))
def test_microbatches_within_is_the_inverse_of_seconds(pace, more, number):
    pipeline = PipelineSeconds(fill=pace + more, pace=pace)
    assert pipeline.microbatches_within(pipeline.seconds(number)) == number


def test_the_slowest_replica_decides():
    even = value(a_plan([2], [2], microbatches=[4, 4]))
    uneven = value(a_plan([2], [2], microbatches=[2, 6]))
    assert uneven.step_seconds > even.step_seconds


def test_a_ring_over_two_owners_sends_every_byte_once():
    link = a_network(a_pool()).between("a", "local", "a", "local")
    seconds = ring_seconds(1e9, num_owners=2, ring=Ring(link=link))
    assert seconds == pytest.approx(2 * link.seconds_per_message + 1e9 / link.bytes_per_second)


def test_alone_there_is_nothing_to_reduce():
    link = a_network(a_pool()).between("a", "local", "a", "local")
    assert ring_seconds(1e9, num_owners=1, ring=Ring(link=link)) == 0.0


def test_rings_share_the_card_unless_their_owners_share_the_machine():
    assert sharing(gpus_per_machine=8, gpus_per_replica=1) == 1.0
    assert sharing(gpus_per_machine=8, gpus_per_replica=2) == 2.0
    assert sharing(gpus_per_machine=8, gpus_per_replica=8) == 8.0
    assert sharing(gpus_per_machine=8, gpus_per_replica=16) == 8.0


def test_replicas_of_a_machine_share_its_card_from_pool_to_pool_and_not_inside_one():
    """Eight GPUs a machine: as many replicas send at once as fit it; inside a pool a replica ends
    where the next begins, and one alone sends on to the next machine."""
    kind = a_machine("big", gpus=8)
    network = a_network(a_pool(an_offer(kind, zone="a"), an_offer(kind, zone="b", region="far")))

    def rates(*seats: tuple[str, int]) -> list[float]:
        links = boundary_links(
            [Seat(zone=zone, machine_type="big", tensor_parallel=tp) for zone, tp in seats], network
        )
        return [link.bytes_per_second for link in links]

    inside = network.inside("big").bytes_per_second
    near = network.between("a", "big", "a", "big").bytes_per_second
    far = network.between("a", "big", "b", "big").bytes_per_second
    assert rates(("a", 1), ("b", 1)) == [far / 8]
    assert rates(("a", 4), ("b", 4)) == [far / 2]
    assert rates(("a", 8), ("b", 8)) == [far]
    assert rates(("a", 8), ("b", 1)) == [far / 8]
    assert rates(("a", 4), ("a", 4), ("b", 8)) == [inside, far]
    assert rates(("a", 8), ("a", 8)) == [near]


def test_equal_replicas_share_one_set_of_stage_estimates():
    assert len(value(a_plan([2], [2])).stages) == 2


def test_egress_is_billed_between_zones_only():
    pool = a_pool(
        an_offer(a_machine(gpu=a_gpu()), zone="a"), an_offer(a_machine(gpu=a_gpu()), zone="b")
    )
    tariff = Tariff(between_zones=0.01, source="test")
    stages = (a_stage(0, 2, zone="a"), a_stage(2, 4, zone="b"))
    crossing = Plan(
        model="gpt_test", sequence_length=16,
        replicas=(Replica(stages=stages, num_microbatches=5, microbatch_size=2),),
    )  # fmt: skip
    assert value(a_plan([2]), pool=pool, tariff=tariff).egress_dollars_per_step == 0
    found = value(crossing, pool=pool, tariff=tariff)
    boundary_bytes = 2 * 16 * 32 * 4  # samples, tokens, width, fp32
    # five microbatches forward and back, and the tied token matrix around a ring of two zones
    tied = 64 * 32 * 4  # both zones send it once: 2 (D - 1) / D = 1
    expected = (5 * 2 * boundary_bytes + 2 * tied) / 1e9 * 0.01
    assert found.egress_dollars_per_step == pytest.approx(expected, rel=1e-9)


def test_dollars_follow_from_rent_and_time():
    offer = an_offer(a_machine(gpu=a_gpu()), price=2.0)
    found = value(a_plan([]), rentals=(Rental(offer=offer, num_machines=3),))
    assert found.dollars_per_hour == 6.0
    assert found.dollars_per_step == pytest.approx(6.0 * found.step_seconds / 3600)


def test_a_calibrated_profile_scales_and_says_so():
    spec = a_spec()
    modelled = value(a_plan([], microbatches=[8]), spec=spec)
    calibrated = value(a_plan([], microbatches=[8]), spec=spec, scale=2.0, relative_error=0.1)
    compute = {t.name: t for t in calibrated.step_terms}["compute"]
    assert compute.mark is Mark.calibrated
    assert compute.value == pytest.approx(2 * modelled.step_terms[0].value)
    assert calibrated.step_relative_error < modelled.step_relative_error


def test_recompute_costs_time_and_saves_memory():
    spec = a_spec()
    plain = a_plan([], microbatches=[8])
    replica = plain.replicas[0]
    again = replace(
        plain,
        replicas=(
            replace(replica, stages=tuple(replace(s, recompute=True) for s in replica.stages)),
        ),
    )
    assert value(again, spec=spec).step_seconds > value(plain, spec=spec).step_seconds
