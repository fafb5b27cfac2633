"""Who is slow, by tables: how long each machine works over time, and what is said of it."""

import random

import pytest

from sailor.runtime.straggler import (
    HeldUp,
    Rules,
    Sample,
    Slow,
    Watch,
    began,
    judge_links,
    observed,
    pays,
)

RULES = Rules(window=4, looks=3, settle_steps=10)
NODES = ("n0", "n1", "n2")


def steps(watch, paces, *, start, count, wait=0.0, jitter=0.0):
    """``count`` steps in which each node works for paces(node, step) seconds, 0.1 by default."""
    chance = random.Random(7)
    said = []
    for step in range(start, start + count):
        busy = {node: paces(node, step) * (1 + jitter * chance.uniform(-1, 1)) for node in NODES}
        step_s = max(busy.values()) + wait
        watch, verdict = observed(
            watch,
            [
                Sample(node=n, worker=f"{n}/0.1", step=step, busy_s=busy[n], step_s=step_s)
                for n in NODES
            ],
        )
        if verdict is not None:
            said.append((step, verdict))
    return watch, said


def even(node, step):
    return 0.1


def n1_slower_from(first, factor):
    return lambda node, step: 0.1 * (factor if node == "n1" and step >= first else 1.0)


def test_an_even_pace_accuses_nobody():
    _, said = steps(Watch(rules=RULES), even, start=1, count=200, jitter=0.1)
    assert said == []


@pytest.mark.parametrize("factor", [1.4, 2.0, 5.0])
def test_a_machine_that_gets_slower_is_named_after_a_few_looks(factor):
    _, said = steps(Watch(rules=RULES), n1_slower_from(40, factor), start=1, count=70, jitter=0.05)
    step, verdict = said[0]
    assert isinstance(verdict, Slow)
    assert verdict.node == "n1"
    assert verdict.relative == pytest.approx(factor, rel=0.15)
    assert 40 + 2 * RULES.window <= step <= 40 + 5 * RULES.window
    assert verdict.gained_s_per_step == pytest.approx(0.1 * (factor - 1), rel=0.3)


def test_a_little_slower_is_not_slow():
    _, said = steps(Watch(rules=RULES), n1_slower_from(40, 1.2), start=1, count=200, jitter=0.05)
    assert said == []


def test_a_slow_moment_is_not_slow():
    def moment(node, step):
        return 0.3 if node == "n1" and 40 <= step < 40 + RULES.window else 0.1

    _, said = steps(Watch(rules=RULES), moment, start=1, count=200)
    assert said == []


def test_when_everybody_gets_slower_nobody_is_to_blame():
    _, said = steps(Watch(rules=RULES), lambda n, s: 0.1 if s < 40 else 0.3, start=1, count=200)
    assert [v for _, v in said if isinstance(v, Slow)] == []


def test_near_the_mark_a_suspicion_neither_comes_nor_goes_with_every_look():
    """1.32, then 1.2 and 1.32 in turn: below the mark but above the lower one it stays."""

    def near(node, step):
        if node != "n1" or step < 40:
            return 0.1
        return 0.132 if (step // RULES.window) % 2 == 0 or step < 60 else 0.122

    watch, said = steps(Watch(rules=RULES), near, start=1, count=120)
    assert {v.node for _, v in said} == {"n1"}
    watch, said = steps(watch, even, start=121, count=40)
    assert watch.suspected == {}


def test_after_a_change_nobody_is_suspected_for_a_while():
    watch, said = steps(Watch(rules=RULES), n1_slower_from(20, 2.0), start=1, count=60)
    assert said
    watch = began(watch, step=60)
    assert watch.usual == {}
    _, said = steps(watch, n1_slower_from(0, 2.0), start=61, count=100)
    assert said == []  # it does what it always did, as far as this generation knows


def test_a_pipeline_of_unlike_stages_is_judged_by_its_own_history():
    def unlike(node, step):
        usual = {"n0": 0.05, "n1": 0.2, "n2": 0.1}[node]
        return usual * (2.0 if node == "n0" and step >= 40 else 1.0)

    _, said = steps(Watch(rules=RULES), unlike, start=1, count=80)
    assert said[0][1].node == "n0"  # though n1 works longer than it in every step


def test_longer_steps_in_which_nobody_works_longer_ask_for_probes():
    watch, _ = steps(Watch(rules=RULES), even, start=1, count=40)
    _, said = steps(watch, even, start=41, count=40, wait=0.2)
    step, verdict = said[0]
    assert isinstance(verdict, HeldUp)
    assert verdict.ratio == pytest.approx(3.0, rel=0.1)
    assert verdict.lost_s_per_step == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(
    ("probes", "nodes", "pairs"),
    [
        ({}, (), ()),
        ({("a", "b"): 9.0}, (), ()),
        ({("a", "b"): 1.0, ("a", "c"): 1.1, ("b", "c"): 0.9}, (), ()),
        ({("a", "b"): 1.0, ("a", "c"): 9.0, ("b", "c"): 8.0}, ("c",), ()),
        ({("a", "b"): 9.0, ("a", "c"): 1.0, ("b", "c"): 1.0}, (), (("a", "b"),)),
        (
            {("a", "b"): 1.0, ("a", "c"): 1.0, ("a", "d"): 9.0, ("b", "c"): 1.0, ("b", "d"): 9.0,
             ("c", "d"): 9.0},
            ("d",), (),
        ),
        ({("a", "b"): 9.0, ("a", "c"): 9.0, ("b", "c"): 9.0}, (), ()),
    ],
)  # fmt: skip
def test_a_bad_link_is_told_from_a_machine_whose_links_are_bad(probes, nodes, pairs):
    links = judge_links(probes, rules=RULES)
    assert (links.nodes, links.pairs) == (nodes, pairs)


@pytest.mark.parametrize(
    ("gained", "left", "pause", "worth"),
    [(0.1, 1000, 1.0, True), (0.1, 10, 1.0, False), (0.0, 10**6, 0.1, False)],
)
def test_a_move_must_gain_more_than_its_pause(gained, left, pause, worth):
    assert pays(gained, steps_left=left, pause_s=pause, margin=2.0) is worth
