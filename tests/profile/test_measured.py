"""Measured times as a profile: what is read off them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sailor.measure.links import fit
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.measured import (
    BadProfile,
    Cell,
    Fit,
    MeasuredProfile,
    Measurement,
    read_measurement,
    shape_digest,
)
from sailor.profile.profile import Mark, Numerics, Part
from tests.helpers.planning import a_gpu, tiny_spec

FP32 = Numerics(compute_bytes=4)


def a_measurement(**changes) -> Measurement:
    cells = tuple(
        Cell(
            part=part.value, tensor_parallel=1, microbatch_size=size, forward=0.001 + 0.002 * size,
            backward=0.004 * size, kept_bytes=0.0,
        )
        for part in Part
        for size in (1, 2, 4)
    )  # fmt: skip
    fields = {
        "model": shape_digest(tiny_spec()), "sequence_length": 16, "compute_bytes": 4,
        "gpu": "cpu", "peak_flops": 1e11, "cells": cells, "update_seconds_per_parameter": 1e-9,
        "point_to_point": Fit(alpha=1e-4, beta=1e-9, worst=0.1), "all_reduce": None,
        "provenance": (("measured", "2026-01-01"),),
    }  # fmt: skip
    return Measurement(**{**fields, **changes})


def a_profile(**changes) -> MeasuredProfile:
    fields = {"measurement": a_measurement(), "spec": tiny_spec(), "numerics": FP32}
    return MeasuredProfile(**{**fields, **changes})


def block_seconds(profile, size, **gpu):
    return profile.part_seconds(
        Part.block, gpu=a_gpu(**gpu), tensor_parallel=1, microbatch_size=size
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_sizes_between_and_beyond_are_read_off_a_straight_line(size):
    seconds = block_seconds(a_profile(), size)
    # The cells lie on one line: rounding alone is tolerated.
    assert seconds.forward == pytest.approx(0.001 + 0.002 * size, rel=1e-12)
    assert seconds.backward == pytest.approx(0.004 * size, rel=1e-12)


def test_half_a_core_takes_twice_as_long():
    whole = block_seconds(a_profile(), 2)
    half = block_seconds(a_profile(), 2, peak_flops_fp32=5e10)
    assert half.total == pytest.approx(2 * whole.total, rel=1e-12)


def test_a_gpu_that_was_not_measured_is_refused_or_answered_from_data_sheets():
    with pytest.raises(KeyError, match="was not measured"):
        block_seconds(a_profile(), 1, name="other")
    sheets = AnalyticProfile(spec=tiny_spec(), sequence_length=16, numerics=FP32)
    answered = block_seconds(a_profile(besides=sheets), 1, name="other")
    assert answered == block_seconds(sheets, 1, name="other")


def test_a_file_gives_back_what_was_written():
    assert read_measurement(a_measurement().to_json()) == a_measurement()


def test_a_scale_marks_the_profile_calibrated():
    assert a_profile().mark is Mark.measured
    assert a_profile(scale=1.2).mark is Mark.calibrated


def test_another_model_and_other_numbers_are_refused():
    with pytest.raises(BadProfile, match="another model"):
        a_profile(spec=tiny_spec(hidden_size=64, ffn_hidden_size=256))
    with pytest.raises(BadProfile, match="4-byte"):
        a_profile(numerics=Numerics(compute_bytes=2))
    a_profile(spec=replace(tiny_spec(), name="the same shape by another name"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: d["cells"][0].update(forward=float("nan")), "forward is nan"),
        (lambda d: d["cells"][0].update(backward=-1.0), "backward is -1.0"),
        (lambda d: d.update(version=0), "version"),
        (lambda d: d.update(cells=[]), "no cells"),
        (lambda d: d.update(peak_flops=0.0), "peak_flops"),
        (lambda d: d.pop("gpu"), "no profile"),
        (lambda d: d["cells"][1].update(kept_bytes=float("inf")), "kept_bytes is inf"),
        (lambda d: d["cells"][2].update(microbatch_size=0), "microbatch_size is 0"),
        (lambda d: d["point_to_point"].update(beta=float("nan")), "point_to_point: beta is nan"),
        (lambda d: d["point_to_point"].update(alpha=-1e-3), "point_to_point: alpha is -0.001"),
        (lambda d: d.update(peak_flops="fast"), "peak_flops is 'fast', no number"),
    ],
)
def test_a_spoiled_file_is_refused_by_name(spoil, words):
    document = json.loads(a_measurement().to_json())
    spoil(document)
    with pytest.raises(BadProfile, match=words):
        read_measurement(json.dumps(document))


def test_links_are_fitted_and_never_negative():
    exact = fit([(size, 1e-4 + 2e-9 * size) for size in (1_000, 100_000, 10_000_000)])
    assert exact["alpha"] == pytest.approx(1e-4, rel=1e-6)
    assert exact["beta"] == pytest.approx(2e-9, rel=1e-6)
    assert exact["worst"] < 1e-6
    falling = fit([(1_000, 2e-3), (100_000, 1e-3)])
    assert falling["beta"] == 0.0
    assert falling["alpha"] > 0
