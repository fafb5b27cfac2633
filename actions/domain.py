"""From what a user said to the frozen values the parts work with. Reads nothing but a fault file.

Everything that is left open in the configuration (null) gets its value here, and only here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from provision.catalog import is_cpu
from sailor.config import Config, Device, Dtype
from sailor.config_keys import plain
from sailor.errors import ConfigError, DataError
from sailor.faults import Fault, FaultKind, read_script
from sailor.models.spec import ModelSpec
from sailor.training.settings import OptimizerSettings, TrainSettings
from sailor.units import parse_count

HERE = ("local", "trace")  # clouds whose machines are processes of this computer
_LONGEST_WARM_UP_STEPS = 500


def model_spec(config: Config) -> ModelSpec:
    """The model as arithmetic."""
    return ModelSpec(**{
        field.name: getattr(config.model, field.name) for field in dataclasses.fields(ModelSpec)
    })  # fmt: skip


def total_steps(config: Config) -> int:
    """Optimizer steps of the whole run; tokens are rounded up to whole steps."""
    train = config.train
    if train.steps is not None:
        return train.steps
    assert train.tokens is not None, "sailor.rules wants one of steps and tokens"
    return math.ceil(parse_count(train.tokens) / (train.global_batch_size * train.sequence_length))


def device(config: Config) -> Device:
    """What workers compute on."""
    if config.runtime.device is not None:
        return config.runtime.device
    here = config.cloud.name in HERE or any(is_cpu(name) for name in config.cloud.machine_types)
    return Device.cpu if here else Device.cuda


def is_deterministic(config: Config) -> bool:
    """Whether gradients are summed exactly."""
    if config.train.deterministic is not None:
        return config.train.deterministic
    return device(config) is Device.cpu


def compute_dtype(config: Config) -> Dtype:
    """The format of matrix products."""
    if config.train.dtype is not None:
        return config.train.dtype
    return Dtype.float32 if device(config) is Device.cpu else Dtype.bfloat16


def optimizer_settings(config: Config) -> OptimizerSettings:
    """AdamW and its schedule, with the steps that were left open filled in."""
    optim, steps = config.optim, total_steps(config)
    lowest, warm_up, decay = optim.min_learning_rate, optim.warmup_steps, optim.decay_steps
    return OptimizerSettings(
        learning_rate=optim.learning_rate,
        min_learning_rate=optim.learning_rate / 10 if lowest is None else lowest,
        schedule=optim.schedule.value,
        warmup_steps=min(steps // 10, _LONGEST_WARM_UP_STEPS) if warm_up is None else warm_up,
        decay_steps=steps // 5 if decay is None else decay,
        beta1=optim.beta1, beta2=optim.beta2, epsilon=optim.epsilon,
        weight_decay=optim.weight_decay, clip_norm=optim.clip_norm,
    )  # fmt: skip


def train_settings(config: Config, *, tokens_path: str, init_from: str = "") -> TrainSettings:
    """The training recipe.

    ``tokens_path`` is the folder that sailor.data.tokens.prepare made, ``init_from`` that of the
    first weights, or "" for the seed; both as a worker sees them.
    """
    train = config.train
    return TrainSettings(
        seed=config.seed, total_steps=total_steps(config), sequence_length=train.sequence_length,
        global_batch_size=train.global_batch_size, optimizer=optimizer_settings(config),
        tokens_path=tokens_path, deterministic=is_deterministic(config),
        compute_dtype=compute_dtype(config).value, device=device(config).value,
        eval_every=train.eval_every, eval_samples=train.eval_samples,
        snapshot_every=config.checkpoint.snapshot_every,
        persist_every=config.checkpoint.persist_every, init_from=init_from,
        guard=train.guard.value, spike_factor=train.spike_factor,
        sequence_parallel=train.sequence_parallel, compile_blocks=train.compile,
    )  # fmt: skip


def first_weights(config: Config) -> str:
    """The folder here that the weights of step 0 come from, or "" for the seed."""
    folder = config.model.init_from
    return "" if folder is None else str(Path(folder).expanduser().absolute())


def faults(config: Config) -> tuple[Fault, ...]:
    """The faults to inject, in the order they come due; none on a cloud the script is not for.

    Raises ConfigError: E105 the script cannot be read, E106 this cloud's machines are not ours.
    """
    wanted = config.faults
    if wanted.clouds and config.cloud.name not in wanted.clouds:
        return ()
    where = wanted.path or f"faults={wanted.name}"
    entries: Any = plain(wanted.script)
    try:
        if wanted.path is not None:
            entries = _fault_file(Path(wanted.path).expanduser())
        script = read_script(entries, total_steps=total_steps(config))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(
            f"the script of faults {where} cannot be used", code="E105",
            why=str(error), where=where,
            fix="faults=demo   or   faults=none   or   one like conf/faults/demo.yaml",
        ) from error  # fmt: skip
    _check_faults(script, config)
    return script


def _check_faults(script: tuple[Fault, ...], config: Config) -> None:
    """Raise ConfigError E106 naming the first entry that cannot be injected on this cloud."""
    cloud = config.cloud
    if script and cloud.name not in HERE:
        raise ConfigError(
            f"{script[0].kind.value} at {script[0].at} cannot be injected with cloud={cloud.name}",
            code="E106",
            why="faults are signals to processes of this computer; a cloud's machines are not ours",
            fix="faults=none   or   cloud=local",
        )
    cut = next((fault for fault in script if fault.kind is FaultKind.cut_node), None)
    if cut is not None and not cloud.isolated:
        raise ConfigError(
            f"cut_node at {cut.at} cannot be injected where machines share one network",
            code="E106",
            where="cloud.isolated=false",
            fix="cloud.isolated=true   gives each a network of its own; needs root and iproute2",
        )


def _fault_file(path: Path) -> list[Any]:
    """The entries of a YAML or JSON file: a list, alone or under ``script``."""
    document = yaml.safe_load(path.read_text())
    if isinstance(document, Mapping):
        document = document.get("script", document.get("faults"))
    if not isinstance(document, list):
        raise ValueError("it should hold a list of entries, alone or under script:")
    return document


def check_vocabulary(config: Config, *, vocab_size: int) -> None:
    """Raise DataError E505 when the tokenizer knows more tokens than the model has rows for."""
    rows = config.model.vocab_size - config.model.vocab_padding
    if vocab_size > rows:
        raise DataError(
            f"tokenizer {config.tokenizer.name} does not fit {config.model.name}",
            code="E505",
            why=f"it makes token numbers up to {vocab_size - 1:,}, the model has "
            f"{rows:,} rows for tokens",
            where="tokenizer, model.vocab_size",
            fix=f"model.vocab_size={vocab_size + config.model.vocab_padding}",
        )
