"""Stages as modules: the model's own names and shapes, and the mathematics of the parts."""

import pytest
import torch
import torch.nn.functional as F

from sailor.models.fused import rms_norm, turn
from sailor.models.layers import LayerNorm, RMSNorm, Rotary, rotary_frequencies
from sailor.models.spec import Activation, Norm, Positions
from sailor.models.stage import StageModule
from sailor.parallel.tensor import TensorGroup
from tests.helpers.engine import a_gpt, a_llama

SPECS = {
    "gpt": a_gpt(),
    "gpt untied": a_gpt(tied_embeddings=False),
    "opt": a_gpt(activation=Activation.relu),
    "llama": a_llama(),
    "llama grouped": a_llama(num_kv_heads=2, tied_embeddings=True),
    "qwen": a_llama(attention_bias=True),
}


def a_stage_module(spec, *, blocks=range(4), first=True, last=True, rank=0, size=1):
    return StageModule(
        spec, blocks=blocks, first=first, last=last, recompute=False,
        group=TensorGroup(rank=rank, size=size),
    )  # fmt: skip


def filled(module):
    """The module with memory and random content, for use without a trainer."""
    torch.manual_seed(0)
    content = {}
    for name, owner, attribute in module.leaves():  # a tied matrix comes twice
        shape = owner._parameters[attribute].shape
        content.setdefault(name, torch.nn.Parameter(torch.randn(shape) * 0.3))
        setattr(owner, attribute, content[name])
    return module


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("size", [1, 2])
def test_parameters_are_the_models_tensors_cut_along_their_axis(spec, size):
    cuts = [(range(1), True, False), (range(1, 3), False, False), (range(3, 4), False, True)]
    for blocks, first, last in cuts:
        module = a_stage_module(spec, blocks=blocks, first=first, last=last, rank=0, size=size)
        found = {
            name: tuple(owner._parameters[attribute].shape)
            for name, owner, attribute in module.leaves()
        }
        expected = {}
        for tensor in spec.tensors_of(blocks=blocks, first=first, last=last):
            shape = list(tensor.shape)
            if tensor.split_axis is not None:
                shape[tensor.split_axis] //= size
            expected[tensor.name] = tuple(shape)
        assert found == expected


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_token_does_not_see_the_future(spec):
    module = filled(a_stage_module(spec))
    tokens = torch.randint(0, 256, (2, 12))
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    with torch.no_grad():
        before, after = module(tokens), module(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_two_stages_compute_what_one_does(spec):
    whole = filled(a_stage_module(spec))
    front = a_stage_module(spec, blocks=range(3), last=False)
    back = a_stage_module(spec, blocks=range(3, 4), first=False)
    content = {name: owner._parameters[a] for name, owner, a in whole.leaves()}
    for part in (front, back):
        for name, owner, attribute in part.leaves():
            setattr(owner, attribute, content[name])
    tokens, targets = torch.randint(0, 256, (2, 12)), torch.randint(0, 256, (2, 12))
    alone = whole.losses(whole(tokens), targets)
    assert torch.equal(back.losses(back(front(tokens)), targets), alone)


def test_rotary_scores_depend_on_the_distance_alone():
    rotary = Rotary(rotary_frequencies(a_llama()))
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)
    queries = rotary.rotate(query.expand(1, 1, 20, 8))[0, 0]
    keys = rotary.rotate(key.expand(1, 1, 20, 8))[0, 0]
    scores = queries @ keys.T
    for distance in range(10):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    torch.testing.assert_close(scores[0, 0], query @ key)
    assert not torch.isclose(scores[5, 0], scores[0, 0])


def test_norms_are_their_definitions():
    x = torch.randn(3, 5, 16)
    layer, rms = LayerNorm(16, epsilon=1e-5), RMSNorm(16, epsilon=1e-5)
    for norm in (layer, rms):
        norm.weight = torch.nn.Parameter(torch.randn(16))
    layer.bias = torch.nn.Parameter(torch.randn(16))
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x), centred / deviation * layer.weight + layer.bias)
    root = (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(rms(x), x / root * rms.weight)


def test_own_backward_passes_are_the_derivatives():
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(4, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, epsilon=1e-3), (x, weight))
    assert torch.autograd.gradcheck(lambda a: turn(a, angles.cos(), angles.sin()), (x,))


def test_grouped_heads_attend_as_if_keys_and_values_were_repeated():
    grouped = filled(a_stage_module(a_llama(num_kv_heads=2), blocks=range(1)))
    full = a_stage_module(a_llama(), blocks=range(1))
    content = {name: owner._parameters[a] for name, owner, a in grouped.leaves()}
    for name, owner, attribute in full.leaves():
        value = content[name]
        if value.shape != owner._parameters[attribute].shape:  # [2 * 8, D] -> [4 * 8, D]
            value = value.view(2, 8, -1).repeat_interleave(2, dim=0).flatten(0, 1)
        setattr(owner, attribute, torch.nn.Parameter(value))
    tokens = torch.randint(0, 256, (2, 12))
    torch.testing.assert_close(grouped(tokens), full(tokens))


def test_losses_are_cross_entropies_of_single_tokens():
    module = filled(a_stage_module(a_gpt()))
    tokens, targets = torch.randint(0, 256, (2, 12)), torch.randint(0, 256, (2, 12))
    x = module(tokens)
    expected = F.cross_entropy(module.head(x).view(-1, 256), targets.view(-1), reduction="none")
    assert torch.equal(module.losses(x, targets), expected)


@pytest.mark.parametrize(
    "spec",
    [
        a_gpt(positions=Positions.rotary),
        a_gpt(norm=Norm.rmsnorm),
        a_gpt(activation=Activation.swiglu),
        a_llama(positions=Positions.learned),
        a_llama(norm=Norm.layernorm),
    ],
    ids=["gpt rotary", "gpt rmsnorm", "gpt swiglu", "llama learned", "llama layernorm"],
)
def test_a_family_refuses_what_it_does_not_build(spec):
    with pytest.raises(ValueError, match=spec.name):
        a_stage_module(spec)
