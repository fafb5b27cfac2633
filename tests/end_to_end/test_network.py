"""Links that break: one way, both ways, between two machines alone, and slow ones.

    python -m pytest tests/end_to_end/test_network.py -m matrix

Every machine has a network namespace and an address of its own (``cloud.isolated``), so what is cut
is cut for real, without a word to either side. Root and iproute2 only; skipped elsewhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from provision.namespaces import CONTROLLER, Namespaces, NoNamespaces, why_not
from tests.end_to_end.test_losses import hold_to_invariants, layouts, of_kind
from tests.end_to_end.test_matrix import trained
from tests.helpers.running import Ended, Place, Running

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "namespaces can be made"),
]

STEPS = 60
WORDS = ("cloud.isolated=true", "cloud.nodes=3", f"train.steps={STEPS}")
Undisturbed = Callable[[int], Ended]


def network_of(run: Running) -> Namespaces:
    return Namespaces(run.name)


@pytest.fixture(autouse=True)
def nothing_is_left(place: Place) -> Iterator[None]:
    before = set(place.runs.glob("*")) if place.runs.exists() else set()
    yield
    left = {}
    for folder in set(place.runs.glob("*")) - before:
        network = Namespaces(folder.name)
        left[folder.name] = network.nodes()
        network.close()  # of a run that a failed test has killed
    assert not any(left.values()), f"namespaces were left: {left}"


def finished(run: Running, undisturbed: Undisturbed) -> Ended:
    ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    return ended


def lost(run: Running) -> list:
    return run.until(lambda log: of_kind(log, "node_lost"), what="the cut is noticed")


def test_machines_with_addresses_of_their_own_train_as_ever(place, undisturbed):
    ended = trained(
        place, undisturbed, *WORDS, steps=STEPS,
        script=[{"kind": "kill_node", "at": 12, "target": "node-2"}],
    )  # fmt: skip
    (gone,) = of_kind(ended.events, "node_lost")
    assert gone["silent_s"] < 1.0


@pytest.mark.parametrize("way", ["from", "to", "both"])
def test_a_machine_cut_off_from_the_controller_is_given_up_within_a_second(place, undisturbed, way):
    """No connection is closed, nobody is told: what tells is that its computer does not answer."""
    with place.start(*WORDS) as run:
        run.until_step(10)
        network = network_of(run)
        if way in ("from", "both"):
            network.cut("node-2", CONTROLLER)
        if way in ("to", "both"):
            network.cut(CONTROLLER, "node-2")
        (gone, *_) = lost(run)
        assert gone["node"] == "node-2"
        assert "unreachable" in gone["cause"]
        ended = finished(run, undisturbed)
    # A second, and what a busy computer adds; without asking after it, it would be silence (30 s).
    assert gone["silent_s"] < 5.0
    assert layouts(ended.events)[-1] == "pp2 x dp1 x tp1"


def test_a_machine_cut_off_from_everybody_trains_nothing_on_its_own(place, undisturbed):
    """The minority: it may think what it likes, what it does is never the run's."""
    with place.start(*WORDS) as run:
        run.until_step(10)
        network = network_of(run)
        for other in (CONTROLLER, "node-1", "node-3"):
            network.cut("node-2", other)
            network.cut(other, "node-2")
        lost(run)
        ended = finished(run, undisturbed)
    assert [event["node"] for event in of_kind(ended.events, "node_lost")] == ["node-2"]


def test_a_slow_link_slows_and_harms_nobody(place, undisturbed):
    """1 MiB/s for what one machine sends: its copies crawl, and what is not copied in time is not
    waited for."""
    with place.start(*WORDS) as run:
        run.until_step(10)
        network_of(run).limit("node-2", bytes_per_second=1 << 20)
        ended = finished(run, undisturbed)
    assert of_kind(ended.events, "node_lost") == []
    assert len(layouts(ended.events)) == 1


def test_links_far_slower_than_planned_with_are_found_on_arrival_and_planned_anew_for(
    place, undisturbed
):
    """100 kB/s for what any machine sends, from its first moment on: two replicas would exchange
    all gradients over that in every step, one long pipeline only what passes its cuts."""
    steps = 24
    words = ("cloud.isolated=true", "cloud.nodes=4", f"train.steps={steps}")
    with place.start(*words) as run:
        network, limited = network_of(run), set[str]()
        while len(limited) < 4:
            for node in set(network.nodes()) - limited:
                with contextlib.suppress(NoNamespaces):  # it is just being made
                    network.limit(node, bytes_per_second=100_000)
                    limited.add(node)
            assert time.monotonic() < run.deadline
            time.sleep(0.01)  # other processes: no clock of ours moves them
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    found = of_kind(ended.events, "link_measured")
    assert len({(event["node"], event["peer"]) for event in found}) == len(found) > 1
    # Thrice the limit: the first bytes go through at once (tbf's burst).
    assert all(event["bytes_per_second"] < 300_000 for event in found)
    assert found[0]["far_off"]
    assert found[0]["assumed_bytes_per_second"] > 1e6
    assert found[-1]["assumed_bytes_per_second"] < 1e6, "it was learned from the first answer"
    (asked, *_) = of_kind(ended.events, "replan_asked")
    assert "times as long as was planned with" in asked["why"]
    assert layouts(ended.events) == ["pp2 x dp2 x tp1", "pp4 x dp1 x tp1"]


def test_a_link_between_two_machines_that_breaks_stops_no_step_for_good(place, undisturbed):
    """Both reach the controller and it them. The exchange over the broken link runs out of time,
    and they start over when the link is whole again."""
    with place.start(*WORDS) as run:
        run.until_step(10)
        network = network_of(run)
        network.cut("node-1", "node-2")
        network.cut("node-2", "node-1")
        run.until(
            lambda log: [e for e in of_kind(log, "transition_started") if e.generation > 1],
            what="the step is given up",
        )
        network.heal("node-1", "node-2")
        network.heal("node-2", "node-1")
        ended = finished(run, undisturbed)
    assert of_kind(ended.events, "worker_lost") == []


def test_a_machine_whose_cable_is_pulled_by_a_script_is_given_up_and_refused_when_it_is_back(
    place, undisturbed
):
    """``cut_node``: nothing arrives, nothing leaves, for longer than anybody waits. When the cable
    is in again the machine is a zombie, and leaves."""
    script = [{"kind": "cut_node", "at": 12, "target": "node-2", "lasts": "4s"}]
    ended = trained(place, undisturbed, *WORDS, steps=STEPS, script=script)
    (lost,) = of_kind(ended.events, "node_lost")
    assert lost["node"] == "node-2"
    assert lost["silent_s"] < 3.0


def test_a_cable_that_is_out_for_a_moment_costs_no_machine(place, undisturbed):
    """Shorter than a machine may be silent: whatever was on its way arrives late."""
    script = [{"kind": "cut_node", "at": 12, "target": "node-2", "lasts": "0.2s"}]
    ended = trained(place, undisturbed, *WORDS, steps=STEPS, script=script)
    assert of_kind(ended.events, "node_lost") == []
    assert len(layouts(ended.events)) == 1
