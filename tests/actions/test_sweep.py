"""What a sweep calls its jobs, and the row it makes of each."""

from __future__ import annotations

import pytest

from actions.sweep import Job, document, set_apart, suffix
from tests.helpers.compose import a_config

PLANNED = {
    "action": "plan",
    "chosen": {
        "machines": [{"count": 2, "machine_type": "A"}], "layout": "pp1 x dp2 x tp1",
        "step_s": 1.5, "dollars": 30.0,
    },
}  # fmt: skip
TRAINED = {
    "run": "it", "loss_last": 2.5, "cost_usd": 4.0,
    "plan_vs_actual": [{"layout": "pp2 x dp1 x tp1", "actual_step_s": 0.5}],
}  # fmt: skip
REFUSED = {"error": {"code": "E301", "what": "does not fit"}, "exit_code": 3}


def test_a_job_is_called_by_what_sets_it_apart():
    assert suffix({"budget.total_usd": "300", "model": "gpt_1b"}) == "-total_usd-300-model-gpt_1b"
    assert suffix({"data.path": "/a b/c"}) == "-path-a_b_c"
    assert suffix({"run.name": "x"}) == ""


def test_long_and_alike_is_still_told_apart():
    names = {suffix({"data.path": "/a" * 100 + end}) for end in "xy"}
    assert len(names) == 2
    assert all(len(name) <= 60 for name in names)


def test_only_what_has_a_run_gets_a_name_of_its_own():
    config = a_config("run=mine", "action=train")
    set_apart(config, "-seed-1")
    assert config.run.name == "mine-seed-1"
    config = a_config("action=status")
    set_apart(config, "-seed-1")
    assert config.run.name is None


def test_a_budget_does_not_name_a_run_but_a_sweep_over_it_does():
    names = set()
    for dollars in ("1", "2"):
        config = a_config(f"budget.total_usd={dollars}")
        set_apart(config, suffix({"budget.total_usd": dollars}))
        names.add(config.run.name)
    assert len(names) == 2


@pytest.mark.parametrize(
    ("told", "figures"),
    [
        (PLANNED, ("2 x A, pp1 x dp2 x tp1", 1.5, 30.0, None)),
        (TRAINED, ("pp2 x dp1 x tp1", 0.5, 4.0, 2.5)),
        ([PLANNED, TRAINED], ("pp2 x dp1 x tp1", 0.5, 4.0, 2.5)),
        ({"action": "recipe", "steps": [{"document": PLANNED}]},
         ("2 x A, pp1 x dp2 x tp1", 1.5, 30.0, None)),
        (None, (None, None, None, None)),
    ],
)  # fmt: skip
def test_a_row_has_the_figures_of_whatever_the_job_did(told, figures):
    row = document(Job(chosen={"seed": "1"}, exit_code=0, document=told))
    assert (row["plan"], row["step_s"], row["cost_usd"], row["loss"]) == figures
    assert (row["overrides"], row["exit_code"], row["error"]) == ({"seed": "1"}, 0, None)


def test_a_refused_job_is_a_row_with_its_error():
    row = document(Job(chosen={}, exit_code=3, document=REFUSED))
    assert (row["exit_code"], row["error"]["code"], row["document"]) == (3, "E301", None)


@pytest.mark.parametrize(
    ("exit_code", "told", "stopped"),
    [(0, None, False), (3, REFUSED, False), (75, {"status": "interrupted"}, True),
     (75, {"error": {"code": "E405"}}, False), (130, None, True), (None, None, True)],
)  # fmt: skip
def test_only_a_person_stops_the_jobs_after_it(exit_code, told, stopped):
    assert Job(chosen={}, exit_code=exit_code, document=told).is_stopped is stopped
