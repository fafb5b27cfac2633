"""What is known of each seat's work, and of machines that had seats before."""

from dataclasses import replace

from sailor.runtime.messages import WorkerStatus
from sailor.runtime.paces import ENOUGH, Paces
from tests.helpers.builders import a_layout, a_member, a_plan

LAYOUT = a_layout(a_plan([2]))


def work(paces, layout, *, steps, busy):
    for step in steps:
        for worker in layout.workers:
            status = WorkerStatus(
                worker=worker, pid=1, step=step, doing="training", busy_s=busy(worker.node, step)
            )
            paces.heard([status, status])  # heartbeats come more often than steps


def test_nothing_is_said_before_every_seat_has_done_enough_steps():
    paces = Paces()
    assert paces.now() is None
    paces.began(LAYOUT, step=10)
    work(paces, LAYOUT, steps=range(11, 11 + ENOUGH), busy=lambda node, step: 0.1)
    assert paces.now() is None  # the first one is no measure
    work(paces, LAYOUT, steps=[11 + ENOUGH], busy=lambda node, step: 0.1)
    assert paces.now().nodes == {0: "n0", 1: "n1"}
    assert paces.now().seconds == {0: (0.1, 0.1), 1: (0.1, 0.1)}


def test_the_earlier_and_the_later_half_are_told_apart():
    paces = Paces()
    paces.began(LAYOUT, step=0)
    slow_later = lambda node, step: 0.3 if node == "n1" and step > 20 else 0.1  # noqa: E731
    work(paces, LAYOUT, steps=range(2, 40), busy=slow_later)
    assert paces.now().seconds == {0: (0.1, 0.1), 1: (0.1, 0.3)}


def test_a_machine_that_lost_its_seat_is_remembered_with_all_others_of_its_time():
    paces = Paces()
    paces.began(LAYOUT, step=0)
    work(paces, LAYOUT, steps=range(2, 40), busy=lambda node, step: 0.1)
    swapped = replace(LAYOUT, workers=(LAYOUT.workers[0], a_member("n9").workers[0]))
    paces.began(swapped, step=40)
    assert paces.now() is None
    assert paces.before("n1").nodes == {0: "n0", 1: "n1"}
    assert paces.before("n9") is None
    work(
        paces, LAYOUT, steps=[42], busy=lambda node, step: 9.0
    )  # n1 has no seat: it does not count
    work(paces, swapped, steps=range(43, 90), busy=lambda node, step: 0.2)
    assert paces.now().seconds[1] == (0.2, 0.2)
    assert paces.before("n1").seconds == {0: (0.1, 0.1), 1: (0.1, 0.1)}


def test_another_plan_makes_all_that_was_known_worthless():
    paces = Paces()
    paces.began(LAYOUT, step=0)
    work(paces, LAYOUT, steps=range(2, 40), busy=lambda node, step: 0.1)
    paces.began(a_layout(a_plan([1])), step=40)
    assert paces.before("n1") is None
