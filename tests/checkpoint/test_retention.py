"""What may be forgotten and what may be overwritten, by table and by property."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sailor.checkpoint.retention import (
    SegmentView,
    abandoned,
    next_to_write,
    outlived,
    superseded,
)
from sailor.checkpoint.segment import SegmentState
from sailor.runtime.messages import SnapshotId
from tests.helpers.snapshots import a_worker


def a_snapshot(step: int, *, generation: int = 1, slot: int = 0) -> SnapshotId:
    return SnapshotId(generation=generation, step=step, worker=a_worker(slot=slot))


def a_view(name: str, what: str, step: int = -1, *, pins: int = 0, granted=False) -> SegmentView:
    """``what`` is a state, or "safe": verified, and copied where it must be."""
    return SegmentView(
        name=name,
        state=SegmentState["verified" if what == "safe" else what],
        snapshot=a_snapshot(step),
        pins=pins,
        granted=granted,
        safe=what == "safe",
    )


def test_a_new_seat_writes_any_free_segment() -> None:
    assert next_to_write([a_view("a", "free"), a_view("b", "free")], urgent=False) == "a"


def test_a_second_segment_is_granted_only_when_the_first_is_safe() -> None:
    for what in ("writing", "written", "verified"):
        both = [a_view("a", what, 5), a_view("b", "free")]
        assert next_to_write(both, urgent=False) is None
    assert next_to_write([a_view("a", "safe", 5), a_view("b", "free")], urgent=False) == "b"


def test_the_older_one_is_overwritten_once_the_newer_is_safe() -> None:
    assert next_to_write([a_view("a", "safe", 5), a_view("b", "safe", 6)], urgent=False) == "a"


def test_a_verified_snapshot_that_is_not_copied_yet_holds_back_the_next() -> None:
    both = [a_view("a", "safe", 5), a_view("b", "verified", 6)]
    assert next_to_write(both, urgent=False) is None


def test_the_only_safe_one_is_never_overwritten_however_urgent() -> None:
    for other in ("writing", "written", "verified"):
        both = [a_view("a", "safe", 5), a_view("b", other, 6)]
        assert next_to_write(both, urgent=True) is None
    assert next_to_write([a_view("a", "safe", 5)], urgent=True) is None


def test_an_urgent_snapshot_takes_a_free_segment_at_once() -> None:
    both = [a_view("a", "written", 5), a_view("b", "free")]
    assert next_to_write(both, urgent=True) == "b"


def test_a_segment_somebody_reads_is_not_overwritten() -> None:
    both = [a_view("a", "safe", 5, pins=1), a_view("b", "safe", 6)]
    assert next_to_write(both, urgent=True) is None


def test_one_grant_at_a_time() -> None:
    both = [a_view("a", "free", granted=True), a_view("b", "free")]
    assert next_to_write(both, urgent=True) is None


def test_of_a_writers_copies_the_newest_two_are_kept() -> None:
    copies = [a_snapshot(step) for step in (3, 4, 5)] + [a_snapshot(4, generation=2)]
    assert superseded(copies, newest=2) == {a_snapshot(3), a_snapshot(4)}


def test_old_generations_stay_until_every_own_worker_has_two_new_ones() -> None:
    old = [a_snapshot(8, slot=0), a_snapshot(8, slot=1)]
    new = [a_snapshot(9, generation=2), a_snapshot(10, generation=2)]
    workers = [a_worker(slot=0), a_worker(slot=1)]
    assert not outlived(old + new, generation=2, current=workers)
    new += [a_snapshot(9, generation=2, slot=1)]
    assert not outlived(old + new, generation=2, current=workers)
    new += [a_snapshot(10, generation=2, slot=1)]
    assert outlived(old + new, generation=2, current=workers) == frozenset(old)


def test_a_node_without_a_role_keeps_what_it_has() -> None:
    assert not outlived([a_snapshot(8)], generation=2, current=[])


def test_steps_that_will_be_redone_are_abandoned() -> None:
    held = [a_snapshot(6), a_snapshot(7), a_snapshot(7, generation=2)]
    assert abandoned(held, generation=2, step=6) == {a_snapshot(7)}


snapshots = st.builds(a_snapshot, st.integers(0, 9), generation=st.integers(1, 3))


@given(st.lists(snapshots, min_size=1, max_size=6), st.integers(1, 3))
def test_forgetting_always_leaves_the_newest(held, newest) -> None:
    gone = superseded(held, newest=newest)
    left = set(held) - gone
    assert len(left) == min(newest, len(set(held)))
    for old in gone:
        assert all((old.generation, old.step) < (s.generation, s.step) for s in left)


views = st.builds(
    a_view,
    st.uuids().map(str),
    st.sampled_from(["free", "writing", "written", "verified", "safe"]),
    st.integers(0, 9),
    pins=st.integers(0, 1),
    granted=st.booleans(),
)


@given(st.lists(views, max_size=4), st.booleans())
def test_whatever_is_overwritten_a_safe_one_not_older_remains(segments, urgent) -> None:
    chosen = next_to_write(segments, urgent=urgent)
    if chosen is None:
        return
    segment = next(s for s in segments if s.name == chosen)
    assert segment.state is SegmentState.free or (segment.safe and segment.pins == 0)
    if segment.state is not SegmentState.free:
        assert any(
            s.safe and s.name != chosen and s.snapshot.step >= segment.snapshot.step
            for s in segments
        )
