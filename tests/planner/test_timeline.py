"""The order of a step, played on a clock."""

from __future__ import annotations

import pytest

from sailor.planner.timeline import timeline
from sailor.planner.timing import PipelineSeconds


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 5), (2, 3), (4, 4), (4, 9)])
def test_equal_stages_take_what_the_closed_form_says(stages, microbatches):
    slots = timeline(forward=[1.0] * stages, backward=[2.0] * stages, num_microbatches=microbatches)
    assert len(slots) == 2 * stages * microbatches
    # Small whole numbers: sums are exact.
    end = max(slot.end for slot in slots)
    assert end == PipelineSeconds.of([3.0] * stages).seconds(microbatches)


def test_no_stage_does_two_things_at_once_and_a_backward_follows_its_forward():
    slots = timeline(forward=[1.0, 2.5, 1.0], backward=[2.0, 4.0, 3.0], num_microbatches=6)
    for stage in range(3):
        row = [slot for slot in slots if slot.stage == stage]
        assert all(a.end <= b.begin for a, b in zip(row, row[1:], strict=False))
    began = {(s.stage, s.microbatch, s.forward): s for s in slots}
    for (stage, microbatch, forward), slot in began.items():
        if not forward:
            assert slot.begin >= began[stage, microbatch, True].end
        if forward and stage:
            assert slot.begin >= began[stage - 1, microbatch, True].end
