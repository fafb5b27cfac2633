"""Which values of a Config make sense: ranges, units, and rules across fields. Pure.

``validate`` finds everything wrong at once, so that one reading of the message is enough. What
needs more than the configuration (does it fit? is there text at the path?) is asked later.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sailor.config import SOURCE_NAME, Config
from sailor.config_keys import flatten
from sailor.units import parse_bytes, parse_count, parse_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One value that cannot be used. ``fix`` is an override that can be, or a hint in words."""

    key: str
    what: str
    fix: str
    code: str = "E104"


# Keys with a duration, and one that reads right there.
_SECONDS = {
    "budget.deadline": "24h", "planner.patience": "10min", "runtime.heartbeat": "0.2s",
    "runtime.silence": "5s", "runtime.reconnect": "0.4s", "runtime.lease": "60s",
    "runtime.assemble": "120s", "runtime.halt": "10s", "runtime.boundary": "60s",
    "runtime.plan": "30s", "runtime.prepare": "30s", "runtime.restore": "30s",
    "cloud.join": "20min", "cloud.idle": "15min", "cloud.controller_keeps": "24h",
    "cloud.trace.length": "6h",
    "simulate.length": "7d", "migrate.wait": "5min",
    "runtime.switch": "60s", "runtime.save": "120s", "runtime.leave_margin": "3s",
    "runtime.rebalance_every": "10min",
}  # fmt: skip

# Key -> (least, most) allowed; None is no bound. Keys set to null are not looked at.
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "seed": (0, 2**63 - 1),
    "model.num_layers": (1, None), "model.hidden_size": (1, None), "model.num_heads": (1, None),
    "model.num_kv_heads": (1, None), "model.head_size": (1, None),
    "model.ffn_hidden_size": (1, None), "model.vocab_size": (1, None),
    "model.max_positions": (1, None), "model.norm_epsilon": (0, None),
    "model.vocab_padding": (0, None), "model.position_offset": (0, None),
    "model.rope_theta": (1, None), "model.rope_scaling_factor": (1, None),
    "model.rope_low_freq_factor": (0, None), "model.rope_high_freq_factor": (0, None),
    "model.rope_original_positions": (1, None), "model.sliding_window": (0, None),
    "tokenizer.vocab_size": (1, None), "eval.tokens": (0, None), "eval.temperature": (0, None),
    "eval.top_k": (0, None),
    "train.steps": (1, None), "train.global_batch_size": (1, None),
    "train.sequence_length": (1, None), "train.eval_every": (0, None),
    "train.eval_samples": (1, None), "train.spike_factor": (0, None),
    "optim.learning_rate": (0, None), "optim.min_learning_rate": (0, None),
    "optim.warmup_steps": (0, None), "optim.decay_steps": (0, None), "optim.beta1": (0, 0.999999),
    "optim.beta2": (0, 0.999999), "optim.epsilon": (1e-30, None), "optim.weight_decay": (0, None),
    "optim.clip_norm": (0, None),
    "cloud.trace.zones": (1, 26), "cloud.trace.faster": (1e-3, 1e6), "cloud.trace.most": (1, 64),
    "cloud.nodes_per_cluster": (1, None), "cloud.launches": (1, 8),
    "cloud.max_nodes": (1, None), "cloud.nodes": (1, 64), "cloud.standbys": (0, 64),
    "cloud.gpus_per_node": (1, 64),
    "budget.total_usd": (0, None), "budget.per_hour_usd": (0, None),
    "planner.min_tokens_per_second": (0, None),
    "planner.tensor_parallel": (1, None), "planner.pipeline_parallel": (1, None),
    "planner.data_parallel": (1, None), "planner.microbatch_size": (1, None),
    "runtime.straggler": (1.1, None), "runtime.link_factor": (1.1, None),
    "runtime.port": (0, 65535), "ui.port": (0, 65535), "runtime.max_restarts": (1, None),
    "checkpoint.snapshot_every": (0, None), "checkpoint.compare_every": (0, None),
    "checkpoint.persist_every": (0, None), "checkpoint.keep": (1, None),
    "checkpoint.keep_every": (0, None),
    "simulate.machines": (1, 100_000), "simulate.futures": (1, 1_000_000),
    "simulate.hazard_factor": (0, None), "simulate.price_factor": (0, None),
}  # fmt: skip


def validate(config: Config) -> list[Problem]:
    """Everything that is wrong with the values, in the order of the configuration."""
    flat = flatten(config)
    found = [
        *_units(flat), *_ranges(flat), *_train(config), *_optim(config), *_model(config),
        *_runtime(config), *_data(config), *_faults(config), *_simulate(config), *_names(config),
    ]  # fmt: skip
    order = {key: i for i, key in enumerate(flat)}
    return sorted(found, key=lambda problem: order.get(problem.key, len(order)))


