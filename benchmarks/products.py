"""A linear layer's three matrix products by torch's own choice and by oneDNN, in fp32.

``python -m benchmarks.products [--json]``. Shapes are those of the models that the engine is
measured with; both are timed in turns, the best of several rounds. ``times_*`` is torch's time over
oneDNN's. ``chosen``: whether ours takes oneDNN on this processor (sailor/parallel/products.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.document import machine, show

SHAPES = {  # rows, width in, width out; the first is what oneDNN is not taken for
    "tiny": (64, 32, 64),
    "3m_attention": (256, 256, 256),
    "3m_ffn": (256, 256, 816),
    "25m_attention": (128, 512, 512),
    "25m_ffn": (128, 512, 1376),
    "125m_ffn": (1024, 768, 3072),
}
ROUNDS = 8
ROUND_S = 0.02  # about


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    figures, detail = _measured()
    document = {
        "benchmark": "products", "figures": figures, "detail": detail, "machine": machine(),
    }  # fmt: skip
    show(document, as_json=options.json)
    return 0


def _measured() -> tuple[dict[str, float], dict[str, Any]]:
    import torch

    from sailor.parallel import products

    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    detail: dict[str, Any] = {"chosen": products.one_dnn}
    products.FEWEST = 1
    for name, (rows, width_in, width_out) in SHAPES.items():
        x, grad = torch.randn(rows, width_in), torch.randn(rows, width_out)
        weight, total = torch.randn(width_out, width_in), torch.zeros(width_out, width_in)
        gflop = 2.0 * rows * width_in * width_out / 1e9
        work: dict[str, Callable[[], object]] = {
            "forward": partial(products.forward, x, weight, None),
            "grad_input": partial(products.grad_input, grad, weight),
            "grad_weight": partial(products.add_grad_weight, total, grad, x, fresh=False),
        }
        for product, once in work.items():
            took = {"torch": [1e9], "one_dnn": [1e9]}
            for _ in range(ROUNDS):
                for library, times in took.items():
                    products.one_dnn = library == "one_dnn"
                    times.append(_seconds(once))
            best = {library: min(times) for library, times in took.items()}
            figures[f"times_{name}_{product}"] = best["torch"] / best["one_dnn"]
            detail[f"{name} {product}"] = {
                f"{library}_gflop_per_s": gflop / seconds for library, seconds in best.items()
            }
    return figures, detail


def _seconds(once: Callable[[], object]) -> float:
    """Of one call, over some of them."""
    once()
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < ROUND_S:
        once()
        count += 1
    return passed / count


if __name__ == "__main__":
    sys.exit(main())
