"""A recipe at the small scale: run again, with a change, stopped, killed, broken and copied."""

from __future__ import annotations

import json
import shutil
import signal

from tests.helpers.recipes import TWELVE, a_recipe, call, started, told
from tests.helpers.running import Place, leftovers

ALL = ("prepare", "plan", "train", "eval", "export", "report")
SMOKE = "recipe.smoke=true"
# Long enough to be met on the way, on one machine.
LONG = ("recipe=gpt_350m_one_gpu", SMOKE, "train.steps=300", "checkpoint.persist_every=10")


def test_a_second_call_does_only_what_has_changed(place: Place):
    name = place.named("recipe-again")
    base = ("recipe=gpt_350m_one_gpu", SMOKE, f"run.name={name}")
    assert call(place, *base).states == dict.fromkeys(ALL, "done")

    again = call(place, *base)
    assert again.states == dict.fromkeys(ALL, "skipped")
    assert all("unchanged since it was done" in why for why in again.reasons.values())
    assert again.err.count("skipped: unchanged") == len(ALL)
    seen = call(place, *base, "action=status")
    assert seen.states == dict.fromkeys(ALL, "skipped")
    assert all(step["when"] for step in seen.document["steps"])

    richer = call(place, *base, "budget.total_usd=400")  # no reason to throw a model away
    assert (richer.states["plan"], richer.states["train"]) == ("done", "skipped")

    looked = call(place, *base, "train.steps=6", "action=status")
    assert looked.states == {"prepare": "skipped"} | dict.fromkeys(ALL[1:], "to do")
    assert looked.reasons["train"] == "train.steps was 4, is 6"
    longer = call(place, *base, "train.steps=6")
    assert longer.states == {"prepare": "skipped"} | dict.fromkeys(ALL[1:], "done")
    assert longer.reasons["train"] == "train.steps was 4, is 6"
    assert json.loads((place.runs / name / "summary.json").read_text())["steps"] == 6
    kept = place.runs / f"{name}.old-1" / "summary.json"  # what was trained before is not lost
    assert json.loads(kept.read_text())["steps"] == 4

    seen_more = call(place, *base, "train.steps=6", "eval.tokens=3")
    assert seen_more.states == {
        "prepare": "skipped", "plan": "skipped", "train": "skipped", "eval": "done",
        "export": "done", "report": "done",
    }  # fmt: skip

    shutil.rmtree(place.runs / name / "export")
    restored = call(place, *base, "train.steps=6", "eval.tokens=3")
    assert restored.states["export"] == "done"
    assert "is gone" in restored.reasons["export"]
    assert restored.states["eval"] == "skipped"


def test_a_recipe_that_is_interrupted_and_then_killed_goes_on_where_it_stopped(place: Place):
    name = place.named("recipe-killed")
    with started(place, *LONG, name=name) as running:
        running.until_step(15)
        running.signal(signal.SIGINT)
        first = running.wait()
    assert first.code == 75, first.told()
    assert told(first).states["train"] == "stopped"
    stopped_at = first.summary["steps"]
    seen = call(place, *LONG, f"run.name={name}", "action=status")
    assert seen.reasons["train"] == "goes on where it stopped"
    assert seen.states["train"] == "to do"

    with started(place, *LONG, name=name) as running:
        running.until_step(stopped_at + 15)
        running.signal(signal.SIGSTOP)  # a quick computer would be done before it was looked at
        during = call(place, *LONG, f"run.name={name}", "action=status")
        assert during.states["train"] == "running"
        assert call(place, *LONG, f"run.name={name}").document["error"]["code"] == "E606"
        running.signal(signal.SIGKILL)
        running.wait(leaves_nothing=False)
    assert call(place, *LONG, f"run.name={name}", "action=status").reasons["train"] == (
        "was ended by force"
    )

    third = call(place, *LONG, f"run.name={name}")
    assert third.code == 0, third.err
    assert third.states == {
        "prepare": "skipped", "plan": "skipped", "train": "done", "eval": "done",
        "export": "done", "report": "done",
    }  # fmt: skip
    summary = json.loads((place.runs / name / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("done", 300)
    # The third call, if it is quick, finds the machines of the second alive and takes them over.
    assert summary["starts"] + summary["adoptions"] == 3
    assert summary["lost_samples"] == summary["repeated_samples"] == 0
    assert leftovers(name) == []


def test_a_step_that_fails_ends_it_with_that_steps_code_and_the_same_command_goes_on(place: Place):
    name = place.named("recipe-fails")
    text = place.root / "appears-later"
    mine = a_recipe(
        place.root / "own",
        f"settings: {{data: text, data.path: {text}, train.steps: 2, faults: none,\n"
        f"  cloud.memory_per_gpu: 10KiB}}\nsteps: [prepare, plan]\n",
    )
    base = (f"recipe={mine}", f"run.name={name}")
    failed = call(place, *base)
    assert failed.code == 5
    assert failed.err.count("error[E501]") == failed.err.count("error[") == 1
    assert "step prepare of recipe mine" in failed.err
    assert "the same command goes on with the step prepare" in failed.err
    seen = call(place, *base, "action=status")
    assert seen.states == {"prepare": "failed", "plan": "to do"}
    assert "E501" in seen.reasons["prepare"]

    shutil.copytree(place.text, text)
    unplanned = call(place, *base)
    assert unplanned.code == 3
    assert "step plan of recipe mine" in unplanned.err
    assert unplanned.document["error"]["code"] == "E301"
    planned = call(place, *base, "cloud.memory_per_gpu=1GiB")
    assert planned.states == {"prepare": "skipped", "plan": "done"}


def test_all_steps_are_checked_before_the_first_begins(place: Place):
    mine = a_recipe(
        place.root / "own", name="wrong_late",
        text="settings: {train.steps: 2}\nsteps: [prepare, export: {export.dtype: x}]",
    )  # fmt: skip
    refused = call(place, f"recipe={mine}")
    assert (refused.code, refused.document["error"]["code"]) == (2, "E104")
    assert not (place.runs / "recipes" / "wrong_late.json").exists()


def test_a_copy_is_the_users_own_and_is_never_overwritten(place: Place, tmp_path):
    copied = call(place, "action=recipe.copy", "name=spot_chaos_demo", cwd=tmp_path)
    assert copied.code == 0, copied.err
    path = tmp_path / "recipes" / "my_spot_chaos_demo.yaml"
    assert path.read_text().startswith("# python run.py recipe=my_spot_chaos_demo\n")
    path.write_text(path.read_text().replace("model: gpt_tiny", "model: gpt_tiny\n  seed: 11"))
    refused = call(place, "action=recipe.copy", "name=spot_chaos_demo", cwd=tmp_path)
    assert (refused.code, refused.document["error"]["code"]) == (2, "E110")
    assert "seed: 11" in path.read_text()
    listed = call(place, "action=recipe.list", cwd=tmp_path)
    assert {"my_spot_chaos_demo", *TWELVE} == {row["recipe"] for row in listed.document}
    planned = call(place, "recipe=my_spot_chaos_demo", "action=plan", cwd=tmp_path)
    assert planned.code == 0, planned.err
    other = call(place, "action=recipe.copy", "name=spot_choas_demo", cwd=tmp_path)
    assert other.document["error"]["fix"].endswith("name=my_spot_chaos_demo") or other.document[
        "error"
    ]["fix"].endswith("name=spot_chaos_demo")
