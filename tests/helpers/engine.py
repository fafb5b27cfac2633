"""Real worker processes that run a plan, and what came of it: for tests of the engine."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath

import numpy as np
from safetensors.numpy import load_file

from sailor.data.corpus import Corpus
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import tokenizer
from sailor.models.spec import Activation, Family, ModelSpec, Norm, Positions
from sailor.parallel.layout import Layout, WorkerId
from sailor.plan import Plan, Replica
from sailor.training.settings import OptimizerSettings, TrainSettings
from tests.helpers.builders import a_spec, a_stage
from tests.helpers.engine_worker import Abort, Ended, Stepped, Train, encoder, reports, serve

LENGTH = 16
ANSWER_S = 100.0  # on a machine with a dozen others at work


def a_gpt(**changes) -> ModelSpec:
    """Byte tokens, 4 blocks, 32 wide, tied embeddings."""
    return a_spec(**{"vocab_size": 256, "activation": Activation.gelu_tanh, **changes})


def a_llama(**changes) -> ModelSpec:
    """Byte tokens, 4 blocks, 32 wide; rotary, RMSNorm, swiglu, own output matrix, no biases."""
    fields = {
        "name": "llama_test", "family": Family.llama, "activation": Activation.swiglu,
        "norm": Norm.rmsnorm, "positions": Positions.rotary, "tied_embeddings": False,
        "attention_bias": False, "attention_output_bias": False, "ffn_bias": False,
    }  # fmt: skip
    return a_gpt(**{**fields, **changes})


def a_replica(
    *cuts: int, microbatches: int, tp: int | tuple[int, ...] = 1, size: int = 2, layers: int = 4,
    recompute: bool = False,
) -> Replica:  # fmt: skip
    """Stages begin at 0 and at each cut; ``tp`` for all of them or one by one."""
    bounds = [0, *cuts, layers]
    degrees = (tp,) * (len(cuts) + 1) if isinstance(tp, int) else tp
    stages = tuple(
        a_stage(start, stop, tp=degree, recompute=recompute)
        for start, stop, degree in zip(bounds[:-1], bounds[1:], degrees, strict=True)
    )
    return Replica(stages=stages, num_microbatches=microbatches, microbatch_size=size)


def a_random_plan(
    spec: ModelSpec, chance: random.Random, *, max_gpus: int, num_samples: int
) -> Plan:
    """Any valid plan with this global batch: cuts, degrees, shares and sizes are all drawn."""
    while True:
        replicas = []
        left = num_samples
        while left:
            size = chance.choice([1, 2, 3])
            count = chance.randint(1, 4)
            if size * count > left:
                size, count = 1, left
            cuts = sorted(chance.sample(range(1, spec.num_layers), chance.randint(0, 2)))
            degrees = tuple(chance.choice([1, 1, 2, 4]) for _ in range(len(cuts) + 1))
            replicas.append(
                a_replica(
                    *cuts, microbatches=count, size=size, tp=degrees, layers=spec.num_layers,
                    recompute=chance.random() < 0.3,
                )
            )  # fmt: skip
            left -= size * count
        plan = Plan(model=spec.name, replicas=tuple(replicas), sequence_length=LENGTH)
        if 1 < plan.num_gpus <= max_gpus:
            return plan


def a_run(
    *replicas: Replica, spec: ModelSpec | None = None, pieces: int = 2, together: bool = False
) -> Layout:
    """A layout of these replicas, one worker a node; on one node if ``together``."""
    spec = spec or a_gpt()
    plan = Plan(model=spec.name, replicas=replicas, sequence_length=LENGTH)
    seats = [("n0", i) if together else (f"n{i}", 0) for i in range(plan.num_gpus)]
    workers = tuple(WorkerId(node=node, slot=slot, incarnation=1) for node, slot in seats)
    return Layout(plan=plan, spec=spec, pieces=pieces, workers=workers)


def some_settings(tokens_path: Path, layout: Layout, **changes) -> TrainSettings:
    """Deterministic, fp32, on the CPU, with a clip that bites."""
    optimizer = OptimizerSettings(
        learning_rate=1e-2, min_learning_rate=1e-3, schedule="cosine", warmup_steps=2,
        decay_steps=0, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0,
    )  # fmt: skip
    fields = {
        "seed": 7, "total_steps": 20, "sequence_length": layout.plan.sequence_length,
        "global_batch_size": layout.plan.global_batch_size, "optimizer": optimizer,
        "tokens_path": str(tokens_path), "deterministic": True, "compute_dtype": "float32",
        "device": "cpu", "eval_every": 0, "eval_samples": 6, "snapshot_every": 1,
        "persist_every": 0,
    }  # fmt: skip
    return TrainSettings(**{**fields, **changes})


def some_tokens(directory: Path) -> Path:
    """A prepared folder of two modules of the standard library."""
    root = Path(os.__file__).parent
    corpus = Corpus(
        name="two modules", root=root, files=(PurePosixPath("argparse.py"), PurePosixPath("ast.py"))
    )
    return Path(prepare(TextSource(corpus, tokenizer("bytes")), directory=directory).path)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What every rank of a run reported, in rank order."""

    steps: list[list[Stepped]]
    ends: list[Ended]
    files: tuple[str, ...]

    @property
    def losses(self) -> list[float]:
        """By step; the same on every rank."""
        series = [[report.loss for report in rank] for rank in self.steps]
        assert all(one == series[0] for one in series)
        return series[0]

    @property
    def grad_norms(self) -> list[float]:
        """By step; the same on every rank."""
        series = [[report.grad_norm for report in rank] for rank in self.steps]
        assert all(one == series[0] for one in series)
        return series[0]

    @property
    def eval_losses(self) -> tuple[float, ...]:
        """Before the first and after the last step; the same on every rank."""
        assert all(end.eval_losses == self.ends[0].eval_losses for end in self.ends)
        return self.ends[0].eval_losses

    def state(self) -> dict[str, np.ndarray]:
        """Every box with its kind; all owners must hold the same bits (invariant I2)."""
        merged: dict[str, np.ndarray] = {}
        for file in self.files:
            for name, value in load_file(file).items():
                if name in merged:
                    assert np.array_equal(merged[name], value), f"owners of {name} differ"
                merged[name] = value
        return merged


