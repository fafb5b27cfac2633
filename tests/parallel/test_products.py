"""Matrix products: the same numbers from either library, one of which is chosen by rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sailor.models.fused import linear
from sailor.parallel import products
from tests.helpers.products import HAS_ONE_DNN, needs_one_dnn

ROWS, WIDTH_IN, WIDTH_OUT = 160, 128, 136  # large enough for oneDNN


@pytest.fixture(params=["torch", pytest.param("oneDNN", marks=needs_one_dnn)])
def library(request, monkeypatch) -> str:
    monkeypatch.setattr(products, "one_dnn", request.param == "oneDNN")
    assert products.by_one_dnn(torch.empty(ROWS, WIDTH_IN), torch.empty(WIDTH_OUT, WIDTH_IN)) is (
        request.param == "oneDNN"
    )
    return request.param


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight, bias, and the gradient of what they give."""
    torch.manual_seed(1)
    shapes = (ROWS, WIDTH_IN), (WIDTH_OUT, WIDTH_IN), (WIDTH_OUT,), (ROWS, WIDTH_OUT)
    return tuple(torch.randn(shape) for shape in shapes)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """As fp32 sums of some 150 products of normal numbers differ by their order."""
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)


def test_every_product_is_that_of_fp64(library):
    x, weight, bias, grad = operands()
    exact = [t.double() for t in (x, weight, bias, grad)]
    assert_near(products.forward(x, weight, None), exact[0] @ exact[1].t())
    assert_near(products.forward(x, weight, bias), exact[0] @ exact[1].t() + exact[2])
    assert_near(products.grad_input(grad, weight), exact[3] @ exact[1])
    assert_near(products.grad_weight(grad, x), exact[3].t() @ exact[0])


def test_a_gradient_replaces_what_is_old_and_is_added_to_what_is_new(library):
    x, _, _, grad = operands()
    total = torch.full((WIDTH_OUT, WIDTH_IN), 7.0)
    products.add_grad_weight(total, grad, x, fresh=True)
    assert_near(total, grad.double().t() @ x.double())
    products.add_grad_weight(total, grad, x, fresh=False)
    assert_near(total, 2 * (grad.double().t() @ x.double()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sunk", [True, False])
def test_a_linear_layer_has_torchs_gradients(library, sunk, bias):
    x, weight, bias_O, grad = operands()
    leaves = [x.requires_grad_(), nn.Parameter(weight), nn.Parameter(bias_O)]
    plain = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    total = torch.zeros(WIDTH_OUT, WIDTH_IN)
    if sunk:
        leaves[1].gradient_sink = Sink(total)
    shape = (4, ROWS // 4, WIDTH_IN)
    y = linear(leaves[0].view(shape), leaves[1], leaves[2] if bias else None)
    z = F.linear(plain[0].view(shape), plain[1], plain[2] if bias else None)
    assert_near(y, z)
    y.backward(grad.view(y.shape))
    z.backward(grad.view(z.shape))
    assert_near(leaves[0].grad, plain[0].grad)
    assert_near(total if sunk else leaves[1].grad, plain[1].grad)
    if bias:
        assert_near(leaves[2].grad, plain[2].grad)
    with torch.no_grad():
        assert torch.equal(linear(leaves[0].view(shape), leaves[1], leaves[2] if bias else None), y)


def test_what_a_layer_gives_may_be_written_over(library):
    """A sum over a tensor group is made in place."""
    x, weight, _, _ = operands()
    y = linear(x.requires_grad_().view(4, ROWS // 4, WIDTH_IN), nn.Parameter(weight))
    Doubled.apply(y).sum().backward()
    assert_near(x.grad, 2 * torch.ones(ROWS, WIDTH_OUT) @ weight)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        ctx.mark_dirty(y)
        return y.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Sink:
    def __init__(self, total: torch.Tensor) -> None:
        self.total = total

    def add(self, grad_NO: torch.Tensor, x_NI: torch.Tensor) -> None:
        products.add_grad_weight(self.total, grad_NO, x_NI, fresh=False)


def test_where_operands_lie_changes_no_bit(library):
    """Boxes move in memory when a layout changes, by lines of 64 bytes; losses must not."""
    x, weight, bias, grad = operands()
    expected = [
        products.forward(x, weight, bias), products.grad_input(grad, weight),
        products.grad_weight(grad, x),
    ]  # fmt: skip
    for lead in (16, 48, 160):  # numbers that lie before them
        moved = []
        for operand in (x, weight, bias, grad):
            memory = torch.empty(operand.numel() + lead)
            memory[lead:] = operand.flatten()
            moved.append(memory[lead:].view(operand.shape))
        x2, weight2, bias2, grad2 = moved
        assert torch.equal(products.forward(x2, weight2, bias2), expected[0])
        assert torch.equal(products.grad_input(grad2, weight2), expected[1])
        assert torch.equal(products.grad_weight(grad2, x2), expected[2])


@needs_one_dnn
def test_what_is_small_or_not_fp32_is_torchs(monkeypatch):
    monkeypatch.setattr(products, "one_dnn", True)
    x, weight, _, _ = operands()
    assert not products.by_one_dnn(x[:8], weight)
    assert not products.by_one_dnn(x.bfloat16(), weight.bfloat16())
    assert not products.by_one_dnn(x.to("meta"), weight)


@pytest.mark.parametrize(
    ("vendor", "vectors", "suits"),
    [
        ("AuthenticAMD", "AVX512", HAS_ONE_DNN),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_the_processor_decides(monkeypatch, tmp_path, vendor, vectors, suits):
    told = tmp_path / "cpuinfo"
    if vendor is not None:
        told.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(products, "CPUINFO", told)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    assert products._suits() is suits