def _units(flat: dict[str, Any]) -> Iterator[Problem]:
    yield from _parsed(flat, _SECONDS, parse_seconds)
    yield from _parsed(
        flat, {"cloud.trace.begin": "1h", "cloud.trace.notice": "5s"}, parse_seconds, zero=True
    )
    yield from _parsed(
        flat, {"cloud.memory_per_gpu": "80GiB", "export.max_shard": "5GB"}, parse_bytes
    )
    yield from _parsed(flat, {"train.tokens": "20B"}, parse_count)


def _parsed(
    flat: dict[str, Any],
    examples: dict[str, str],
    parse: Callable[[Any], float],
    *,
    zero: bool = False,
) -> Iterator[Problem]:
    for key, example in examples.items():
        text = flat[key]
        if text is None:
            continue
        try:
            value = parse(text)
        except ValueError as error:
            # A number without unit is the usual slip: give it the unit most likely meant.
            bare = str(text).replace(".", "", 1).isdigit()
            fix = f"{text}{example.lstrip('0123456789.')}" if bare else example
            yield Problem(key=key, what=str(error), fix=f"{key}={fix}")
        else:
            if value < 0 or (value == 0 and not zero):
                what = f"{text!r} is not more than zero"
                yield Problem(key=key, what=what, fix=f"{key}={example}")


def _ranges(flat: dict[str, Any]) -> Iterator[Problem]:
    for key, (least, most) in _RANGES.items():
        value = flat[key]
        if value is None:
            continue
        if value != value or value in (float("inf"), float("-inf")):
            yield Problem(key=key, what=f"{value} is not a finite number", fix=f"{key}=<number>")
        elif least is not None and value < least:
            yield Problem(key=key, what=f"{value} is less than {least}", fix=f"{key}={least}")
        elif most is not None and value > most:
            yield Problem(key=key, what=f"{value} is more than {most}", fix=f"{key}={most}")


def _train(config: Config) -> Iterator[Problem]:
    train = config.train
    if train.steps is None and train.tokens is None:
        yield Problem(
            key="train.steps", fix="train.steps=200   or   train.tokens=20B",
            what=f"nothing says how long to train {config.model.name}",
        )  # fmt: skip
    if train.steps is not None and train.tokens is not None:
        yield Problem(
            key="train.steps", fix="train.tokens=null",
            what=f"steps {train.steps} and tokens {train.tokens} are both set",
        )  # fmt: skip
    if train.sequence_length > config.model.max_positions:
        yield Problem(
            key="train.sequence_length", fix=f"train.sequence_length={config.model.max_positions}",
            what=f"{train.sequence_length} exceeds the {config.model.max_positions} positions of "
                 f"{config.model.name}",
        )  # fmt: skip

    degree = config.planner.tensor_parallel or 1
    if train.sequence_parallel and train.sequence_length % degree:
        near = train.sequence_length // degree * degree or degree
        yield Problem(
            key="train.sequence_parallel",
            fix=f"train.sequence_length={near}   or   train.sequence_parallel=false",
            what=f"{train.sequence_length} tokens do not go into {degree} equal runs",
        )  # fmt: skip


def _optim(config: Config) -> Iterator[Problem]:
    optim, steps = config.optim, config.train.steps
    if optim.min_learning_rate is not None and optim.min_learning_rate > optim.learning_rate:
        yield Problem(
            key="optim.min_learning_rate", fix=f"optim.min_learning_rate={optim.learning_rate}",
            what=f"{optim.min_learning_rate} is above the peak {optim.learning_rate}",
        )  # fmt: skip
    if steps is not None and 1 <= steps < (optim.warmup_steps or 0):
        yield Problem(
            key="optim.warmup_steps", fix=f"optim.warmup_steps={max(1, steps // 10)}",
            what=f"warm-up of {optim.warmup_steps} steps in a run of {steps}",
        )  # fmt: skip


