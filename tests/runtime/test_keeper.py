"""A node's snapshots over a life: grants, seals, pins, seats that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path

import pytest

from sailor.checkpoint.arena import OutOfSnapshotMemory
from sailor.checkpoint.retention import ANCHOR_VERSIONS
from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.parallel.layout import WorkerId
from sailor.runtime.keeper import ANCHORED_SEGMENTS, Keeper
from tests.helpers.snapshots import BOXES, a_worker, an_arena, write


def story(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Bench:
    """A keeper and the grants it gave; ``snapshot`` does what a worker with a grant does."""

    def __init__(self, tmp_path: Path, *, budget_bytes: int = 1 << 20) -> None:
        self.arena = an_arena(tmp_path, budget_bytes=budget_bytes)
        self.grants: list[tuple[WorkerId, int, str]] = []
        self.keeper = Keeper(self.arena, node="a", grant=lambda *g: self.grants.append(g))

    async def sit(self, worker: WorkerId, generation: int) -> None:
        await self.keeper.allocate(worker, generation, BOXES)
        self.keeper.open_seat(worker, generation)

    async def snapshot(
        self, worker: WorkerId, generation: int, step: int, *, safe: bool = True
    ) -> None:
        path = self.take_grant(worker, generation)
        write(Segment.attach(Path(path)), generation=generation, step=step)
        snapshot = await self.keeper.seal(worker, generation, path, step)
        if safe:
            self.keeper.mark_safe(snapshot)

    def take_grant(self, worker: WorkerId, generation: int) -> str:
        (grant,) = [g for g in self.grants if g[:2] == (worker, generation)]
        self.grants.remove(grant)
        return grant[2]

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(generation, step) of everything held."""
        held = [h.snapshot for h in self.keeper.holdings()]
        return sorted((s.generation, s.step) for s in held)


@story
async def test_snapshots_take_turns_in_two_segments(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    used = bench.arena.used_bytes
    for step in range(1, 7):
        await bench.snapshot(worker, 1, step)
    assert bench.steps == [(1, 5), (1, 6)]
    assert bench.arena.used_bytes == used


@story
async def test_the_next_is_granted_only_when_the_last_is_safe(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 1, safe=False)
    assert bench.grants == []
    (holding,) = bench.keeper.holdings()
    bench.keeper.mark_safe(holding.snapshot)
    assert len(bench.grants) == 1


@story
async def test_an_urgent_one_gets_a_third_segment_but_never_a_fourth(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 1)
    await bench.snapshot(worker, 1, 2, safe=False)  # its copy is under way
    await bench.keeper.want(worker, 1)
    await bench.snapshot(worker, 1, 3, safe=False)
    assert bench.steps == [(1, 1), (1, 2), (1, 3)]
    await bench.keeper.want(worker, 1)
    assert bench.grants == []


@story
async def test_a_slow_copy_for_an_anchor_holds_back_no_snapshot(tmp_path: Path) -> None:
    """One of three segments is read for long; the others take turns."""
    bench, worker = Bench(tmp_path), a_worker()
    bench.keeper.segments = ANCHORED_SEGMENTS
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 1)
    first = bench.keeper.holdings()[0].snapshot
    with bench.keeper.pinned(first):
        for step in range(2, 8):
            await bench.snapshot(worker, 1, step)
        assert bench.steps == [(1, 1), (1, 6), (1, 7)]
    for step in (8, 9):
        await bench.snapshot(worker, 1, step)
    assert bench.steps == [(1, 7), (1, 8), (1, 9)]


@story
async def test_an_anchor_keeps_the_step_it_has_all_of_whatever_was_begun_since(
    tmp_path: Path,
) -> None:
    """Attempts that others did not complete push it out by no count of versions."""
    bench = Bench(tmp_path)
    bench.keeper = Keeper(
        bench.arena, node="anchor-1", grant=lambda *_: None, versions=ANCHOR_VERSIONS
    )
    writers = [a_worker("a"), a_worker("b")]

    async def arrives(writer: WorkerId, step: int) -> None:
        segment = await bench.keeper.room(writer=writer, boxes=BOXES)
        write(segment, generation=1, step=step)
        segment.seal()
        bench.keeper.keep(segment)

    for writer in writers:
        await arrives(writer, 10)
    for step in (20, 30):
        await arrives(writers[0], step)  # the other one could not
    assert bench.steps == [(1, 10), (1, 10), (1, 20), (1, 30)]
    bench.keeper.retain(generation=1, step=10)
    assert bench.steps == [(1, 10), (1, 10)]
    bench.keeper.retain(generation=0, step=-1)
    assert bench.steps == []


@story
async def test_what_is_read_is_not_written_until_it_is_let_go(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 1)
    first = bench.keeper.holdings()[0].snapshot
    with bench.keeper.pinned(first) as segment:
        await bench.snapshot(worker, 1, 2)
        assert bench.grants == []
        segment.check(BOXES[0][0])
    assert len(bench.grants) == 1


@story
async def test_a_dead_workers_verified_snapshots_stay_and_the_rest_is_freed(
    tmp_path: Path,
) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 1)
    path = bench.take_grant(worker, 1)
    Segment.attach(Path(path)).begin(generation=1, step=2)  # and it dies
    bench.keeper.close_seat(worker, 1)
    assert bench.steps == [(1, 1)]
    one_segment = bench.arena.used_bytes
    successor = a_worker(incarnation=2)
    await bench.sit(successor, 2)
    assert bench.arena.used_bytes == 3 * one_segment


