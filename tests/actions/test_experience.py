"""What one's own runs have lived through, and what plans make of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from actions.experience import experience
from actions.planning import question
from actions.prospects import prospect
from sailor.observe.events import EventLog, read_events
from sailor.observe.summary import summarise, write_summary
from tests.helpers.compose import a_config

ZONE, KIND = "us-central1-a", "a2-highgpu-1g"
PLACE = (ZONE, KIND)
HOUR = 3600.0


class Diary:
    """Writes a run's log hour by hour, with the log's own writer."""

    def __init__(self, folder: Path, *, cloud: str = "gcp") -> None:
        self.folder = folder
        self._clock = SimpleNamespace(now=lambda: self.t)
        self.t = 0.0
        self.log = EventLog(folder / "events.jsonl", run=folder.name, clock=self._clock)
        self.log.write(
            "run_started", status="fresh", model="m", cloud=cloud, parameters=1, total_steps=9,
            global_batch_size=1, sequence_length=1, deterministic=False, config_digest="d",
            command="python run.py",
        )  # fmt: skip

    def at(self, hours: float, kind: str, node: str, **fields) -> None:
        self.t = hours * HOUR
        fields.setdefault("node", node)
        self.log.write(kind, **fields)

    def came(self, hours: float, *nodes: str, spot: bool = True) -> None:
        for node in nodes:
            place = {"zone": ZONE, "machine_type": KIND}
            self.at(hours, "node_requested", node, **place, spot=spot, price_per_hour=1.0)
            self.at(hours, "node_joined", node, **place, pid=1, workers=[])

    def lost(self, hours: float, node: str, cause: str = "unreachable") -> None:
        self.at(hours, "node_lost", node, cause=cause, silent_s=0.5)

    def end(self, hours: float, *, age_days: float = 0.0) -> None:
        self.t = hours * HOUR
        self.log.write("run_ended", end="done", why="", exit_code=0)
        self.log.close()
        path = self.folder / "summary.json"
        write_summary(path, summarise(read_events(self.folder / "events.jsonl")))
        then = time.time() - age_days * 86400
        os.utime(path, (then, then))


def asking(runs: Path, *words: str):
    return a_config("action=plan", "model=gpt_1b", "cloud=gcp", f"runs_dir={runs}", *words)


def test_a_run_that_is_gone_on_with_tells_what_its_log_knows(tmp_path):
    """Two of three machines go within a minute after four hours, one is replaced an hour later; the
    log breaks off at ten, in the middle of a line."""
    diary = Diary(tmp_path / "it")
    diary.came(0.0, "node-1", "node-2", "node-3")
    diary.lost(4.0, "node-1")
    diary.lost(4.0 + 1 / 60, "node-2")
    diary.came(5.0, "node-4")
    diary.at(10.0, "parked", "", why="x")
    diary.log.close()
    with (tmp_path / "it" / "events.jsonl").open("a") as file:
        file.write('{"seq": 99, "kind":"node_')
    told = experience(asking(tmp_path, "run.name=it"))
    assert told.runs == ("it",)
    evidence = told.evidence[PLACE]
    assert (evidence.events, evidence.lost, evidence.outages) == (1, 2, 0)
    assert evidence.machine_hours == pytest.approx(4 + 4 + 1 / 60 + 10 + 5, rel=1e-3)
    assert (evidence.returns, evidence.return_hours) == (1, pytest.approx(1.0))


def test_runs_of_the_same_cloud_that_ended_of_late_are_heard_and_no_others(tmp_path):
    for name, cloud, age_days in (("a", "gcp", 1), ("b", "gcp", 90), ("c", "aws", 1)):
        diary = Diary(tmp_path / name, cloud=cloud)
        diary.came(0.0, "node-1", "node-2")
        diary.lost(3.0, "node-1")
        diary.end(5.0, age_days=age_days)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "summary.json").write_text("[]")
    told = experience(asking(tmp_path))
    assert told.runs == ("a",)
    assert told.evidence[PLACE].machine_hours == pytest.approx(8.0)
    assert told.evidence[PLACE].events == 1
    assert experience(a_config("cloud=local", f"runs_dir={tmp_path}")).evidence == {}


def test_what_we_did_ourselves_is_no_loss(tmp_path):
    """Given back, released at the end, killed by an injected fault, on demand, never come: none of
    it was taken from us. A machine that went after the cloud's notice was."""
    diary = Diary(tmp_path / "it")
    diary.came(0.0, *(f"node-{n}" for n in range(1, 6)))
    diary.came(0.0, "sure", spot=False)
    diary.at(1.0, "notice", "node-1", seconds=120.0, source="given back: x", given_back=True)
    diary.at(1.1, "node_released", "node-1", released=True, proof="gone")
    diary.log.write("fault_injected", fault="kill_node", target="node-2", at="step 3")
    diary.lost(1.1, "node-2")
    diary.at(2.0, "node_requested", "node-9", zone=ZONE, machine_type=KIND, spot=True,
             price_per_hour=1.0)  # fmt: skip
    diary.lost(2.5, "node-9", "did not come")
    diary.lost(3.0, "sure")
    diary.at(4.0, "notice", "node-3", seconds=30.0, source="gcp preempted")
    diary.at(4.1, "node_released", "node-3", released=True, proof="gone")
    diary.at(5.0, "node_released", "node-4", released=True, proof="gone")
    diary.at(5.0, "node_released", "node-5", released=True, proof="gone")
    diary.log.close()
    evidence = experience(asking(tmp_path, "run.name=it")).evidence[PLACE]
    assert (evidence.events, evidence.lost) == (1, 1)
    assert evidence.machine_hours == pytest.approx(1.1 + 1.1 + 4.1 + 5 + 5)


def test_a_plan_believes_what_was_lived_through(tmp_path):
    """Four losses in 6 machine-hours, where the prior expects one: less goodput is foretold."""
    blank = question(asking(tmp_path / "none"))
    diary = Diary(tmp_path / "runs" / "a")
    diary.came(0.0, "node-1", "node-2", "node-3", "node-4")
    for number in (1, 2, 3, 4):
        diary.lost(0.6 * number, f"node-{number}")
    diary.end(3.0)
    told = question(asking(tmp_path / "runs"))
    assert told.believed[PLACE].shape == blank.believed[PLACE].shape + 4
    assert "4 events in 6.0 machine-hours" in told.believed[PLACE].describe()
    best = next(
        c for c in blank.answer().candidates
        if {r.offer.zone.name for r in c.rentals} == {ZONE}
        and all(r.offer.spot and r.offer.machine_type.name == KIND for r in c.rentals)
    )  # fmt: skip
    assert prospect(best, told).goodput < prospect(best, blank).goodput
    assert question(asking(tmp_path / "runs", "planner.spot_aware=false")).evidence == {}
