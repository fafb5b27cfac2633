"""What may be forgotten and what may be overwritten, by table and by property."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sailor.checkpoint.retention import (
    SegmentView,
    abandoned,
    forgettable,
    next_to_write,
    outlived,
)
from sailor.checkpoint.segment import SegmentState
from sailor.runtime.messages import SnapshotId
from tests.helpers.snapshots import a_worker


def a_snapshot(step: int, *, generation: int = 1, slot: int = 0) -> SnapshotId:
    return SnapshotId(generation=generation, step=step, worker=a_worker(slot=slot))


def a_view(
    name: str, state: str, step: int = -1, *, generation: int = 1, pins: int = 0, granted=False
) -> SegmentView:
    return SegmentView(
        name=name,
        state=SegmentState[state],
        snapshot=a_snapshot(step, generation=generation),
        pins=pins,
        granted=granted,
    )


def test_a_free_segment_is_written_first() -> None:
    assert next_to_write([a_view("a", "verified", 5), a_view("b", "free")], committed=None) == "b"


def test_the_older_verified_one_is_overwritten_once_a_newer_is_verified() -> None:
    both = [a_view("a", "verified", 5), a_view("b", "verified", 6)]
    assert next_to_write(both, committed=None) == "a"


def test_the_only_verified_one_is_never_overwritten() -> None:
    for other in ("writing", "written"):
        both = [a_view("a", "verified", 5), a_view("b", other, 6)]
        assert next_to_write(both, committed=None) is None


def test_a_torn_segment_leaves_the_older_one_alone() -> None:
    assert next_to_write([a_view("a", "verified", 5)], committed=None) is None


def test_a_segment_somebody_reads_is_not_overwritten() -> None:
    both = [a_view("a", "verified", 5, pins=1), a_view("b", "verified", 6)]
    assert next_to_write(both, committed=None) is None


def test_one_grant_at_a_time() -> None:
    both = [a_view("a", "free", granted=True), a_view("b", "free")]
    assert next_to_write(both, committed=None) is None


def test_the_newest_committed_step_is_kept_although_newer_ones_exist() -> None:
    both = [a_view("a", "verified", 5), a_view("b", "verified", 6)]
    assert next_to_write(both, committed=5) is None
    assert next_to_write(both, committed=6) == "a"


def test_a_redone_step_of_a_later_generation_is_newer() -> None:
    both = [a_view("a", "verified", 7, generation=1), a_view("b", "verified", 6, generation=2)]
    assert next_to_write(both, committed=None) == "a"


def test_copies_keep_two_versions_and_the_committed_one() -> None:
    copies = [a_snapshot(step) for step in (3, 4, 5, 6)]
    gone = forgettable(copies, newest=2, committed=None)
    assert sorted(s.step for s in gone) == [3, 4]
    gone = forgettable(copies, newest=2, committed=4)
    assert sorted(s.step for s in gone) == [3]


def test_old_generations_stay_until_every_own_worker_has_two_new_ones() -> None:
    old = [a_snapshot(8, slot=0), a_snapshot(8, slot=1)]
    new = [a_snapshot(9, generation=2), a_snapshot(10, generation=2)]
    workers = [a_worker(slot=0), a_worker(slot=1)]
    assert not outlived(old + new, generation=2, committed=None, current=workers)
    new += [a_snapshot(step, generation=2, slot=1) for step in (9, 10)]
    gone = outlived(old + new, generation=2, committed=None, current=workers)
    assert gone == frozenset(old)


def test_with_the_controllers_word_old_generations_go_when_a_later_step_is_committed() -> None:
    old = [a_snapshot(8)]
    assert not outlived(old, generation=2, committed=8, current=[])
    assert outlived(old, generation=2, committed=9, current=[]) == frozenset(old)


def test_a_node_without_a_role_keeps_what_it_has() -> None:
    assert not outlived([a_snapshot(8)], generation=2, committed=None, current=[])


def test_steps_that_will_be_redone_are_abandoned() -> None:
    held = [a_snapshot(6), a_snapshot(7), a_snapshot(7, generation=2)]
    assert abandoned(held, generation=2, step=6) == {a_snapshot(7)}


snapshots = st.builds(a_snapshot, st.integers(0, 9), generation=st.integers(1, 3))


@given(st.lists(snapshots, min_size=1, max_size=6), st.none() | st.integers(-1, 10))
def test_forgetting_always_leaves_the_newest_and_a_committed_one(held, committed) -> None:
    left = set(held) - forgettable(held, newest=1, committed=committed)
    assert max(held, key=lambda s: (s.generation, s.step)) in left
    if committed is not None and any(s.step <= committed for s in held):
        assert any(s.step <= committed for s in left)


states = st.sampled_from(["free", "writing", "written", "verified"])
views = st.builds(
    a_view, st.uuids().map(str), states, st.integers(0, 9), pins=st.integers(0, 1),
    granted=st.booleans(),
)  # fmt: skip


@given(st.lists(views, max_size=4), st.none() | st.integers(0, 10))
def test_whatever_is_granted_a_newer_verified_one_exists(segments, committed) -> None:
    chosen = next_to_write(segments, committed=committed)
    if chosen is None:
        return
    segment = next(s for s in segments if s.name == chosen)
    assert segment.state in (SegmentState.free, SegmentState.verified)
    if segment.state is SegmentState.verified:
        assert segment.pins == 0
        assert any(
            s.state is SegmentState.verified and s.snapshot.step > segment.snapshot.step
            for s in segments
        )
