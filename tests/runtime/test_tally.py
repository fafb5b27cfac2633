"""One line a step for the snapshots of all ranks, and one for their copies."""

from __future__ import annotations

from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import SnapshotId, Snapshotted
from sailor.runtime.tally import SnapshotTally


def a_word(
    slot: int, step: int, *, peer: str = "", stall_s: float = 0.1, copy_s: float = 0.2
) -> Snapshotted:
    worker = WorkerId(node="n0", slot=slot, incarnation=1)
    snapshot = SnapshotId(generation=3, step=step, worker=worker)
    return Snapshotted(
        generation=3, node="n0", snapshot=snapshot, boxes=5, bytes=100, stall_s=stall_s,
        copy_s=copy_s, peer=peer,
    )  # fmt: skip


def a_tally(world_size: int = 2) -> SnapshotTally:
    return SnapshotTally(generation=3, world_size=world_size)


def test_a_step_is_told_once_with_its_slowest_rank():
    tally = a_tally()
    assert tally.hear(a_word(0, 7, stall_s=0.2, copy_s=0.1)) == []
    ((kind, fields),) = tally.hear(a_word(1, 7, stall_s=0.1, copy_s=0.5))
    assert kind == "snapshot"
    assert fields == {
        "step": 7, "workers": 2, "bytes": 200, "stall_s": 0.2, "copy_s": 0.5,
        "slowest": "n0/1.1",
    }  # fmt: skip
    assert tally.rest() == []


def test_copies_are_told_when_all_have_one():
    tally = a_tally()
    assert tally.hear(a_word(0, 7, peer="n1")) == []
    assert tally.hear(a_word(1, 7, peer="n1")) == [
        ("snapshot_copied", {"step": 7, "workers": 2, "bytes": 200})
    ]


def test_copies_of_some_ranks_are_told_with_the_next_complete_step():
    tally = a_tally()
    tally.hear(a_word(0, 7, peer="n1"))
    tally.hear(a_word(0, 8))
    lines = tally.hear(a_word(1, 8))
    assert [(kind, fields["step"], fields["workers"]) for kind, fields in lines] == [
        ("snapshot_copied", 7, 1), ("snapshot", 8, 2),
    ]  # fmt: skip


def test_at_the_end_what_is_incomplete_is_told_as_it_is():
    tally = a_tally()
    tally.hear(a_word(0, 9))
    tally.hear(a_word(0, 9, peer="n1"))
    assert [(kind, fields["workers"]) for kind, fields in tally.rest()] == [
        ("snapshot", 1), ("snapshot_copied", 1),
    ]  # fmt: skip
    assert tally.rest() == []
