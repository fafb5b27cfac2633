"""Published results, found again: by the published rules, by our clockwork, by our life cycle."""

import pytest

from benchmarks.goodput_published import report
from sailor.simulate.artifact import Published, published_rate
from tests.helpers.simulation import SHARED, needs_traces


@needs_traces
def test_published_results_are_reproduced_within_ten_percent():
    """The artifact's rules on all rows; our own rules where no peculiarity of the original decides;
    the runtime's life cycle where machines only leave."""
    found = report(SHARED)
    assert len(found["rows"]) >= 80
    assert found["artifact_worst_error"] < 0.05
    assert found["clockwork_worst_error"] < 0.10
    assert found["life_cycle_worst_error"] < 0.02
    assert sum(row["clockwork_counts"] for row in found["rows"]) >= 60
    assert sum("life_cycle" in row for row in found["rows"]) == 25


def published(**changes):
    table = {n: float(n) for n in range(15, 31)}
    fields = {"samples_per_step": 150.0, "samples_per_second": table, "restart_ms": 5_000}
    return Published(**{**fields, **changes})


CROWD = [(0, True, f"n{i}") for i in range(15)]


def test_a_step_is_what_the_table_says_and_starting_does_not_count():
    events = [*CROWD, (145_000, True, "late")]
    # Ten-second steps from 50 s on; the last event is the end of the trace.
    assert published_rate(published(), events) == pytest.approx(15.0)


def test_a_second_timer_stops_training_until_something_happens():
    """Two losses at once start two timers: the first resumes, the second finds nobody waiting."""
    crowd = [(0, True, f"n{i}") for i in range(20)]
    later = [(500_000, False, "n5"), (600_000, True, "late")]
    once = published_rate(published(), [*crowd, (100_000, False, "n3"), *later])
    both = [(100_000, False, "n3"), (100_000, False, "n4")]
    assert published_rate(published(), [*crowd, *both, *later]) < 0.4 * once


def test_too_few_machines_for_one_pipeline_train_nothing():
    assert published_rate(published(), [(0, True, f"n{i}") for i in range(11)]) == 0.0
