"""What heartbeats and probes make a controller wish for."""

from sailor.parallel.layout import WorkerId
from sailor.runtime.lookout import Lookout, ProbeAll, Wish
from sailor.runtime.messages import Probed, WorkerStatus
from sailor.runtime.straggler import Rules

NODES = ("n0", "n1", "n2")
RULES = Rules(window=4, looks=3, settle_steps=5)


def heartbeats(lookout, *, first, last, busy, step_s=0.1, steps_left=1000):
    """Every node reports every step twice, as heartbeats do; the first thing wished for."""
    for step in range(first, last + 1):
        for node in NODES * 2:
            status = WorkerStatus(
                worker=WorkerId(node=node, slot=0, incarnation=1), pid=1, step=step,
                doing="training", busy_s=busy(node, step),
            )  # fmt: skip
            wish = lookout.heard(node, (status,), step_s=step_s, steps_left=steps_left, pause_s=1.0)
            if wish is not None:
                return wish
    return None


def even(node, step):
    return 0.1


def slow_n2(node, step):
    return 0.3 if node == "n2" else 0.1


def probes(lookout, slow, *, steps_left=1000):
    """Every node answers; what the last answer leads to."""
    for node in NODES:
        seconds = {peer: 0.5 if slow(node, peer) else 0.01 for peer in NODES if peer != node}
        found = lookout.probed(
            Probed(node=node, seconds=seconds), steps_left=steps_left, pause_s=1.0
        )
    return found


def test_a_slow_machine_is_wished_away_once():
    lookout = Lookout(RULES)
    lookout.began(step=0, nodes=NODES)
    assert heartbeats(lookout, first=1, last=20, busy=even) is None
    wish = heartbeats(lookout, first=21, last=60, busy=slow_n2, step_s=0.3)
    assert isinstance(wish, Wish)
    assert wish.node == "n2"
    assert heartbeats(lookout, first=61, last=120, busy=slow_n2, step_s=0.3) is None


def test_near_the_end_of_a_run_nobody_is_moved():
    lookout = Lookout(RULES)
    lookout.began(step=0, nodes=NODES)
    heartbeats(lookout, first=1, last=20, busy=even)
    assert heartbeats(lookout, first=21, last=60, busy=slow_n2, step_s=0.3, steps_left=5) is None


def test_without_rules_nobody_is_suspected():
    lookout = Lookout(None)
    assert heartbeats(lookout, first=1, last=20, busy=even) is None
    assert heartbeats(lookout, first=21, last=90, busy=slow_n2, step_s=0.3) is None


def held_up():
    lookout = Lookout(RULES)
    lookout.began(step=0, nodes=NODES)
    heartbeats(lookout, first=1, last=20, busy=even)
    probe = heartbeats(lookout, first=21, last=90, busy=even, step_s=0.4)
    assert isinstance(probe, ProbeAll)
    assert probe.nodes == NODES
    return lookout


def test_a_machine_with_slow_lines_is_told_by_probes():
    links, wish = probes(held_up(), lambda a, b: "n1" in (a, b))
    assert links.nodes == ("n1",)
    assert wish.node == "n1"


def test_of_a_pair_with_a_slow_line_one_is_moved():
    links, wish = probes(held_up(), lambda a, b: {a, b} == {"n0", "n2"})
    assert links.pairs == (("n0", "n2"),)
    assert wish.node == "n2"


def test_good_lines_accuse_nobody():
    links, wish = probes(held_up(), lambda a, b: False)
    assert (links.nodes, links.pairs, wish) == ((), (), None)


def test_answers_nobody_asked_for_are_ignored():
    answer = Probed(node="n0", seconds={"n1": 9.0})
    assert Lookout(RULES).probed(answer, steps_left=9, pause_s=1.0) == (None, None)
