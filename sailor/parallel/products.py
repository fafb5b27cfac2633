"""The matrix products of a linear layer: y = x W^T, dx = dy W, dW = dy^T x.

On a CPU torch hands those of fp32 to MKL, which on processors that are not Intel's leaves the wide
half of AVX-512 idle. oneDNN, which torch brings as well, uses it: on an EPYC of the Zen 5 kind its
products take half the time (``python -m benchmarks.products``). There, all but small ones are
oneDNN's. Processor and shape alone decide, never a measurement: bits must not change from one start
to the next.
"""

# N rows, I width in, O width out; "..." any leading dimensions

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

CPUINFO = Path("/proc/cpuinfo")
# Multiply-adds from which on oneDNN is ahead: looking its code up takes 9 us. Measured there.
FEWEST = 1 << 21


def _suits() -> bool:
    """Whether oneDNN is there, and MKL has no kernels of its own for this processor's vectors."""
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return (
        there
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _vendor() != "GenuineIntel"
    )


def _vendor() -> str:
    """Who made the processor, as it says itself; "GenuineIntel" where nobody can tell."""
    try:
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: torch's own choice
    return "GenuineIntel"


one_dnn = _suits()  # to be changed by tests and benchmarks only


def by_one_dnn(x: torch.Tensor, weight_OI: torch.Tensor) -> bool:
    """Whether products of these go to oneDNN."""
    return (
        one_dnn
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.numel() * weight_OI.shape[0] >= FEWEST
    )


def forward(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """x W^T + b, [..., I] -> [..., O]."""
    if by_one_dnn(x, weight_OI):
        return _one_dnn(x, weight_OI, bias_O)
    return F.linear(x, weight_OI, bias_O)


def grad_input(grad_NO: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
    """dy W, [N, I]."""
    if by_one_dnn(grad_NO, weight_OI.t()):
        return _one_dnn(grad_NO, weight_OI.t())
    return grad_NO @ weight_OI


def grad_weight(grad_NO: torch.Tensor, x_NI: torch.Tensor) -> torch.Tensor:
    """dy^T x, [O, I]."""
    if by_one_dnn(grad_NO.t(), x_NI.t()):
        return _one_dnn(grad_NO.t(), x_NI.t())
    return grad_NO.t() @ x_NI


def add_grad_weight(
    total_OI: torch.Tensor, grad_NO: torch.Tensor, x_NI: torch.Tensor, *, fresh: bool
) -> None:
    """dy^T x, added to ``total_OI``, or put in its place if that is ``fresh``."""
    if by_one_dnn(grad_NO.t(), x_NI.t()):
        grad_OI = _one_dnn(grad_NO.t(), x_NI.t())
        if fresh:
            total_OI.copy_(grad_OI)
        else:
            total_OI.add_(grad_OI)
    elif fresh:
        torch.mm(grad_NO.t(), x_NI, out=total_OI)
    else:
        total_OI.addmm_(grad_NO.t(), x_NI)


def _one_dnn(
    x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    y_NO: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(
        x.reshape(-1, x.shape[-1]), weight_OI, bias_O, "none", [], ""
    )
    if x.dim() == 2:
        return y_NO
    # Not a view to autograd: sums over a tensor group are made in place.
    y: torch.Tensor = torch.ops.aten._unsafe_view.default(y_NO, [*x.shape[:-1], y_NO.shape[1]])
    return y
