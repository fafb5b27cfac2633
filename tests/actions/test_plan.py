"""action=plan as a user meets it: a table, or one JSON document; a plan file that can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sailor.plan import Plan

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments, tmp_path):
    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "action=plan", f"runs_dir={tmp_path}", *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip


def test_a_cloud_is_planned_with_no_account_and_the_prices_are_dated(tmp_path):
    done = command("model=gpt_1b", "cloud=gcp", "budget.total_usd=300", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "days old" in done.stdout
    assert "chosen" in done.stdout
    assert "over budget ($300)" in done.stdout
    (path,) = (tmp_path / "plans").glob("*.json")
    plan = Plan.from_json(path.read_bytes())
    assert plan.model == "gpt_1b"


def test_one_json_document_says_everything(tmp_path):
    done = command("output=json", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    chosen = document["chosen"]
    assert document["model"]["name"] == "gpt_tiny"
    assert chosen["peak_bytes"] <= chosen["capacity_bytes"]
    assert {t["mark"] for t in chosen["step_terms"]} <= {"measured", "calibrated", "modelled"}
    assert chosen["step_s"] == pytest.approx(sum(t["value"] for t in chosen["step_terms"]))
    assert Plan.from_json(Path(document["plan_path"]).read_bytes()).num_gpus == chosen["num_gpus"]


def test_the_answer_says_how_good_it_is_and_what_would_be_better(tmp_path):
    done = command("model=gpt_1b", "cloud=gcp", "output=json", tmp_path=tmp_path)
    document = json.loads(done.stdout)
    bound = document["bound"]
    assert bound["unit"] == "dollars"
    assert 0 < bound["least"] <= bound["reached"]
    assert bound["gap"] == pytest.approx(bound["reached"] / bound["least"] - 1)
    hours = [entry["hours"] for entry in document["front"]]
    dollars = [entry["dollars"] for entry in document["front"]]
    assert hours == sorted(hours)
    assert dollars == sorted(dollars, reverse=True)
    assert all(change["gain"] > 0 for change in document["would_help"])
    assert "do not mix GPU types" in document["mixing"]


def test_the_picture_is_one_offline_page(tmp_path):
    done = command("output=json", "planner.picture=true", tmp_path=tmp_path)
    page = Path(json.loads(done.stdout)["picture_path"]).read_text()
    assert page.count("<svg") == 4
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "replica 2, stage 2" in page


def test_no_picture_is_drawn_where_nobody_looks(tmp_path):
    """It takes more than half of the time of an answer: programs that want it say so."""
    done = command("output=json", tmp_path=tmp_path)
    document = json.loads(done.stdout)
    assert document["picture_path"] is None
    assert Path(document["plan_path"]).exists()
    assert list(Path(document["plan_path"]).parent.glob("*.html")) == []


def test_the_demonstration_is_cut_and_would_be_cut_otherwise_on_three_machines(tmp_path):
    layouts = []
    for nodes in (4, 3):
        done = command("output=json", f"cloud.nodes={nodes}", tmp_path=tmp_path)
        layouts.append(json.loads(done.stdout)["chosen"]["layout"].split(" mb")[0])
    assert layouts == ["pp2 x dp2 x tp1", "pp3 x dp1 x tp1"]


def test_no_plan_is_exit_three_with_a_way_out(tmp_path):
    done = command("cloud.nodes=1", tmp_path=tmp_path)
    assert done.returncode == 3
    assert "error[E301]" in done.stderr
    assert "cloud.nodes=2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_slower_than_asked_for_is_never_chosen(tmp_path):
    """The limit was there, but nobody could set it."""
    words = ("model=gpt_1b", "cloud=gcp", "output=json")
    cheapest = json.loads(command(*words, tmp_path=tmp_path).stdout)["chosen"]["tokens_per_s"]
    wanted = 2 * cheapest
    done = command(*words, f"planner.min_tokens_per_second={wanted}", tmp_path=tmp_path)
    assert json.loads(done.stdout)["chosen"]["tokens_per_s"] >= wanted
    done = command(*words, "planner.min_tokens_per_second=1e12", tmp_path=tmp_path)
    assert done.returncode == 3
    assert "error[E303]" in done.stderr


def test_standbys_are_weighed_and_left_to_the_balance_where_no_number_is_asked_for(tmp_path):
    crowd = ("model=gpt_1b", "cloud=gcp", "cloud.machine_types=[a2-highgpu-1g]",
             "output=json", "planner.objective=max_throughput", "cloud.spot=true",
             "cloud.max_nodes=24")  # fmt: skip
    told = {}
    for wish in ("0", "2", "null"):
        done = command(*crowd, f"cloud.standbys={wish}", tmp_path=tmp_path)
        assert done.returncode == 0, done.stderr
        told[wish] = json.loads(done.stdout)["standbys"]
    assert (told["0"]["standbys"], told["2"]["standbys"]) == (0, 2)
    assert told["2"]["dollars_per_hour"] > told["0"]["dollars_per_hour"] == 0.0
    assert told["2"]["saved_per_hour"] > told["0"]["saved_per_hour"] == 0.0
    # All machines that are allowed are in the plan: nobody is left to stand by.
    assert told["null"]["standbys"] == 0
    assert told["null"]["enough"] >= told["null"]["wanted"]


def test_a_spot_plan_says_what_interruptions_cost(tmp_path):
    done = command("model=gpt_1b", "cloud=gcp", "output=json", "budget.total_usd=300",
                   tmp_path=tmp_path)  # fmt: skip
    document = json.loads(done.stdout)
    chosen, expected = document["chosen"], document["chosen"]["expected"]
    assert 0.0 < expected["goodput"] < 1.0
    assert expected["hours"] > chosen["hours"]
    low, high = expected["hours_p50_p90"]
    assert chosen["hours"] <= low <= high
    assert 0.0 <= expected["chance"] <= 1.0
    assert any(line.startswith("chance to finish within $300") for line in document["risk"])
    here = json.loads(command("output=json", tmp_path=tmp_path).stdout)
    assert "expected" not in here["chosen"]
    assert "standbys" not in here