@story
async def test_the_old_generation_goes_when_the_new_one_has_two(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 1)
    await bench.snapshot(worker, 1, 2)
    await bench.sit(worker, 2)
    for step, left in ((3, [(1, 1), (1, 2), (2, 3)]), (4, [(2, 3), (2, 4)])):
        await bench.snapshot(worker, 2, step)
        bench.keeper.tidy(2, current=[worker])
        assert bench.steps == left


@story
async def test_steps_about_to_be_redone_are_forgotten(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 6)
    await bench.snapshot(worker, 1, 7)
    await bench.sit(worker, 2)
    bench.keeper.abandon(generation=2, step=6)
    assert bench.steps == [(1, 6)]


@story
async def test_a_snapshot_forgotten_while_it_is_read_is_freed_afterwards(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    await bench.snapshot(worker, 1, 7)
    bench.keeper.close_seat(worker, 1)
    used = bench.arena.used_bytes
    with bench.keeper.pinned(bench.keeper.holdings()[0].snapshot) as segment:
        bench.keeper.abandon(generation=2, step=6)
        assert bench.steps == []
        segment.check(BOXES[0][0])
        assert bench.arena.used_bytes == used
    assert bench.arena.used_bytes == 0


@story
async def test_what_was_written_for_another_step_than_told_is_refused(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    path = bench.take_grant(worker, 1)
    write(Segment.attach(Path(path)), generation=1, step=4)
    with pytest.raises(CorruptSnapshot, match="another step"):
        await bench.keeper.seal(worker, 1, path, 5)
    assert bench.steps == []


@story
async def test_too_little_memory_leaves_nothing_allocated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, budget_bytes=10_000)  # room for one segment of the two
    with pytest.raises(OutOfSnapshotMemory):
        await bench.keeper.allocate(a_worker(), 1, BOXES)
    assert bench.arena.used_bytes == 0


@story
async def test_who_goes_on_in_another_generation_keeps_its_segments_and_what_they_hold(
    tmp_path: Path,
) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    for step in (1, 2):
        await bench.snapshot(worker, 1, step)
    used = bench.arena.used_bytes
    bench.grants.clear()  # a grant that was not used: void from here on
    bench.keeper.inherit(worker, 1, 2)
    bench.keeper.open_seat(worker, 2)
    assert bench.steps == [(1, 1), (1, 2)]
    await bench.snapshot(worker, 2, 3)
    assert bench.steps == [(1, 2), (2, 3)]  # the newest of before stays until this one is safe
    await bench.snapshot(worker, 2, 4)
    assert bench.steps == [(2, 3), (2, 4)]
    assert bench.arena.used_bytes == used


@story
async def test_steps_that_are_about_to_be_redone_are_forgotten_their_memory_is_not(
    tmp_path: Path,
) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    for step in (1, 2):
        await bench.snapshot(worker, 1, step)
    used = bench.arena.used_bytes
    bench.grants.clear()
    bench.keeper.inherit(worker, 1, 2)
    bench.keeper.open_seat(worker, 2)
    bench.grants.clear()
    bench.keeper.inherit(worker, 2, 3)  # the change failed, and was made again
    bench.keeper.open_seat(worker, 3)
    bench.keeper.abandon(generation=3, step=1)
    assert bench.steps == [(1, 1)]
    assert bench.arena.used_bytes == used


@story
async def test_what_is_read_is_forgotten_only_afterwards(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.sit(worker, 1)
    for step in (1, 2):
        await bench.snapshot(worker, 1, step)
    bench.grants.clear()
    bench.keeper.inherit(worker, 1, 2)
    newest = max(h.snapshot for h in bench.keeper.holdings())
    with bench.keeper.pinned(newest) as segment:
        bench.keeper.open_seat(worker, 2)
        bench.grants.clear()
        bench.keeper.inherit(worker, 2, 3)
        bench.keeper.open_seat(worker, 3)
        bench.keeper.abandon(generation=3, step=1)
        assert bench.steps == [(1, 1)]
        assert segment.snapshot == newest  # still there for whoever reads it
    assert bench.steps == [(1, 1)]


@story
async def test_whoever_stood_by_moves_in_with_the_memory_it_had_laid_out(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    laid_out = await bench.keeper.allocate(worker, 0, BOXES)
    used = bench.arena.used_bytes
    assert bench.keeper.move_in(worker, 0, 4, BOXES)
    bench.keeper.open_seat(worker, 4)
    assert bench.arena.used_bytes == used
    assert bench.take_grant(worker, 4) in laid_out


@story
async def test_memory_laid_out_for_another_seat_makes_room(tmp_path: Path) -> None:
    bench, worker = Bench(tmp_path), a_worker()
    await bench.keeper.allocate(worker, 0, BOXES)
    assert not bench.keeper.move_in(worker, 0, 4, BOXES[1:])
    assert bench.arena.used_bytes == 0
    assert not bench.keeper.move_in(worker, 0, 4, BOXES)  # nor was there any for this one
