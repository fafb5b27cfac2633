"""Several values of a key with -m: a run for each, two sweeps at once, and one table of all."""

from __future__ import annotations

import json
import signal
import subprocess
import time

from sailor.observe.events import read_events
from tests.helpers.recipes import call, words
from tests.helpers.running import MODEL, PATIENCE_S, Place, leftovers, steps_done

PLAN = ("-m", "action=plan", "model=gpt_125m,gpt_350m", "cloud=gcp",
        "cloud.machine_types=[a2-ultragpu-1g]", "cloud.max_nodes=2")  # fmt: skip


def tiny(place: Place, *instead: str) -> list[str]:
    """A run of few steps on two machines; of each key the last word counts."""
    base = [*MODEL, "train.steps=3", "faults=none", "cloud.nodes=2", "data=text",
            f"data.path={place.text}", f"data.cache={place.root / 'cache'}"]  # fmt: skip
    latest = {word.partition("=")[0]: word for word in (*base, *instead)}
    return list(latest.values())


def test_a_recipe_is_swept_over_like_anything_else(place: Place):
    """Each job composes the steps for itself, in the process that composed the jobs."""
    sweep = ("-m", "recipe=gpt_125m_laptop", "recipe.smoke=true", "seed=0,1", "action=status")
    ended = call(place, *sweep)
    assert ended.code == 0, ended.err
    assert [row["exit_code"] for row in ended.document] == [0, 0]


def test_a_sweep_over_models_and_budgets_plans_each(place: Place):
    ended = call(place, *PLAN, "budget.total_usd=1,100000")
    rows = ended.document
    assert [row["overrides"] for row in rows] == [
        {"model": model, "budget.total_usd": dollars}
        for model in ("gpt_125m", "gpt_350m")
        for dollars in ("1", "100000")
    ]
    assert [row["exit_code"] for row in rows] == [3, 0, 3, 0]
    assert ended.code == 3  # a later job that is well does not hide an earlier failure
    assert [(row["error"] or {}).get("code") for row in rows] == ["E302", None, "E302", None]
    assert all(row["step_s"] > 0 and row["cost_usd"] > 0 for row in rows if not row["exit_code"])
    assert "sweep of 4 jobs, 2 failed" in ended.err
    table = [line for line in ended.err.splitlines() if "gpt_350m" in line and "E302" in line]
    assert table


def test_two_sweeps_at_once_do_not_meet(place: Place):
    processes = [
        subprocess.Popen(
            words(place, *PLAN), cwd=place.root, env=place.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outcomes = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outcomes
    kept = [next(line for line in err.splitlines() if line.startswith("kept in")).split()[-1]
            for _, err in outcomes]  # fmt: skip
    assert len(set(kept)) == 2
    for (out, _), path in zip(outcomes, kept, strict=True):
        assert json.loads((place.root / path).read_text()) == json.loads(out)


def test_a_sweep_that_trains_has_a_run_for_each_job_and_goes_on_with_them(place: Place):
    name = place.named("sweep")
    sweep = ("-m", *tiny(place, f"run.name={name}", "cloud.memory_per_gpu=1MiB,1KiB",
                         "budget.total_usd=1,2"))  # fmt: skip
    first = call(place, *sweep)
    assert [row["exit_code"] for row in first.document] == [0, 0, 3, 3], first.err
    runs = [row["run"] for row in first.document[:2]]
    assert runs == [f"{name}-memory_per_gpu-1MiB-total_usd-{dollars}" for dollars in (1, 2)]
    assert all(row["loss"] > 0 and row["step_s"] > 0 for row in first.document[:2])
    assert first.document[0]["loss"] == first.document[1]["loss"]  # a budget changes no number
    for run in runs:
        assert (place.runs / run / "report.html").exists()
        assert leftovers(run) == []
    again = call(place, *sweep)
    assert [row["loss"] for row in again.document] == [row["loss"] for row in first.document]
    assert sum(1 for e in read_events(place.runs / runs[0] / "events.jsonl")
               if e.kind == "run_started") == 1  # fmt: skip


def test_a_person_who_stops_a_job_stops_the_sweep(place: Place):
    name = place.named("sweep-stopped")
    process = subprocess.Popen(
        words(place, "-m", *tiny(place, f"run.name={name}", "train.steps=2000", "seed=1,2")),
        cwd=place.root, env=place.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_step(place, f"{name}-seed-1", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 75, err
    assert [row["exit_code"] for row in json.loads(out)] == [75, None]
    assert "not begun" in err
    assert not (place.runs / f"{name}-seed-2").exists()
    assert leftovers(f"{name}-seed-1") == []


def wait_for_step(place: Place, run: str, process: subprocess.Popen) -> None:
    """Until the first step of a run was applied."""
    path = place.runs / run / "events.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or steps_done(read_events(path)) < 1:
        assert process.poll() is None, "the sweep ended before"
        assert time.monotonic() < deadline
        time.sleep(0.05)
