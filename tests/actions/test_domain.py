"""What is left open in a configuration gets its value in one place."""

from __future__ import annotations

import pytest

from actions import domain
from actions.waits import limits as limits_of
from sailor.config import Device, Dtype
from sailor.errors import ConfigError
from sailor.runtime.state import Limits
from tests.helpers.compose import a_config


def test_the_model_is_the_one_of_the_configuration():
    spec = domain.model_spec(a_config("model.num_layers=2", "model.hidden_size=64"))
    assert (spec.num_layers, spec.hidden_size, spec.name) == (2, 64, "gpt_tiny")


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["train.steps=7"], 7),
        (["train.tokens=2048"], 1),
        (["train.tokens=2049"], 2),
        (["train.tokens=1M"], 489),
    ],
)
def test_tokens_are_rounded_up_to_whole_steps(arguments, steps):
    assert domain.total_steps(a_config(*arguments)) == steps


@pytest.mark.parametrize(
    ("arguments", "device", "deterministic", "dtype"),
    [
        ([], Device.cpu, True, Dtype.float32),
        (["cloud=trace"], Device.cpu, True, Dtype.float32),
        (["cloud=gcp"], Device.cuda, False, Dtype.bfloat16),
        (["runtime.device=cuda"], Device.cuda, False, Dtype.bfloat16),
        (["train.deterministic=false", "train.dtype=bfloat16"], Device.cpu, False, Dtype.bfloat16),
    ],
)
def test_device_decides_what_is_left_open(arguments, device, deterministic, dtype):
    config = a_config(*arguments)
    assert domain.device(config) is device
    assert domain.is_deterministic(config) is deterministic
    assert domain.compute_dtype(config) is dtype


def test_the_schedule_is_filled_in_from_the_number_of_steps():
    optimizer = domain.optimizer_settings(a_config("train.steps=200", "optim.learning_rate=1e-3"))
    assert optimizer.min_learning_rate == pytest.approx(1e-4)
    assert (optimizer.warmup_steps, optimizer.decay_steps) == (20, 40)
    long = domain.optimizer_settings(a_config("train.steps=100000"))
    assert long.warmup_steps == 500
    said = domain.optimizer_settings(
        a_config("optim.warmup_steps=0", "optim.decay_steps=3", "optim.min_learning_rate=0")
    )
    assert (said.warmup_steps, said.decay_steps, said.min_learning_rate) == (0, 3, 0.0)


def test_settings_carry_every_key_that_decides_the_result():
    settings = domain.train_settings(
        a_config("seed=3", "checkpoint.snapshot_every=2", "train.eval_every=50"), tokens_path="/t"
    )
    assert (settings.seed, settings.snapshot_every, settings.eval_every) == (3, 2, 50)
    assert (settings.compute_dtype, settings.device, settings.tokens_path) == (
        "float32", "cpu", "/t",
    )  # fmt: skip


def test_waits_are_seconds():
    limits = limits_of(a_config("runtime.halt=500ms", "planner.patience=1h"), initial_nodes=4)
    assert (limits.halt_s, limits.park_s, limits.initial_nodes) == (0.5, 3600.0, 4)


def test_default_waits_are_those_of_the_life_cycle():
    assert limits_of(a_config(), initial_nodes=4) == Limits(initial_nodes=4)


def test_faults_are_refused_by_name_where_machines_are_not_our_processes(tmp_path):
    script = tmp_path / "faults.json"
    script.write_text('[{"kind": "kill_worker", "at": 3}]')
    assert len(domain.faults(a_config("cloud=local", f"faults={script}"))) == 1
    assert domain.faults(a_config("cloud=gcp")) == ()
    with pytest.raises(ConfigError, match="kill_worker at step 3 .* cloud=gcp") as caught:
        domain.faults(a_config("cloud=gcp", f"faults={script}"))
    assert (caught.value.code, caught.value.exit_code) == ("E106", 2)


def test_cutting_a_network_needs_one_of_its_own(tmp_path):
    script = tmp_path / "faults.json"
    script.write_text('[{"kind": "cut_node", "at": 3}]')
    assert len(domain.faults(a_config(f"faults={script}", "cloud.isolated=true"))) == 1
    with pytest.raises(ConfigError, match="share one network") as caught:
        domain.faults(a_config(f"faults={script}"))
    assert caught.value.code == "E106"