class Worker:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork after torch has run hangs
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.reports: list[Stepped] = []

    def order(self, message: Train | Abort) -> None:
        self.reports = [] if isinstance(message, Train) else self.reports
        self.pipe.send_bytes(encoder.encode(message))

    def report(self, *, timeout_s: float = ANSWER_S) -> Stepped | Ended:
        """The next one. Raises TimeoutError, or EOFError when the process is gone."""
        if not self.pipe.poll(timeout_s):
            raise TimeoutError(f"worker {self.process.pid} did not report in {timeout_s} s")
        report = reports.decode(self.pipe.recv_bytes())
        if isinstance(report, Stepped):
            self.reports.append(report)
        return report

    def until_step(self, step: int) -> None:
        """Return when it has applied the step."""
        while True:
            report = self.report()
            assert isinstance(report, Stepped), report
            if report.step >= step:
                return

    def end(self, *, timeout_s: float = ANSWER_S) -> Ended:
        """How its job ended."""
        while True:
            report = self.report(timeout_s=timeout_s)
            if isinstance(report, Ended):
                return report

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def dismiss(self) -> None:
        self.pipe.close()
        self.process.join(timeout=2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Crew:
    """Worker processes that serve one test after another; a dead one is replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workers: list[Worker] = []
        self._runs = count()

    def workers(self, number: int) -> list[Worker]:
        """That many idle ones."""
        self._workers = [w for w in self._workers if w.process.is_alive()]
        while len(self._workers) < number:
            self._workers.append(Worker())
        return self._workers[:number]

    def retire(self, worker: Worker) -> None:
        """Let one go that is not fit to serve another test."""
        self._workers.remove(worker)
        worker.dismiss()

    def start(
        self, layout: Layout, settings: TrainSettings, *, steps: range,
        state: tuple[str, ...] = (), workers: list[Worker] | None = None, generation: int = 1,
        votes: Mapping[int, int] | None = None, ranks: Sequence[int] | None = None, **job,
    ) -> tuple[list[Worker], tuple[str, ...]]:  # fmt: skip
        """Give every rank its order; the workers, and the files their state will be in.

        ``votes``: rank -> the step after which it wants to stop. ``ranks``: play only these.
        """
        run = next(self._runs)
        ranks = range(layout.world_size) if ranks is None else ranks
        workers = workers or self.workers(len(ranks))
        files = tuple(
            str(self._directory / f"run{run}-rank{rank}.safetensors")
            for rank in range(layout.world_size)
        )
        for rank, worker in zip(ranks, workers, strict=True):
            worker.order(
                Train(
                    plan=layout.plan, spec=layout.spec, pieces=layout.pieces,
                    workers=layout.workers, rank=rank, settings=settings,
                    store=str(self._directory / f"store{run}"), generation=generation,
                    first=steps.start, last=steps.stop - 1, state_in=state,
                    state_out=files[rank], stop_vote_at=(votes or {}).get(rank, 0), **job,
                )
            )  # fmt: skip
        return workers, files

    def train(self, layout: Layout, settings: TrainSettings, **job) -> Trained:
        """Run to the end; every rank must get there."""
        workers, files = self.start(layout, settings, **job)
        ends = [worker.end() for worker in workers]
        assert [end.how for end in ends] == ["done"] * len(ends), ends
        return Trained(steps=[w.reports for w in workers], ends=ends, files=files)

    def dismiss(self) -> None:
        for worker in self._workers:
            worker.dismiss()
