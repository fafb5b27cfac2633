"""When an anchor is asked for, which step it gets, and what it has all of."""

from __future__ import annotations

from sailor.cluster.provisioner import NodeRequest
from sailor.parallel.layout import WorkerId
from sailor.runtime.anchors import BACK_S, FAILED_S, LONGEST_COPY_S, RETRY_S, Anchors
from sailor.runtime.messages import CopiedOut, Holding, SnapshotId

LIKE = NodeRequest(node="anchor-1", zone="a", machine_type="memory", spot=False)
NODES = ("node-1", "node-2")


def anchors(*, there: bool = True) -> Anchors:
    found = Anchors(like=LIKE, join_s=60.0)
    if there:
        assert found.order(now=0.0) is not None
        found.joined("anchor-1", (), boxes={"a", "b"})
    return found


def copying(found: Anchors, *, now: float, step: int = 10, generation: int = 1):
    return found.next_copy(
        now=now, generation=generation, step=step, last_step=1000, step_s=0.05, nodes=NODES
    )


def told(node: str, step: int, *, generation: int = 1, error: str = "") -> CopiedOut:
    return CopiedOut(generation=generation, node=node, step=step, bytes=100, error=error)


def test_one_is_asked_for_at_the_start_and_no_second_while_it_is_to_come() -> None:
    found = anchors(there=False)
    request = found.order(now=0.0)
    assert request is not None
    assert (request.node, request.spot) == ("anchor-1", False)
    assert found.order(now=1.0) is None
    assert Anchors(like=None, join_s=60.0).order(now=0.0) is None


def test_a_lost_one_is_followed_by_another_name_and_gets_everything_anew() -> None:
    found = anchors()
    found.lost("anchor-1", now=5.0)
    assert found.complete is None
    request = found.order(now=5.0)
    assert request is not None
    assert request.node == "anchor-2"


def test_one_that_does_not_come_is_given_up_and_asked_for_again_later() -> None:
    found = anchors(there=False)
    found.order(now=0.0)
    assert found.overdue(now=59.0) == ""
    assert found.overdue(now=61.0) == "anchor-1"
    found.lost("anchor-1", now=61.0)
    assert found.order(now=61.0) is None
    assert found.order(now=61.0 + RETRY_S) is not None


def test_a_refusal_is_heeded_for_as_long_as_the_cloud_says_or_for_good() -> None:
    found = anchors(there=False)
    found.order(now=0.0)
    found.refused("anchor-1", now=1.0, retry_s=100.0, lasting=False)
    assert found.order(now=100.0) is None
    assert found.order(now=101.0) is not None
    found.refused("anchor-2", now=102.0, retry_s=None, lasting=True)
    assert found.order(now=1e6) is None


def test_all_copy_one_step_that_they_have_not_done_yet_and_only_one_at_a_time() -> None:
    found = anchors()
    first = copying(found, now=1.0)
    assert first is not None
    assert first.step > 10 + 0.2 / 0.05
    assert copying(found, now=2.0) is None
    assert found.heard(told("node-1", 16), now=3.0) is None
    done = found.heard(told("node-2", 16), now=5.0)
    assert done is not None
    assert (done.generation, done.step, done.bytes, done.seconds) == (1, 16, 200, 4.0)
    assert copying(found, now=8.9) is None, "it rests as long as it took"
    assert copying(found, now=9.0) is not None


def test_a_step_that_one_could_not_copy_or_copied_differently_leaves_the_one_before() -> None:
    found = anchors()
    copying(found, now=1.0)
    found.heard(told("node-1", 16), now=1.0)
    found.heard(told("node-2", 16), now=1.0)
    copying(found, now=2.0, step=20)
    found.heard(told("node-1", 0, error="no room"), now=3.0)
    assert found.copying is None
    assert copying(found, now=3.0 + FAILED_S, step=30) is not None
    found.heard(told("node-1", 35), now=5.0)
    assert found.heard(told("node-2", 36), now=5.0) is None
    assert found.complete is not None
    assert found.complete.step == 16


def test_words_of_an_earlier_generation_or_of_nobody_that_was_asked_count_for_nothing() -> None:
    found = anchors()
    copying(found, now=1.0, generation=2)
    assert found.heard(told("node-1", 16, generation=1), now=2.0) is None
    assert found.heard(told("node-9", 16, generation=2), now=2.0) is None
    assert found.copying is not None
    assert found.copying.waiting == set(NODES)
    found.stands_still()
    assert found.heard(told("node-1", 16, generation=2), now=3.0) is None


def test_nobody_is_waited_for_without_end_and_the_last_steps_are_left_to_disk() -> None:
    found = anchors()
    copying(found, now=0.0)
    assert copying(found, now=LONGEST_COPY_S - 1) is None
    assert copying(found, now=LONGEST_COPY_S + 1, step=50) is not None
    found.stands_still()
    assert copying(found, now=LONGEST_COPY_S + 2, step=999) is None


def test_a_new_controller_learns_from_the_anchor_what_it_has_all_of() -> None:
    found = Anchors(like=LIKE, join_s=60.0)
    found.expect(["node-1", "anchor-3"], now=100.0)
    assert found.order(now=100.0) is None
    holdings = [
        holding(step, box) for step, box in ((10, "a"), (10, "b"), (20, "a"), (5, "a"), (5, "b"))
    ]
    found.joined("anchor-3", holdings, boxes={"a", "b"})
    assert found.complete is not None
    assert found.complete.step == 10
    found.lost("anchor-3", now=200.0)
    request = found.order(now=200.0)
    assert request is not None
    assert request.node == "anchor-4"


def test_an_anchor_of_an_earlier_controller_that_does_not_dial_in_is_soon_given_up() -> None:
    found = Anchors(like=LIKE, join_s=600.0)
    found.expect(["anchor-1"], now=100.0)
    assert found.overdue(now=100.0 + BACK_S - 1) == ""
    assert found.overdue(now=100.0 + BACK_S + 1) == "anchor-1"


def holding(step: int, box: str) -> Holding:
    worker = WorkerId(node="node-1", slot=0, incarnation=1)
    snapshot = SnapshotId(generation=1, step=step, worker=worker)
    return Holding(node="anchor-3", snapshot=snapshot, boxes=(box,))