def _model(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.num_kv_heads >= 1 and model.num_heads % model.num_kv_heads:
        yield Problem(
            key="model.num_kv_heads", fix=f"model.num_kv_heads={model.num_heads}",
            what=f"num_heads {model.num_heads} is not a multiple of it ({model.num_kv_heads})",
        )  # fmt: skip
    if model.vocab_padding >= model.vocab_size >= 1:
        yield Problem(
            key="model.vocab_padding", fix="model.vocab_padding=0",
            what=f"no row of {model.vocab_size} is left for a token",
        )  # fmt: skip
    if model.rope_scaling_factor != 1 and not (
        model.rope_low_freq_factor < model.rope_high_freq_factor
    ):
        yield Problem(
            key="model.rope_low_freq_factor", fix="model.rope_low_freq_factor=1.0",
            what=f"{model.rope_low_freq_factor} is not below rope_high_freq_factor "
                 f"{model.rope_high_freq_factor}",
        )  # fmt: skip


def _runtime(config: Config) -> Iterator[Problem]:
    runtime = config.runtime
    for key in ("silence", "lease"):
        try:
            heartbeat, patience = (
                parse_seconds(runtime.heartbeat),
                parse_seconds(getattr(runtime, key)),
            )
        except ValueError:
            continue  # said by _units
        if patience < 3 * heartbeat:
            yield Problem(
                key=f"runtime.{key}", fix=f"runtime.{key}={4 * heartbeat:g}s",
                what=f"{getattr(runtime, key)} is less than three heartbeats of "
                     f"{runtime.heartbeat}: one late message would end a node",
            )  # fmt: skip


def _data(config: Config) -> Iterator[Problem]:
    if config.data.name in ("text", "tokens") and not config.data.path:
        name = config.data.name
        yield Problem(
            key="data.path", what=f"data={name} needs a file or folder",
            fix=f"data.path=PATH/TO/{name.upper()}",
        )  # fmt: skip
    if config.data.name == "datasets" and not config.data.path:
        yield Problem(
            key="data.path", what="data=datasets needs a folder that save_to_disk wrote",
            fix="data.path=PATH/TO/FOLDER",
        )  # fmt: skip
    yield from _mixture(config)
    if config.tokenizer.name == "file" and not config.tokenizer.path:
        yield Problem(
            key="tokenizer.path", what="tokenizer=file needs a file",
            fix="tokenizer.path=PATH/TO/tokenizer.json",
        )  # fmt: skip


def _mixture(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.name != "mixture":
        if data.mixture:
            yield Problem(
                key="data.mixture", fix="data=mixture",
                what=f"sources are named ({', '.join(data.mixture)}), but data is {data.name}",
            )  # fmt: skip
        return
    if not data.mixture:
        yield Problem(
            key="data.mixture", what="data=mixture names no source",
            fix="data.mixture.web.path=PATH data.mixture.web.weight=3 "
            "data.mixture.code.name=stdlib data.mixture.code.weight=1",
        )  # fmt: skip
    for name, source in data.mixture.items():
        key = f"data.mixture.{name}"
        if not SOURCE_NAME.fullmatch(name):
            better = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "web"
            yield Problem(
                key=key, what=f"{name!r} cannot name a file", fix=f"data.mixture.{better}.path=PATH"
            )
        if not 0 < source.weight < math.inf:
            words = "is no number" if source.weight != source.weight else "must be above zero"
            fix = f"~{key}   reads nothing of it" if source.weight == 0 else f"{key}.weight=1.0"
            if -math.inf < source.weight < 0:
                fix = f"{key}.weight={-source.weight:g}"
            yield Problem(key=f"{key}.weight", what=f"{source.weight:g} {words}", fix=fix)
        if source.name not in _KINDS:
            ranked = difflib.get_close_matches(source.name, _KINDS, n=1, cutoff=0.0)
            yield Problem(
                key=f"{key}.name", what=f"{source.name!r} is none of {', '.join(_KINDS)}",
                fix=f"{key}.name={ranked[0] if ranked else 'text'}",
            )  # fmt: skip
        elif source.name != "stdlib" and not source.path:
            yield Problem(key=f"{key}.path", what="needs a path", fix=f"{key}.path=PATH")


_KINDS = ("stdlib", "text", "tokens", "datasets")


def _faults(config: Config) -> Iterator[Problem]:
    if config.faults.name == "file" and not config.faults.path:
        yield Problem(
            key="faults.path", what="faults=file needs a file", fix="faults.path=PATH/TO/FILE.yaml"
        )


def _simulate(config: Config) -> Iterator[Problem]:
    for rate in config.simulate.storage:
        if not rate > 0:
            yield Problem(
                key="simulate.storage", what=f"{rate} GB/s stores nothing",
                fix="simulate.storage=[0.25,1.0]",
            )  # fmt: skip


def _names(config: Config) -> Iterator[Problem]:
    action = config.action
    named = [action] if isinstance(action, str) else action
    if not isinstance(named, list) or not named or not all(isinstance(n, str) for n in named):
        yield Problem(key="action", what=f"{action!r} names no action", fix="action=train")
    if config.recipe.smoke and config.recipe.name is None:
        yield Problem(
            key="recipe.smoke", what="it is the small scale of a recipe, and none is named",
            fix="recipe=NAME beside it",
        )  # fmt: skip
    name = config.run.name
    if name is not None and (not name or name.startswith(".") or "/" in name or "\\" in name):
        yield Problem(key="run.name", what=f"{name!r} cannot name a folder", fix="run.name=my-run")
    if not config.runs_dir:
        yield Problem(key="runs_dir", what="an empty path", fix="runs_dir=runs")
