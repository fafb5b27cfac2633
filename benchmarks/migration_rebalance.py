"""Machines moved at a steady rate, against runs that are left alone: time and memory, measured.

Three runs of the same job and length, one after the other: left alone, one machine moved every so
many steps, left alone again. What moves cost is the difference by the clock, whatever they cost it
for; how far the two that were left alone differ says what a difference means on this computer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.migration_figures import changes, seconds_of
from benchmarks.migration_run import Look, Setting, a_job, newest_step, seated
from sailor.observe.events import Event

PAPER_STEPS_BETWEEN_MOVES = 85
"""TrainMover's 32-GPU table rebalances every 10 minutes; of GPT-10B it says that a first iteration
of 44 s is six times a usual one, which makes 82 to 90 iterations in 10 minutes."""
_CALM = 6  # steps before anything is measured: machines have come, standbys are ready


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """The steps of one run that count, and memory of all of it. ``stayers``: workers that had the
    same seat all the time, by rank. ``losses``: times that it was stopped by something else than a
    move, as happens on a computer that is too busy: then nothing that was measured counts."""

    seconds: float
    looks: tuple[Look, ...]
    stayers: Mapping[int, str]
    losses: int = 0
    pauses: tuple[float, ...] = ()  # of each move, in steps of the same run around it


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebalanced:
    """What moving a machine every ``every`` steps, ``times`` times, did to a run."""

    every: int
    times: int
    moved: Stretch
    alone: tuple[Stretch, Stretch]

    @property
    def efficiency(self) -> float:
        """Seconds of the same number of steps: left alone, of those with moves."""
        return self._alone_s / self.moved.seconds

    @property
    def losses(self) -> int:
        """Of all three runs. Where there are any, these figures say nothing of moves."""
        return sum(stretch.losses for stretch in (self.moved, *self.alone))

    @property
    def alone_differ(self) -> float:
        """By what share the two that were left alone differ: no efficiency is known better."""
        one, other = (stretch.seconds for stretch in self.alone)
        return abs(one - other) / self._alone_s

    @property
    def lost_steps(self) -> float:
        """What one move costs, in steps of the runs that were left alone."""
        lost_s = (self.moved.seconds - self._alone_s) / self.times
        return lost_s / (self._alone_s / (self.every * self.times))

    def efficiency_at(self, every: int) -> float:
        """Computed: what it would be with this many steps between moves that cost the same."""
        return every / (every + self.lost_steps)

    def efficiency_by_pauses(self, every: int) -> float:
        """Computed from the pauses of the run with moves alone: what a busier minute did to one of
        the runs is not in it, nor is anything that moves cost at other times."""
        return every / (every + max(0.0, median(self.moved.pauses)))

    @property
    def stayers_peak_growth(self) -> float:
        """The most by which a stayer's peak, at any step, is above its peak at that step in a run
        that is left alone. Both have read the same data and done the same work."""
        return max(peak_growth(self.moved, alone) for alone in self.alone)

    @property
    def stayers_own_growth(self) -> float:
        """The same of memory that is not a file's."""
        return max(peak_growth(self.moved, alone, own=True) for alone in self.alone)

    @property
    def alone_peaks_differ(self) -> float:
        """The same between the two runs that were left alone."""
        one, other = self.alone
        return max(peak_growth(one, other), peak_growth(other, one))

    @property
    def _alone_s(self) -> float:
        return sum(stretch.seconds for stretch in self.alone) / len(self.alone)


def rebalanced(folder: Path, *, nodes: int, every: int, times: int) -> Rebalanced:
    """Three runs, and how they compare."""

    def run(name: str, moves: int) -> Stretch:
        setting = Setting(folder=folder / name, nodes=nodes, standbys=1)
        return _run(setting, every=every, times=times, moves=moves)

    before, moved, after = run("alone", 0), run("moved", times), run("again", 0)
    return Rebalanced(every=every, times=times, moved=moved, alone=(before, after))


def _run(setting: Setting, *, every: int, times: int, moves: int) -> Stretch:
    with a_job(setting) as job:
        job.until_calm(_CALM)
        first, measured = newest_step(job.log), len(job.log)
        what = f"{every * times} steps, {f'moves: {moves}' if moves else 'left alone'}"
        print(f"{setting.nodes} workers, {what} (step {first})", file=sys.stderr, flush=True)
        for number in range(1, times + 1):
            if number <= moves:
                job.move(seated(job.log)[-1])
            job.until_step(first + number * every)
        stayers = _stayers(job.log)
        job.until_step(newest_step(job.log) + 1)  # a look at memory after the last of them
        log, looks = job.log, tuple(job.looks)
        job.stop()
    return Stretch(
        seconds=seconds_of(log, after=first, until=first + times * every),
        looks=looks,
        stayers=stayers,
        losses=sum(not p["planned"] for p in log[measured:] if p.kind == "pause"),
        pauses=tuple(change.gap_steps for change in changes(log) if change.planned),
    )  # fmt: skip


def peak_growth(moved: Stretch, alone: Stretch, *, own: bool = False) -> float:
    """See ``Rebalanced.stayers_peak_growth``. Negative where all peaks are lower."""
    worst = -1.0
    for rank, worker in moved.stayers.items():
        steady = _highest(alone, alone.stayers[rank], own=own)
        for step, highest in _highest(moved, worker, own=own):
            # A step's memory is mapped a little before the step is in the log.
            level = next((least for s, least in steady if s > step), steady[-1][1])
            worst = max(worst, highest / level - 1.0)
    return worst


def _highest(stretch: Stretch, worker: str, *, own: bool) -> list[tuple[int, int]]:
    """(step, the most that a worker had held by then), in order."""
    found, most = [], 0
    for look in stretch.looks:
        memory = look.memory.get(worker)
        if memory is not None and look.step >= 0:
            most = max(most, memory.own_bytes if own else memory.peak_bytes)
            found.append((look.step, most))
    return found


def _stayers(log: Sequence[Event]) -> dict[int, str]:
    """Workers that had the same rank in all generations, by rank."""
    begun = [event["ranks"] for event in log if event.kind == "generation_started"]
    seats = [{entry["rank"]: entry["worker"] for entry in ranks} for ranks in begun]
    return {
        rank: worker
        for rank, worker in seats[0].items()
        if all(seat.get(rank) == worker for seat in seats)
    }
