"""What the migration benchmark makes of runs whose machines are moved at a steady rate."""

from dataclasses import replace
from functools import partial

import pytest

from benchmarks.migration_figures import seconds_of
from benchmarks.migration_rebalance import Rebalanced, Stretch, peak_growth
from benchmarks.migration_run import Look, Memory
from tests.test_migration_figures import a_log, a_step


def a_stretch(seconds, *peaks, own=None):
    """One worker, seated all the time; its peak at each step from 1 on, in bytes."""
    looks = tuple(
        Look(step=step, memory={"w": Memory(peak_bytes=peak, own_bytes=(own or peaks)[step - 1])})
        for step, peak in enumerate(peaks, start=1)
    )
    return Stretch(seconds=seconds, looks=looks, stayers={0: "w"})


def test_efficiency_is_what_undisturbed_runs_take_of_the_same_steps():
    found = Rebalanced(
        every=20, times=2, moved=a_stretch(42.0, 1), alone=(a_stretch(39.0, 1), a_stretch(41.0, 1))
    )
    assert found.efficiency == pytest.approx(40 / 42)
    assert found.alone_differ == pytest.approx(2 / 40)
    # 2 s over two moves, at a second a step.
    assert found.lost_steps == pytest.approx(1.0)
    assert found.efficiency_at(20) == pytest.approx(20 / 21)
    assert found.efficiency_at(85) == pytest.approx(85 / 86)


def test_pauses_alone_are_another_measure_and_one_below_nothing_is_none():
    alone = a_stretch(40.0, 1)
    moved = replace(alone, pauses=(0.5, 0.3, 0.4))
    found = Rebalanced(every=20, times=3, moved=moved, alone=(alone, alone))
    assert found.efficiency_by_pauses(40) == pytest.approx(40 / 40.4)
    early = replace(found, moved=replace(alone, pauses=(-0.1,)))
    assert early.efficiency_by_pauses(40) == 1.0


def test_a_run_that_lost_a_machine_is_told_of():
    alone = a_stretch(40.0, 1)
    found = Rebalanced(every=20, times=2, moved=replace(alone, losses=1), alone=(alone, alone))
    assert found.losses == 1


def test_time_counts_from_step_to_step_as_each_was_done_last():
    log = a_log(a_step(1, 1, 1), a_step(2, 1, 2), a_step(5, 2, 2), a_step(6, 2, 3))
    assert seconds_of(log, after=1, until=3) == pytest.approx(5.0)
    assert seconds_of(log, after=2, until=3) == pytest.approx(1.0)


def test_peaks_are_held_against_those_of_an_undisturbed_run_at_the_same_step():
    alone = a_stretch(1.0, 100, 110, 120, 130)
    assert peak_growth(a_stretch(1.0, 100, 110, 120, 130), alone) <= 0.0
    # Above it in the middle only, and hidden at the end.
    raised = a_stretch(1.0, 100, 132, 132, 132)
    assert peak_growth(raised, alone) == pytest.approx(0.1)


def test_what_files_have_mapped_is_told_apart():
    own = partial(peak_growth, own=True)
    alone = a_stretch(1.0, 100, 110, 120, own=(50, 50, 50))
    assert own(a_stretch(1.0, 200, 300, 400, own=(50, 50, 50)), alone) == pytest.approx(0.0)
    assert own(a_stretch(1.0, 100, 110, 120, own=(50, 55, 50)), alone) == pytest.approx(0.1)
