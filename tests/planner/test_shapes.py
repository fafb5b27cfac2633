"""What lets the search skip work: bounds that must hold, solutions that must be those of a scan."""

from __future__ import annotations

import random

import pytest

from sailor.cluster.gpu import GPU_TYPES
from sailor.planner.memory import Cut, memory_coefficients, most_blocks, stage_bytes
from sailor.planner.pack import Group, Option, most_worth, pack
from sailor.planner.question import Space
from sailor.planner.shapes import Shapes
from sailor.planner.timing import PipelineSeconds
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.profile import Numerics
from tests.helpers.builders import a_spec
from tests.helpers.planning import a_gpu, a_job, a_machine, a_network, a_pool, an_offer

A_BIT_MORE = 1 + 1e-8  # sums in another order


def some_shapes(*, gpu, gpus: int = 4, sharding=(False, True), batch: int = 16) -> Shapes:
    spec = a_spec(num_layers=6, hidden_size=64, ffn_hidden_size=256)
    machine = a_machine("m", gpu=gpu, gpus=gpus)
    pool = a_pool(an_offer(machine, count=4))
    job = a_job(batch=batch)
    space = Space(
        tensor_parallel_degrees=(1, 2), microbatch_sizes=(1, 2, 4), optimizer_sharding=sharding
    )
    profile = AnalyticProfile(spec=spec, sequence_length=16, numerics=job.numerics)
    return Shapes(
        machine, zone="a", spec=spec, job=job, space=space, profile=profile,
        network=a_network(pool),
    )  # fmt: skip


def fitted_ones(shapes: Shapes, num_gpus: int):
    """(index, replicas, most microbatches, fitted) of every shape that fits."""
    replicas = shapes.replicas(num_gpus=num_gpus)
    for index, shape in enumerate(shapes.all):
        count = int(replicas[index])
        if count:
            most = -(-shapes.job.global_batch_size // shape.microbatch_size // count)
            fitted = shapes.fit(index, num_replicas=count, num_microbatches=most)
            if fitted is not None:
                yield index, count, most, fitted


@pytest.mark.parametrize("gpu", [a_gpu(memory_mib=2.0), a_gpu(memory_mib=40.0), "A100-40"])
@pytest.mark.parametrize("num_gpus", [3, 8, 16])
def test_no_shape_is_faster_than_its_bound_says(gpu, num_gpus):
    shapes = some_shapes(gpu=gpu)
    bounds = shapes.step_bound(num_gpus=num_gpus)
    seen = 0
    for index, count, most, fitted in fitted_ones(shapes, num_gpus):
        seconds = shapes.step_seconds(fitted, num_replicas=count, num_microbatches=most)
        assert bounds[index] <= seconds * A_BIT_MORE
        assert shapes.pace[index] <= fitted.pipeline.pace * A_BIT_MORE
        assert shapes.fill[index] == pytest.approx(fitted.pipeline.fill, rel=1e-9)
        seen += 1
    assert seen


def test_packing_is_skipped_only_where_it_could_not_win():
    shapes = some_shapes(gpu=a_gpu(memory_mib=4.0), sharding=(False,))
    for size in (1, 2, 4):
        samples = shapes.job.global_batch_size // size
        options = [
            fitted
            for index, shape in enumerate(shapes.all)
            if shape.microbatch_size == size
            and (fitted := shapes.fit_unsharded(index, num_microbatches=samples)) is not None
        ]
        for num_gpus in (2, 3, 5, 7):
            group = Group(
                num_gpus=num_gpus,
                options=tuple(
                    Option(num_gpus=f.shape.num_gpus, pipeline=f.pipeline) for f in options
                ),
            )
            seated = pack([group], num_microbatches=samples)
            if not seated:
                continue
            rows = [options[s.option] for s in seated]
            ring = shapes.ring_of(rows)
            shared = max(
                shapes.shared_bound(row, num_replicas=len(rows), ring=ring) for row in rows
            )
            pipelines = max(
                row.pipeline.seconds(s.num_microbatches)
                for row, s in zip(rows, seated, strict=True)
            )
            # So much time is enough, for this very seating shows it.
            alone, several = shapes.most_microbatches(
                (pipelines + shared) * A_BIT_MORE, size=size, num_gpus=num_gpus
            )
            assert max(alone, several) >= samples


def test_a_bar_changes_nothing_about_a_seating_below_it():
    fast = Option(num_gpus=2, pipeline=PipelineSeconds(fill=2.0, pace=1.0))
    slow = Option(num_gpus=1, pipeline=PipelineSeconds(fill=2.5, pace=2.5))
    group = Group(num_gpus=5, options=(fast, slow))
    free = pack([group], num_microbatches=12)
    assert pack([group], num_microbatches=12, bar=100.0) == free
    assert pack([group], num_microbatches=12, bar=1.0) == ()


def test_pieces_of_a_row_are_worth_the_most_together():
    assert most_worth([0, 1, 5, 7, 0, 0]) == 12
    assert most_worth([0]) == 0


def test_the_most_blocks_are_those_of_a_scan():
    r = random.Random(0)
    for _ in range(300):
        spec = a_spec(
            num_layers=r.choice([4, 9, 16]), hidden_size=r.choice([32, 64, 256]),
            ffn_hidden_size=r.choice([128, 512]), tied_embeddings=r.random() < 0.5,
        )  # fmt: skip
        each = memory_coefficients(
            spec, tensor_parallel=r.choice([1, 2]), microbatch_size=r.choice([1, 2, 8]),
            sequence_length=16, recompute=r.random() < 0.5,
            numerics=Numerics(compute_bytes=r.choice([2, 4]), deterministic=r.random() < 0.5),
        )  # fmt: skip
        gpu = a_gpu(memory_mib=r.uniform(0.2, 60))
        if r.random() < 0.3:
            gpu = GPU_TYPES["A100-40"]
        asked = {
            "num_in_flight": r.choice([1, 2, 5]), "num_owners": r.choice([1, 2, 7]),
            "optimizer_sharding": r.random() < 0.5, "gpu": gpu,
        }  # fmt: skip
        first, last = r.random() < 0.5, r.random() < 0.5
        fitting = [
            n
            for n in range(1, spec.num_layers + 1)
            if stage_bytes(each, Cut(num_blocks=n, first=first, last=last), **asked)
            <= gpu.memory_bytes
        ]
        found = most_blocks(each, num_blocks=spec.num_layers, first=first, last=last, **asked)
        assert found == max(fitting, default=0)
