"""The machinery of benchmarks.engine, on a model that takes no time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from benchmarks.engine import GOALS, table
from benchmarks.engine_crew import Record, Turn, assembled, compete, ratio
from benchmarks.engine_shapes import CUTS, SHAPES, plan_of, some_text


def a_record(*walls: float) -> Record:
    return Record(turns=[Turn(wall_s=wall, cpu_s=2 * wall, loss=1.0, others=0.0) for wall in walls])


def test_a_ratio_is_of_the_best_rounds_and_of_each_pair():
    times = ratio(a_record(4.0, 6.0, 9.0), a_record(2.0, 2.0, 2.5))
    assert times == {"best": 2.0, "median": 3.0, "min": 2.0, "max": 3.6}


def test_shapes_have_the_sizes_that_others_were_measured_in():
    sizes = {name: shape.spec().num_parameters for name, shape in SHAPES.items()}
    assert sizes["3m"] == pytest.approx(3.69e6, rel=0.01)
    assert sizes["25m"] == pytest.approx(25.6e6, rel=0.01)
    for shape in (SHAPES["3m"], SHAPES["25m"]):
        for cut in ("one", "tp2pp2", "pp2dp2"):
            tensor, pipeline, data = CUTS[cut]
            plan = plan_of(shape, cut)
            assert plan.global_batch_size == shape.batch
            assert plan.num_gpus == tensor * pipeline * data
            assert plan.problems(shape.spec()) == []


def test_the_table_says_what_is_reached():
    drawn = table({"elastic_overhead": 0.01, "ratio_vs_torch_tp2pp2": 1.2, "other": None})
    assert list(drawn.columns[-1].cells) == ["yes", "no", ""]
    assert set(GOALS) >= {"elastic_overhead", "ratio_vs_torch_tp2pp2"}


@pytest.mark.slow
def test_contenders_take_turns_and_learn(tmp_path):
    pytest.importorskip("transformers")
    tokens = some_text(tmp_path)
    jobs = {
        "ours": {
            "kind": "ours", "world_size": 2, "shape": "tiny", "cut": "dp2", "tokens": tokens,
            "deterministic": True,
        },
        "theirs": {"kind": "transformers", "world_size": 1, "shape": "tiny", "tokens": tokens},
    }  # fmt: skip
    with ExitStack() as stack:
        crews = assembled(stack, jobs)
        records = compete(crews, rounds=2, steps={"ours": 40, "theirs": 40})
    for record in records.values():
        assert len(record.turns) == 2
        assert all(turn.wall_s > 0 and turn.cpu_s > 0 for turn in record.turns)
        assert record.turns[-1].loss < record.turns[0].loss
