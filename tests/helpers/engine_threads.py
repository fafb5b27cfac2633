"""All ranks of a plan as threads of this process, over real groups: many small runs in little time.

Nothing of the engine is replaced: gloo groups are built on a store in memory, and each thread is a
rank's whole trainer. What needs processes (kills, signals) is in ``engine.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sailor.parallel.groups import build_groups
from sailor.parallel.layout import Layout
from sailor.training.settings import TrainSettings
from sailor.training.trainer import StepOutcome, Trainer

TIMEOUT_S = 60.0  # of one exchange, on a machine with a dozen others at work

State = Mapping[str, torch.Tensor]  # '<box name> <kind>' -> its content


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of it, by rank."""

    trainers: list[Trainer]
    outcomes: list[list[StepOutcome]]
    eval_losses: list[float]

    @property
    def losses(self) -> list[float]:
        """By step; the same on every rank."""
        series = [[outcome.loss for outcome in rank] for rank in self.outcomes]
        assert all(one == series[0] for one in series)
        return series[0]

    @property
    def grad_norms(self) -> list[float]:
        """By step; the same on every rank."""
        series = [[outcome.grad_norm for outcome in rank] for rank in self.outcomes]
        assert all(one == series[0] for one in series)
        return series[0]

    def state(self) -> State:
        """Every box with its kind; all who keep it must hold the same bits (invariant I2)."""
        merged: dict[str, torch.Tensor] = {}
        for trainer in self.trainers:
            for name, value in contents(trainer).items():
                if name in merged:
                    assert torch.equal(merged[name], value), f"two ranks keep another {name}"
                merged[name] = value
        return merged


def contents(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of what a trainer keeps."""
    return {
        f"{box.name} {kind}": getattr(tensors, kind).clone()
        for box, tensors in trainer.state.items()
        for kind in ("weight", "moment1", "moment2")
    }


def train(
    layout: Layout, settings: TrainSettings, *, steps: range, state: State | None = None,
    evaluate: bool = False,
) -> Ran:  # fmt: skip
    """Train some steps, from a state or from the seed, and evaluate behind each where asked to.

    The first failure of a rank is raised.
    """
    store = dist.HashStore()
    abort = threading.Event()

    def play(rank: int) -> _Played:
        try:
            return _play(
                layout, rank, settings, steps=steps, state=state, evaluate=evaluate, store=store,
                abort=abort,
            )  # fmt: skip
        except BaseException:
            abort.set()  # the others would wait for this one
            raise

    with ThreadPoolExecutor(layout.world_size) as pool:
        played = list(pool.map(play, range(layout.world_size)))
    evaluations = [losses for _, _, losses in played]
    assert all(losses == evaluations[0] for losses in evaluations)
    return Ran(
        trainers=[trainer for trainer, _, _ in played],
        outcomes=[outcomes for _, outcomes, _ in played],
        eval_losses=evaluations[0],
    )


_Played = tuple[Trainer, list[StepOutcome], list[float]]


def _play(
    layout: Layout, rank: int, settings: TrainSettings, *, steps: range, state: State | None,
    evaluate: bool, store: dist.Store, abort: threading.Event,
) -> _Played:  # fmt: skip
    trainer = Trainer(layout=layout, rank=rank, settings=settings)
    if state is None:
        trainer.initialise(trainer.state)
    else:
        for box, tensors in trainer.state.items():
            for kind in ("weight", "moment1", "moment2"):
                getattr(tensors, kind).copy_(state[f"{box.name} {kind}"])
    trainer.loaded()
    groups = build_groups(
        layout, rank, generation=1, store=store, abort=abort, timeout_s=TIMEOUT_S, host="127.0.0.1"
    )
    try:
        trainer.connect(groups)
        outcomes, losses = [], []
        for step in steps:
            outcomes.append(trainer.step(step, stop=False))
            if evaluate:
                losses.append(trainer.evaluate())
        return trainer, outcomes, losses
    finally:
        for group in groups.values():
            group.close()
