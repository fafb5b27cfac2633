"""Layers whose backward pass is ours compute what torch's own autograd computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sailor.models.fused import linear


class Summed:
    """Adds up what it is given, as sums over microbatches do."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.total = torch.zeros_like(weight)

    def add(self, grad_NO: torch.Tensor, x_NI: torch.Tensor) -> None:
        self.total.addmm_(grad_NO.t(), x_NI)


@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_with_a_sink_gets_the_gradient_there_and_nowhere_else(bias):
    torch.manual_seed(1)
    weight, bias_O = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6))
    sink = weight.gradient_sink = Summed(weight)
    expected = {"x": [], "weight": torch.zeros(6, 5)}
    found = []
    for _ in range(2):  # two microbatches, of values that are not contiguous
        x = torch.randn(4, 2, 5).transpose(0, 1).requires_grad_()
        seed = torch.randn(2, 4, 6)
        plain = [t.detach().clone().requires_grad_() for t in (x, weight, bias_O)]
        F.linear(plain[0], plain[1], plain[2] if bias else None).backward(seed)
        expected["x"].append(plain[0].grad)
        expected["weight"] += plain[1].grad
        y = linear(x, weight, bias_O if bias else None)
        y.backward(seed)
        found.append(x.grad)
    torch.testing.assert_close(found, expected["x"])
    torch.testing.assert_close(sink.total, expected["weight"])
    assert weight.grad is None
    assert (bias_O.grad is not None) is bias


def test_without_a_sink_it_is_torchs_own():
    weight, x = nn.Parameter(torch.randn(3, 2)), torch.randn(4, 2)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    linear(x, weight).sum().backward()
    assert weight.grad is not None
