"""Says how fast a core of this computer is: ``python -m sailor.measure.core`` prints it as JSON.

Matrix products as a worker computes them, and copying. A process of its own: asking loads torch,
and MKL reads its thread count when it is loaded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

from sailor.parallel import products

ROWS, WIDTH_IN, WIDTH_OUT = 512, 256, 512  # of a small transformer block
COPIED = 1 << 21  # numbers


def measure() -> dict[str, float]:
    """FLOP/s of fp32 products and bytes/s of copying, read and written, on one thread: the best of
    several tries, some 20 ms together."""
    torch.set_num_threads(1)
    x, weight = torch.ones(ROWS, WIDTH_IN), torch.ones(WIDTH_OUT, WIDTH_IN)
    source = torch.ones(COPIED)
    target = torch.empty_like(source)
    product_s = _best(lambda: products.forward(x, weight, None), tries=20)
    copy_s = _best(lambda: target.copy_(source), tries=6)
    return {
        "flops": 2.0 * ROWS * WIDTH_IN * WIDTH_OUT / product_s,
        "bytes_per_second": 2.0 * source.nbytes / copy_s,
    }


def _best(work: Callable[[], object], *, tries: int) -> float:
    work()  # loads and warms
    took = []
    for _ in range(tries):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")
