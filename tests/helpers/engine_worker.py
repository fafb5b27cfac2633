"""A worker process for tests of the engine: trains what it is told to, until it is told to leave.

A miniature of the real worker: one thread listens, one trains. State travels in files.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from sailor.models.spec import ModelSpec
from sailor.parallel.layout import Layout, WorkerId
from sailor.plan import Plan, decode_hook, encode_hook
from sailor.training.settings import TrainSettings


class Train(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Build groups, take state, train steps [first, last]. Without ``state_in``: from the seed."""

    plan: Plan
    spec: ModelSpec
    pieces: int
    workers: tuple[WorkerId, ...]
    rank: int
    settings: TrainSettings
    store: str  # a file
    generation: int
    first: int
    last: int
    state_in: tuple[str, ...] = ()
    state_out: str = ""
    evaluate: bool = False
    stop_vote_at: int = 0
    loopback: bool = False
    warm_up: bool = False
    poison: str = ""  # name of a tensor to fill with NaN before training
    timeout_s: float = 60.0


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Leave whatever is waited for."""


class Stepped(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A step was applied."""

    step: int
    loss: float
    grad_norm: float
    stop: bool
    first_sample: int
    num_samples: int
    phases: dict[str, float]
    seconds: float
    cpu_s: float  # of the process so far


class Ended(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A job is over: "done", "aborted", "peer lost", "not finite" or "failed"."""

    how: str
    detail: str = ""
    leave_s: float = 0.0  # from the abort to here
    eval_losses: tuple[float, ...] = ()  # before the first and after the last step
    loaded_compiler: bool = False


encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
orders = msgspec.msgpack.Decoder(Train | Abort, dec_hook=decode_hook)
reports = msgspec.msgpack.Decoder(Stepped | Ended)


def serve(pipe: Connection) -> None:
    """Take orders until the pipe closes."""
    worker = _Worker(pipe)
    threading.Thread(target=worker.listen, daemon=True).start()
    while True:
        worker.work(worker.jobs.get())


class _Worker:
    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.jobs: queue.SimpleQueue[Train] = queue.SimpleQueue()
        self.abort = threading.Event()
        self.aborted_at = 0.0

    def listen(self) -> None:
        while True:
            try:
                order = orders.decode(self.pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)  # the test is over; groups may still be waiting for each other
            if isinstance(order, Abort):
                self.aborted_at = time.monotonic()
                self.abort.set()
            else:
                self.abort.clear()
                self.jobs.put(order)

    def send(self, report: Stepped | Ended) -> None:
        self.pipe.send_bytes(encoder.encode(report))

    def work(self, job: Train) -> None:
        from sailor.parallel.comm import Aborted, PeerLost
        from sailor.training.trainer import StepRefused

        try:
            self.send(self.train(job))
        except PeerLost as error:
            self.send(Ended(how="peer lost", detail=str(error)))
        except Aborted as error:
            leave_s = time.monotonic() - self.aborted_at
            self.send(Ended(how="aborted", detail=str(error), leave_s=leave_s))
        except StepRefused as error:
            self.send(Ended(how="not finite", detail=str(error)))
        except Exception as error:
            self.send(Ended(how="failed", detail=f"{type(error).__name__}: {error}"))

    def train(self, job: Train) -> Ended:
        import torch
        import torch.distributed as dist

        from sailor.parallel.groups import build_groups, loopback_groups
        from sailor.training.trainer import Trainer

        torch.set_num_threads(1)
        if job.settings.device == "cuda":
            torch.cuda.set_device(job.rank % torch.cuda.device_count())
        layout = Layout(plan=job.plan, spec=job.spec, pieces=job.pieces, workers=job.workers)
        trainer = Trainer(layout=layout, rank=job.rank, settings=job.settings)
        if job.warm_up:
            trainer.warm_up()
            assert all(not t.weight.any() and not t.moment2.any() for t in trainer.state.values())
        if job.state_in:
            read_state(trainer, job.state_in)
            trainer.loaded()
        else:
            trainer.initialise(trainer.state)
        for box, tensors in trainer.state.items():
            if box.tensor == job.poison:
                tensors.weight.fill_(float("nan"))
        if job.loopback:
            groups = loopback_groups(layout, job.rank)
        else:
            groups = build_groups(
                layout, job.rank, generation=job.generation,
                store=dist.FileStore(job.store, -1), abort=self.abort,
                timeout_s=job.timeout_s, host="127.0.0.1", device=job.settings.device,
            )  # fmt: skip
        try:
            trainer.connect(groups)
            eval_losses = [trainer.evaluate()] if job.evaluate else []
            for step in range(job.first, job.last + 1):
                outcome = trainer.step(step, stop=step == job.stop_vote_at)
                self.send(
                    Stepped(
                        step=step, loss=outcome.loss, grad_norm=outcome.grad_norm,
                        stop=outcome.stop, first_sample=outcome.first_sample,
                        num_samples=outcome.num_samples, phases=dict(outcome.phases),
                        seconds=outcome.seconds, cpu_s=time.process_time(),
                    )
                )  # fmt: skip
                if outcome.stop:
                    break
            eval_losses += [trainer.evaluate()] if job.evaluate else []
        finally:
            for group in groups.values():
                group.close()
            if job.state_out:
                write_state(trainer, Path(job.state_out))
        return Ended(
            how="done",
            eval_losses=tuple(eval_losses),
            loaded_compiler="torch._dynamo" in sys.modules,
        )


def write_state(trainer, path: Path) -> None:
    """All boxes of a trainer in one file: '<box name> <kind>' -> tensor."""
    from safetensors.torch import save_file

    tensors = {}
    for box, state in trainer.state.items():
        for kind in ("weight", "moment1", "moment2"):
            tensors[f"{box.name} {kind}"] = getattr(state, kind).contiguous().clone()
    save_file(tensors, path)


def read_state(trainer, paths: tuple[str, ...]) -> None:
    """Every box of a trainer from whichever file has it."""
    from safetensors import safe_open

    files = [safe_open(path, framework="pt") for path in paths]
    homes = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # not a dict
    for box, state in trainer.state.items():
        for kind in ("weight", "moment1", "moment2"):
            name = f"{box.name} {kind}"
            getattr(state, kind).copy_(homes[name].get_tensor(name))
