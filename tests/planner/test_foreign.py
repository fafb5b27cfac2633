"""Plans in the words of other engines, and plans they have no word for."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from sailor.models.spec import Family
from sailor.plan import Plan, Replica, Stage
from sailor.planner.foreign import Export, exports
from sailor.profile.profile import Numerics
from tests.helpers.builders import a_spec

BF16 = Numerics(compute_bytes=2)


def a_replica(*counts: int, degree: int = 1, microbatches: int = 4, gpu: str = "A100-40"):
    stages, start = [], 0
    for count in counts:
        stages.append(
            Stage(
                layers=range(start, start + count), gpu=gpu, machine_type="m", zone="a",
                tensor_parallel=degree,
            )
        )  # fmt: skip
        start += count
    return Replica(stages=tuple(stages), num_microbatches=microbatches, microbatch_size=2)


def a_plan(*replicas: Replica, sharding: bool = False) -> Plan:
    return Plan(model="m", replicas=replicas, sequence_length=16, optimizer_sharding=sharding)


def said(plan: Plan, engine: str, **changes) -> Export:
    spec = a_spec(num_layers=plan.num_layers, **changes)
    return next(e for e in exports(plan, spec=spec, numerics=BF16) if e.engine == engine)


def test_megatron_is_told_degrees_batches_and_an_uneven_cut():
    text = said(a_plan(a_replica(1, 3), a_replica(1, 3), sharding=True), "megatron-lm").text
    words = text.split()

    def value(name: str) -> str:
        return words[words.index(name) + 1]

    assert value("--pipeline-model-parallel-size") == "2"
    assert value("--micro-batch-size") == "2"
    assert value("--global-batch-size") == "16"
    assert value("--pipeline-model-parallel-layout").strip("'") == "Et|t*3L"
    assert "--use-distributed-optimizer" in words
    assert "--bf16" in words


def test_an_even_cut_needs_no_layout():
    assert "layout" not in said(a_plan(a_replica(2, 2)), "megatron-lm").text


def test_torchtitan_is_told_which_modules_a_stage_holds():
    text = said(a_plan(a_replica(1, 3)), "torchtitan", family=Family.llama).text
    parallelism = tomllib.loads(text)["parallelism"]
    assert parallelism["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3", "norm", "output"],
    ]


def test_deepspeed_is_told_of_replicas_without_stages_only():
    found = json.loads(said(a_plan(a_replica(4), a_replica(4), sharding=True), "deepspeed").text)
    assert found["train_batch_size"] == 16
    assert found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * 2 == 16
    assert found["zero_optimization"] == {"stage": 1}
    assert said(a_plan(a_replica(2, 2)), "deepspeed").refused


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (a_plan(a_replica(2, 2), a_replica(2, 2, degree=2)), "unequal tensor parallelism"),
        (a_plan(a_replica(4), a_replica(4, microbatches=3)), "uneven data parallelism"),
        (a_plan(a_replica(1, 3), a_replica(2, 2)), "cut differently"),
        (a_plan(a_replica(4), a_replica(4, gpu="V100-16")), "several kinds"),
    ],
)
def test_what_an_engine_has_no_word_for_is_refused_and_named(plan, word):
    for export in exports(plan, spec=a_spec(num_layers=4), numerics=BF16):
        assert any(word in reason for reason in export.refused), export.engine
        assert export.text == ""


def test_recompute_in_one_stage_only_is_refused():
    replica = a_replica(2, 2)
    stages = (replace(replica.stages[0], recompute=True), replica.stages[1])
    plan = a_plan(replace(replica, stages=stages))
    assert any("recompute" in reason for reason in said(plan, "megatron-lm").refused)
