"""What a measured device is called, and that plans on such GPUs then use what was measured."""

from __future__ import annotations

import pytest

from actions.planning import question
from actions.profile import cuda_device
from sailor.errors import DataError
from sailor.profile.measured import Cell, Measurement, shape_digest
from sailor.profile.profile import Mark, Part
from sailor.units import GIB
from tests.helpers.compose import a_config

CLOUD = (
    "model=gpt_125m", "cloud=gcp", "cloud.machine_types=[a2-highgpu-1g]", "cloud.max_nodes=2",
    "planner.tensor_parallel=1",
)  # fmt: skip
PER_SAMPLE = 0.05  # seconds of a block, far from what any data sheet says


def a_file(folder, *, spec, tokens, gpu):
    cells = tuple(
        Cell(part=part.value, tensor_parallel=1, microbatch_size=size, forward=PER_SAMPLE * size,
             backward=PER_SAMPLE * size, kept_bytes=0.0)
        for part in Part
        for size in (1, 2, 4)
    )  # fmt: skip
    measurement = Measurement(
        model=shape_digest(spec), sequence_length=tokens, compute_bytes=2, gpu=gpu,
        peak_flops=1.0, cells=cells, update_seconds_per_parameter=1e-12, point_to_point=None,
        all_reduce=None, provenance=(("measured", "2026-01-01"),),
    )  # fmt: skip
    path = folder / "profile.json"
    path.write_text(measurement.to_json())
    return path


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ({"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 39.4 * GIB, "count": 8}, "A100-40"),
        # Not in the catalogue: its own name, which plans on one's own machines may have too.
        ({"name": "Tesla K80", "memory_bytes": 11.4 * GIB, "count": 1}, "Tesla K80"),
    ],
)
def test_a_cuda_device_is_called_what_plans_call_it(answer, name):
    """It was called cuda, which no plan ever is on."""
    assert cuda_device(answer).name == name


def test_a_profile_measured_on_a_gpu_is_what_plans_on_that_gpu_are_made_with(tmp_path):
    plain = question(a_config(*CLOUD))
    gpu = cuda_device({"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 39.4 * GIB, "count": 1})
    path = a_file(tmp_path, spec=plain.spec, tokens=plain.job.sequence_length, gpu=gpu.name)
    best = question(a_config(*CLOUD, f"planner.profile={path}")).answer().best
    marks = {term.name: term.mark for term in best.estimate.step_terms}
    assert marks["compute"] is Mark.measured
    sheets = plain.answer().best.estimate
    assert best.estimate.step_seconds > 3 * sheets.step_seconds


def test_a_profile_of_other_sequences_is_refused(tmp_path):
    """Times of short sequences were taken for those of long ones."""
    plain = question(a_config(*CLOUD))
    path = a_file(tmp_path, spec=plain.spec, tokens=17, gpu="A100-40")
    with pytest.raises(DataError, match="cannot be used") as refused:
        question(a_config(*CLOUD, f"planner.profile={path}"))
    assert "sequences of 17" in refused.value.why
