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
    done = command("output=json", tmp_path=tmp_path)
    page = Path(json.loads(done.stdout)["picture_path"]).read_text()
    assert page.count("<svg") == 4
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "replica 2, stage 2" in page


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
