"""What standing by has cost, by the log."""

import pytest

from sailor.observe.events import Event
from sailor.observe.history import replay
from sailor.observe.summary import summarise


def log(*entries):
    return [
        Event(seq=i, t=float(t), time="", run="r", generation=1, kind=kind, fields=fields)
        for i, (t, kind, fields) in enumerate(entries, start=1)
    ]


def asked(t, node):
    fields = {"node": node, "zone": "a", "machine_type": "m", "spot": True, "price_per_hour": 2.0}
    return t, "node_requested", fields


def joined(t, node):
    return t, "node_joined", {"node": node, "zone": "a", "machine_type": "m", "pid": 1}


def trains(t, *nodes):
    return t, "generation_started", {"nodes": list(nodes), "step": 0, "layout": "", "ranks": []}


START = (asked(0, "n1"), asked(0, "n2"), joined(1, "n1"), joined(2, "n2"), trains(10, "n1"))


def test_a_standby_is_paid_for_from_the_moment_others_train_until_it_gets_a_seat():
    promoted = (1810, "standby", {"node": "n2", "state": "promoted", "why": ""})
    history = replay(log(*START, promoted, trains(1810, "n2")))
    assert history.standbys.promoted == 1
    assert history.standbys.seconds(now=1810) == 1800
    assert history.standbys.cost(now=1810) == pytest.approx(1.0)
    # and from then on the other one is idle
    assert history.standbys.seconds(now=5410) == 5400


def test_one_that_goes_costs_nothing_any_more():
    gone = (910, "node_lost", {"node": "n2", "cause": "killed", "silent_s": 0.0})
    history = replay(log(*START, gone))
    assert history.standbys.seconds(now=9999) == 900


def test_the_summary_says_it():
    summary = summarise(
        log(*START, (3610, "run_ended", {"end": "done", "why": "", "exit_code": 0}))
    )
    assert summary["standbys"] == {"hours": 1.0, "cost_usd": 2.0, "promoted": 0}


def test_without_standbys_there_is_nothing_to_say():
    history = replay(log(asked(0, "n1"), joined(1, "n1"), trains(10, "n1")))
    assert history.standbys.seconds(now=100) == 0.0


def test_an_anchor_is_paid_for_and_stands_by_for_nobody():
    t, kind, fields = asked(0, "anchor-1")
    anchor = (t, kind, {**fields, "role": "anchor", "spot": False})
    copied = (20, "anchored", {"step": 5, "node": "anchor-1", "bytes": 10, "seconds": 1.0})
    history = replay(log(anchor, joined(10, "anchor-1"), *START, copied))
    assert history.standbys.seconds(now=1810) == 1800  # n2 alone
    summary = summarise(
        log(
            anchor, joined(10, "anchor-1"), *START, copied,
            (3610, "run_ended", {"end": "done", "why": "", "exit_code": 0}),
        )
    )  # fmt: skip
    assert summary["anchors"]["hours"] == 1.0
    assert summary["anchors"]["cost_usd"] == pytest.approx(2.0 * 3610 / 3600, abs=1e-6)
    assert (summary["anchors"]["copies"], summary["anchors"]["step"]) == (1, 5)
    assert summary["cost_usd"] >= summary["anchors"]["cost_usd"]
