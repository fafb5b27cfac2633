"""Values that make no sense are refused, all at once, each with a value that would do."""

from __future__ import annotations

import pytest

from sailor.errors import ConfigError
from tests.helpers.compose import a_config


@pytest.mark.parametrize(
    ("override", "offered"),
    [
        ("budget.deadline=24", "budget.deadline=24h"),
        ("planner.patience=soon", "planner.patience=10min"),
        ("cloud.memory_per_gpu=lots", "cloud.memory_per_gpu=80GiB"),
        ("train.tokens=20Q", "train.tokens=20B"),
        ("train.steps=0", "train.steps=1"),
        ("train.global_batch_size=-4", "train.global_batch_size=1"),
        ("train.sequence_length=100000", "train.sequence_length=256"),
        ("optim.beta1=1", "optim.beta1=0.999999"),
        ("optim.learning_rate=nan", "optim.learning_rate=<number>"),
        ("optim.min_learning_rate=1", "optim.min_learning_rate=0.003"),
        ("optim.warmup_steps=500", "optim.warmup_steps=20"),
        ("budget.total_usd=-1", "budget.total_usd=0"),
        ("model.num_kv_heads=3", "model.num_kv_heads=4"),
        ("runtime.port=70000", "runtime.port=65535"),
        ("runtime.silence=0.3s", "runtime.silence=0.8s"),
        ("runtime.halt=0s", "runtime.halt=10s"),
        ("checkpoint.keep=0", "checkpoint.keep=1"),
        ("run.name=a/b", "run.name=my-run"),
        ("runs_dir=''", "runs_dir=runs"),
        ("data=text", "data.path=PATH/TO/TEXT"),
        ("faults=file", "faults.path=PATH/TO/FILE.yaml"),
        ("action=[]", "action=train"),
        ("seed=abc", "seed=0"),
        ("optim.schedule=cosin", "optim.schedule=cosine"),
        ("optim.schedule=null", "optim.schedule=cosine"),
        ("model.num_layers=2.5", "model.num_layers=<value>"),
        ("cloud.zones=a", "cloud.zones=[a]"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_one_that_does(override, offered):
    with pytest.raises(ConfigError) as refusal:
        a_config(override)
    assert refusal.value.code == "E104"
    assert refusal.value.exit_code == 2
    assert offered in refusal.value.fix
    key = offered.partition("=")[0]
    assert key in refusal.value.what


@pytest.mark.parametrize(
    "override", ["budget.deadline=24h", "train.tokens=5k", "cloud.memory_per_gpu=512MiB",
                 "optim.clip_norm=0", "checkpoint.persist_every=0", "planner.data_parallel=null"],
)  # fmt: skip
def test_a_value_that_makes_sense_passes(override):
    a_config(override)


def test_everything_wrong_is_said_at_once_and_the_offered_command_works():
    wrong = ["seed=abc", "optim.schedule=cos", "budget.deadline=24", "train.steps=0"]
    with pytest.raises(ConfigError) as refusal:
        a_config(*wrong)
    assert refusal.value.what == "4 settings cannot be used"
    for argument in wrong:
        assert argument in refusal.value.where
    command = refusal.value.fix.removeprefix("python run.py ").split()
    assert a_config(*command).budget.deadline == "24h"
