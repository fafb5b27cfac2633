"""RMS norm, rotary turn and linear layers with backward passes of their own.

On a CPU torch composes the first two of many small operations, and keeps every result in between
for backward; together they took a tenth of a small Llama's step. These keep one tensor each. A
linear layer's gradient is made in new memory and then added to where it belongs; here the matrix
product itself adds it there (Megatron-LM's gradient accumulation fusion), where its library can
(sailor/parallel/products.py).
"""

# N rows, I width in, O width out, D model width, H heads, T tokens, K head size, h = K / 2; "..."
# any leading dimensions

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F

from sailor.parallel import products


class GradientSink(Protocol):
    """Takes a weight's gradient in as two factors. A parameter has it as ``gradient_sink``."""

    def add(self, grad_NO: torch.Tensor, x_NI: torch.Tensor) -> None:
        """The gradient of one backward pass is grad^T x."""


def linear(
    x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """x W^T + b, [..., I] -> [..., O]. A weight with a sink never gets a ``grad``."""
    if torch.compiler.is_compiling():
        return F.linear(x, weight_OI, bias_O)
    if not torch.is_grad_enabled():
        return products.forward(x, weight_OI, bias_O)
    sink: GradientSink | None = getattr(weight_OI, "gradient_sink", None)
    if sink is None and not products.by_one_dnn(x, weight_OI):
        return F.linear(x, weight_OI, bias_O)
    y: torch.Tensor = _Linear.apply(x, weight_OI, bias_O, sink)  # type: ignore[no-untyped-call]
    return y


class _Linear(torch.autograd.Function):
    """dx = dy W; dW = dy^T x goes to the sink as two factors, and autograd never sees it."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None,
        sink: GradientSink | None,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight_OI)
        ctx.sink = sink
        return products.forward(x, weight_OI, bias_O)

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        x, weight_OI = ctx.saved_tensors
        grad_NO, x_NI = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_x = products.grad_input(grad_NO, weight_OI).view(x.shape) if wants_x else None
        grad_OI = None
        if ctx.sink is not None:
            ctx.sink.add(grad_NO, x_NI)
        elif wants_weight:
            grad_OI = products.grad_weight(grad_NO, x_NI)
        return grad_x, grad_OI, grad_NO.sum(dim=0) if wants_bias else None, None


def rms_norm(x: torch.Tensor, weight_D: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, computed in fp32."""
    if x.dtype is torch.bfloat16:
        return F.rms_norm(x, (x.shape[-1],), weight_D, epsilon)
    y: torch.Tensor = _RmsNorm.apply(x, weight_D, epsilon)  # type: ignore[no-untyped-call]
    return y


def turn(x_BHTK: torch.Tensor, cos_Th: torch.Tensor, sin_Th: torch.Tensor) -> torch.Tensor:
    """Turn each pair (k, k + h) of the last dimension by its token's angle, computed in fp32."""
    y_BHTK: torch.Tensor = _Turn.apply(x_BHTK, cos_Th, sin_Th)  # type: ignore[no-untyped-call]
    return y_BHTK


class _RmsNorm(torch.autograd.Function):
    """n = x r with r = 1 / rms(x); y = n w."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_D: torch.Tensor, epsilon: float) -> torch.Tensor:
        width = x.shape[-1]
        inverse: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(width).add_(epsilon).rsqrt_()
        normal: torch.Tensor = x * inverse
        ctx.save_for_backward(normal, inverse, weight_D)
        return normal * weight_D

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """dw = sum(dy n); dx = r (dy w - n mean(dy w n))."""
        normal, inverse, weight_D = ctx.saved_tensors
        product = grad * normal
        rows = product.view(-1, product.shape[-1])
        grad_weight_D = rows.sum(dim=0) if ctx.needs_input_grad[1] else None
        mean = torch.mv(rows, weight_D).div_(-rows.shape[1]).view(inverse.shape)
        grad_x = torch.mul(grad, weight_D, out=product)
        return grad_x.addcmul_(normal, mean).mul_(inverse), grad_weight_D, None


class _Turn(torch.autograd.Function):
    """A rotation: its gradient is the rotation by the opposite angle."""

    @staticmethod
    def forward(
        ctx: Any, x_BHTK: torch.Tensor, cos_Th: torch.Tensor, sin_Th: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(cos_Th, sin_Th)
        return _turned(x_BHTK, cos_Th, sin_Th, sign=1)

    @staticmethod
    def backward(ctx: Any, grad_BHTK: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos_Th, sin_Th = ctx.saved_tensors
        return _turned(grad_BHTK, cos_Th, sin_Th, sign=-1), None, None


def _turned(
    x_BHTK: torch.Tensor, cos_Th: torch.Tensor, sin_Th: torch.Tensor, *, sign: int
) -> torch.Tensor:
    """(low cos - high sin, high cos + low sin), of sin times the sign."""
    if x_BHTK.dtype is torch.bfloat16:
        return _turned(x_BHTK.float(), cos_Th, sin_Th, sign=sign).to(x_BHTK.dtype)
    half = x_BHTK.shape[-1] // 2
    low, high = x_BHTK[..., :half], x_BHTK[..., half:]
    y_BHTK = torch.empty_like(x_BHTK)
    torch.mul(low, cos_Th, out=y_BHTK[..., :half]).addcmul_(high, sin_Th, value=-sign)
    torch.mul(high, cos_Th, out=y_BHTK[..., half:]).addcmul_(low, sin_Th, value=sign)
    return y_BHTK
