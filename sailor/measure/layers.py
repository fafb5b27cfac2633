"""Times a model's parts on the device at hand: forward, backward, optimizer, bytes kept.

``python -m sailor.measure.layers < question.json`` prints one JSON object. A process of its own,
because a worker computes on one thread and torch reads its thread count once. The same code on a
CPU and on CUDA; there with events of the device's own clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch import nn

from sailor.models.spec import ModelSpec
from sailor.models.stage import StageModule
from sailor.parallel.tensor import TensorGroup

LEAST_SECONDS = 0.15  # of repetitions of one cell
MOST_REPEATS = 200
LEAST_REPEATS = 5
UPDATE_PARAMETERS = 1 << 20


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    spec: dict[str, Any]
    sequence_length: int
    microbatch_sizes: list[int]
    degrees: list[int]
    device: str
    compute_bytes: int


def main() -> None:
    """Reads a Question, writes the cells."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    spec = msgspec.convert(question.spec, ModelSpec)
    torch.set_num_threads(1)
    device = torch.device(question.device)
    dtype = torch.float32 if question.compute_bytes == 4 else torch.bfloat16
    cells = [
        cell
        for degree in question.degrees
        for size in question.microbatch_sizes
        for cell in _cells(spec, question.sequence_length, size, degree, device, dtype)
    ]
    answer = {"cells": cells, "update_seconds_per_parameter": _update(device)}
    sys.stdout.write(json.dumps(answer | {"torch": torch.__version__}) + "\n")


def _cells(
    spec: ModelSpec, tokens: int, size: int, degree: int, device: torch.device, dtype: torch.dtype
) -> list[dict[str, Any]]:
    """The three parts at one size and degree. What a rank would receive is zeros: the exchange is
    not in these times."""
    group = TensorGroup(rank=0, size=degree)
    stage = StageModule(
        spec, blocks=range(1), first=True, last=True, recompute=False, group=group
    )  # fmt: skip
    stage = stage.to_empty(device=device).to(dtype)
    for parameter in stage.parameters():
        nn.init.normal_(parameter, std=0.02)
    tokens_BT = torch.randint(spec.num_tokens, (size, tokens), device=device)
    x_BTD = torch.randn(size, tokens, spec.hidden_size, device=device, dtype=dtype)
    assert stage.embedding is not None
    embedding, (block,) = stage.embedding, stage.blocks.values()
    runs: dict[str, tuple[Callable[[], torch.Tensor], bool]] = {
        "embedding": (lambda: embedding(tokens_BT), False),
        "block": (lambda: block(x_BTD.requires_grad_()), False),
        "head": (lambda: stage.losses(x_BTD.requires_grad_(), tokens_BT), True),
    }
    found = []
    for part, (forward, ends) in runs.items():
        seconds = _timed(forward, stage, device, scalar=ends)
        found.append(
            {
                "part": part, "tensor_parallel": degree, "microbatch_size": size,
                "forward": seconds[0], "backward": seconds[1], "kept_bytes": _kept(forward),
            }
        )  # fmt: skip
    return found


def _timed(
    forward: Callable[[], torch.Tensor], stage: nn.Module, device: torch.device, *, scalar: bool
) -> tuple[float, float]:
    """Seconds of a forward and of its backward."""
    output = forward()
    gradient = torch.ones_like(output) if scalar else torch.randn_like(output)
    torch.autograd.backward((output,), (gradient,))
    pairs: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(pairs) < MOST_REPEATS and (
        len(pairs) < LEAST_REPEATS or time.perf_counter() - began < LEAST_SECONDS
    ):
        # Gradients of a step's microbatches are added up, not made anew.
        start = _now(device)
        output = forward()
        middle = _now(device)
        torch.autograd.backward((output,), (gradient,))
        pairs.append((middle - start, _now(device) - middle))
    stage.zero_grad(set_to_none=True)
    return quiet(p[0] for p in pairs), quiet(p[1] for p in pairs)


def quiet(times: Iterable[float]) -> float:
    """The fifth of the times that is quickest, its slowest: what others do on the computer makes
    times longer, never shorter, and the very shortest is luck."""
    ordered = sorted(times)
    return ordered[len(ordered) // 5]


def _now(device: torch.device) -> float:
    """Seconds on a CPU: of this thread's own work, which others on the computer do not lengthen."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()


def _kept(forward: Callable[[], torch.Tensor]) -> float:
    """Bytes of different tensors kept for the backward pass, parameters aside."""
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and tensor.grad_fn is not None:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = forward()
    del output
    return float(sum(seen.values()))


def _update(device: torch.device) -> float:
    """Seconds per parameter of AdamW as the engine runs it, with the norm and the clearing."""
    weights, gradients, first, second = (
        torch.zeros(UPDATE_PARAMETERS, device=device) for _ in range(4)
    )
    step = torch.ones((), device=device)

    def once() -> None:
        torch.linalg.vector_norm(gradients, dtype=torch.float64)
        torch._fused_adamw_(
            [weights], [gradients], [first], [second], [], [step], amsgrad=False, lr=1e-3,
            beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, maximize=False, grad_scale=None,
            found_inf=None,
        )  # fmt: skip
        gradients.zero_()

    once()
    times = []
    for _ in range(LEAST_REPEATS * 3):
        start = _now(device)
        once()
        times.append(_now(device) - start)
    return quiet(times) / UPDATE_PARAMETERS


if __name__ == "__main__":
    main()
