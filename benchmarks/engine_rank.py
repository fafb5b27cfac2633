"""One process of a contender: told on standard input what to be, then how many steps to train.

``python -m benchmarks.engine_rank``; benchmarks/engine_crew.py starts and feeds it. One JSON object
a line, both ways.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

# One step of training; the loss where this rank knows it.
Train = Callable[[], float | None]

KINDS = {
    "ours": "benchmarks.engine_ours",
    "transformers": "benchmarks.engine_transformers",
    "torch_tp2pp2": "benchmarks.engine_torch",
    "torch_pp2dp2": "benchmarks.engine_torch",
}
WARM_UP = 3  # steps


def main() -> None:
    import torch

    from sailor.runtime.process import die_with_parent

    die_with_parent(os.getppid())  # a benchmark that is killed must not leave ranks that compute
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")  # libraries may print: not among the answers
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    os.nice(job.get("nice", 0))
    train: Train = import_module(KINDS[job["kind"]]).contender(job)
    for _ in range(WARM_UP):
        train()
    answer(answers, {"ready": True})
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        began, began_cpu = time.monotonic(), time.process_time()
        for _ in range(steps):
            loss = train()
        ended, ended_cpu = time.monotonic(), time.process_time()
        answer(
            answers,
            {"began": began, "ended": ended, "cpu_s": ended_cpu - began_cpu, "loss": loss},
        )
    answers.flush()
    os._exit(0)  # groups may still be waiting for each other


def answer(pipe: Any, message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()


if __name__ == "__main__":
    main()
