"""The recipes that come with the project: each composes, plans, and says what planning says."""

from __future__ import annotations

import re

import pytest

import run
from actions.planning import question
from actions.recipe.book import read
from actions.recipe.header import NOT_RUN, book, foretold, read_header, table
from tests.helpers.compose import a_config
from tests.helpers.recipes import FOLDER, TWELVE

HERE = ("gpt_125m_laptop", "spot_chaos_demo")  # planned for the computer at hand
MIXED = {
    "opt_350m_two_zones_mixed": {"A100-40", "V100-16"},
    "gpt_2_7b_sailor_paper": {"A100-40", "V100-16"},
    "slurm_two_partitions": {"A100-80", "H100-80"},
}


def test_there_are_twelve():
    assert tuple(path.stem for path in book(FOLDER)) == TWELVE


@pytest.mark.parametrize("name", TWELVE)
def test_a_recipe_composes_with_every_step(name):
    recipe = read(FOLDER / f"{name}.yaml")
    assert recipe.actions == ("prepare", "plan", "train", "eval", "export", "report")
    run.store_schema()
    for smoke in ("false", "true"):
        compose = run.composer([f"recipe={name}", f"recipe.smoke={smoke}"])
        for step in recipe.actions:
            config = compose(f"action={step}")
            assert config.run.name == name + ("-smoke" if smoke == "true" else "")
            assert config.actions == [step]


@pytest.mark.parametrize("name", TWELVE)
def test_a_recipe_plans_and_its_header_says_so(name):
    config = a_config(f"recipe={name}", "action=plan")
    machine, planned = foretold(config)
    header = read_header((FOLDER / f"{name}.yaml").read_text())
    assert header.command.startswith(f"python run.py recipe={name}")
    assert header.machine
    if name in HERE:
        return  # other cores, other figures
    # Figures of the same prices; a fifth is what a change of the planner may move them before
    # somebody has to run the command again.
    then, now = seconds_a_step(header.planned), seconds_a_step(planned)
    assert then == pytest.approx(now, rel=0.2), "python run.py action=recipe.header writes it anew"
    assert gpus(header.machine) == gpus(machine), "python run.py action=recipe.header"


def seconds_a_step(words: str) -> float:
    return float(re.search(r"([\d.e+]+) s a step", words)[1])


def gpus(words: str) -> set[str]:
    return set(re.findall(r"\d x (\S+)", words))


@pytest.mark.parametrize("name", MIXED)
def test_what_is_called_mixed_is(name):
    best = question(a_config(f"recipe={name}", "action=plan")).answer().best
    used = {stage.gpu for replica in best.plan.replicas for stage in replica.stages}
    assert used == MIXED[name]


def test_the_table_is_what_the_command_makes():
    page = table(read(path) for path in book(FOLDER))
    assert (FOLDER / "README.md").read_text() == page, "python run.py action=recipe.header"


def test_a_measured_result_is_of_the_run_it_says():
    """Nobody types one in: it has the form the command gives it."""
    form = re.compile(
        r"[\d,]+ steps in .+ on \d+ x .+, \$[\d.,]+, loss [\d.]+ to [\d.]+.*goodput \d+%"
    )
    for path in book(FOLDER):
        words = read_header(path.read_text()).measured
        assert words == NOT_RUN or form.match(words), path
