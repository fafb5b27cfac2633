"""Split sequences inside a tensor group: what a stage keeps for backward, and what it hands on."""

import pytest
import torch

from sailor.models.stage import StageModule
from sailor.parallel.tensor import TensorGroup
from tests.helpers.engine import a_gpt, a_llama


def a_middle(spec, *, size, splits):
    """Blocks 1 and 2 on rank 1 of a tensor group, its communicators stand-ins."""
    group = TensorGroup(rank=1, size=size, split_sequences=splits)
    module = StageModule(
        spec, blocks=range(1, 3), first=False, last=False, recompute=False, group=group
    )
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return module


def bytes_kept(module, x_BTD) -> int:
    """Bytes of activations that a forward pass keeps for backward, parameters aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = module(x_BTD)
    assert out.shape == x_BTD.shape, "between stages activations are whole"
    return sum(kept.values())


@pytest.mark.parametrize("spec", [a_gpt(), a_llama()], ids=["gpt", "llama"])
def test_splitting_sequences_keeps_fewer_bytes_for_backward(spec):
    x_BTD = torch.randn(2, 16, spec.hidden_size, requires_grad=True)
    whole = bytes_kept(a_middle(spec, size=4, splits=False), x_BTD)
    split = bytes_kept(a_middle(spec, size=4, splits=True), x_BTD)
    assert split < whole


def test_a_group_of_one_has_nothing_to_split():
    group = TensorGroup(rank=0, size=1, split_sequences=True)
    assert not group.splits
    assert group.run_of(16) == range(16)


def test_the_runs_of_a_group_are_the_sequence():
    runs = [TensorGroup(rank=r, size=4, split_sequences=True).run_of(16) for r in range(4)]
    assert [token for run in runs for token in run] == list(range(16))
