"""A rank's flat memory: every parameter and box once, owners in step with each other."""

import random

import pytest
import torch

from sailor.models.stage import StageModule
from sailor.parallel.buckets import buckets_of
from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.state import StageState
from sailor.parallel.tensor import TensorGroup
from tests.helpers.engine import a_gpt, a_llama, a_random_plan

CPU = torch.device("cpu")


def a_dozen_layouts():
    """Unlike plans of both families, on up to six ranks."""
    layouts = []
    for seed in range(12):
        spec = a_llama() if seed % 2 else a_gpt()
        plan = a_random_plan(spec, random.Random(seed), max_gpus=6, num_samples=12)
        workers = tuple(WorkerId(node=f"n{i}", slot=0, incarnation=1) for i in range(plan.num_gpus))
        layouts.append(Layout(plan=plan, spec=spec, pieces=4, workers=workers))
    return layouts


LAYOUTS = a_dozen_layouts()
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=[la.plan.describe() for la in LAYOUTS])


def module_of(layout, rank):
    stage = layout.stage_of(rank)
    at = layout.coordinates[rank]
    return StageModule(
        layout.spec, blocks=stage.layers, first=layout.is_first(rank), last=layout.is_last(rank),
        recompute=False, group=TensorGroup(rank=at.tensor_rank, size=stage.tensor_parallel),
    )  # fmt: skip


@each_layout
def test_boxes_are_exactly_those_of_the_layout_and_views_of_disjoint_memory(layout):
    for rank in range(layout.world_size):
        state = StageState(layout, rank, device=CPU)
        assert tuple(state.boxes) == layout.kept[rank]
        for number, (box, tensors) in enumerate(state.boxes.items(), start=1):
            for kind in (tensors.weight, tensors.moment1, tensors.moment2):
                assert tuple(kind.shape) == box.shape
                assert kind.eq(0).all()  # nobody else's write is here
                kind.fill_(number)
        for number, tensors in enumerate(state.boxes.values(), start=1):
            assert tensors.weight.eq(number).all()


@each_layout
def test_parameters_are_the_boxes(layout):
    for rank in range(layout.world_size):
        state = StageState(layout, rank, device=CPU)
        parameters = dict(state.bind(module_of(layout, rank).leaves()))
        for box, tensors in state.boxes.items():
            tensors.weight.fill_(1.0)
            before = parameters[box.tensor].detach().clone()
            tensors.weight.zero_()
            changed = (parameters[box.tensor].detach() != before).sum().item()
            assert changed == box.numel


@each_layout
def test_owners_of_a_bucket_line_its_elements_up_alike(layout):
    """Write each box's own number into the gradients: a bucket then reads the same everywhere."""
    numbers = {box: number for number, box in enumerate(layout.owners, start=1)}
    contents: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for rank in range(layout.world_size):
        state = StageState(layout, rank, device=CPU)
        for slot in state.slots:
            for box in slot.boxes:
                view = slot.box_of(slot.of(state.gradients), box)
                view.copy_(numbers[box] + torch.arange(box.numel).view(box.shape) / box.numel)
        for bucket in buckets_of(state):
            assert rank in bucket.owners
            flat = torch.zeros(bucket.size)
            if not bucket.staged:
                flat.copy_(state.gradients[bucket.start : bucket.stop])
            for segment, view in bucket.views(flat):
                slot = state.by_name[segment.tensor]
                view.copy_(segment.of(slot.of(state.gradients)))
            contents.setdefault(bucket.owners, []).append(flat)
    assert {o for o in contents if len(o) > 1} <= {g.ranks for g in layout.groups}
    for owners, flats in contents.items():
        assert len(flats) == len(owners)
        assert all(torch.equal(flat, flats[0]) for flat in flats)
    total = sum(flats[0].count_nonzero().item() for flats in contents.values())
    assert total == sum(box.numel for box in layout.owners)


@each_layout
def test_weights_decay_in_the_stretches_that_say_so_and_nowhere_else(layout):
    decays = {tensor.name: tensor.decay for tensor in layout.spec.tensors}
    for rank in range(layout.world_size):
        state = StageState(layout, rank, device=CPU)
        marked = torch.zeros_like(state.weights)
        covered = 0
        for stretch in state.stretches:
            marked[stretch.start : stretch.stop] = float(stretch.decay)
            covered += stretch.stop - stretch.start
        assert covered == len(marked)
        for slot in state.slots:
            assert slot.of(marked).eq(float(decays[slot.logical.name])).all()


@each_layout
def test_one_rank_of_a_tensor_group_contributes_what_all_of_them_hold(layout):
    for replica, plan in enumerate(layout.plan.replicas):
        for stage, cut in enumerate(plan.stages):
            ranks = [layout.ranks[replica, stage, t] for t in range(cut.tensor_parallel)]
            asking: dict[str, int] = {}
            for rank in ranks:
                bound = StageState(layout, rank, device=CPU).bind(module_of(layout, rank).leaves())
                for name, parameter in dict(bound).items():
                    asking[name] = asking.get(name, 0) + parameter.requires_grad
            split = {t.name: t.split_axis is not None for t in layout.spec.tensors}
            for name, number in asking.items():
                assert number == (len(ranks) if split[name] else 1)


def test_a_module_that_does_not_fit_the_model_is_refused():
    other = StageModule(
        a_gpt(hidden_size=64), blocks=range(4), first=True, last=True, recompute=False,
        group=TensorGroup(rank=0, size=1),
    )  # fmt: skip
    with pytest.raises(ValueError, match="shape"):
        StageState(LAYOUTS[0], 0, device=CPU).bind(other.leaves())
