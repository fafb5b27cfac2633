"""The same weights give the same logits, loss and gradients as transformers' own modules.

What is compared is fp32 on both sides. Sums of up to 257 numbers in another order differ by a few
1e-7 of their size, and four blocks pass that on: a hundred times as much is allowed. A swapped
tensor, a missing bias or a wrong base of the rotary frequencies is off by 1e-2 and more.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sailor.data.sampler import sequences_of_step
from sailor.data.tokens import TokenStream, load_manifest
from sailor.models.hf.read import HuggingFaceFolder
from sailor.models.hf.tensors import their_tensors
from sailor.models.stage import StageModule
from sailor.parallel.boxes import all_boxes
from sailor.parallel.layout import GroupKind
from sailor.parallel.pipeline import Links
from sailor.parallel.state import StageState
from sailor.parallel.tensor import TensorGroup
from tests.helpers.engine import LENGTH, Crew, a_replica, a_run, some_settings, some_tokens
from tests.helpers.hf import FAMILIES, a_folder, loaded
from tests.parallel.test_comm import groups_of_all

RELATIVE = 2e-5  # of the largest number of the tensor compared
ROUNDING = float(np.finfo(np.float32).eps)

LAYOUTS = {
    "tp1": a_replica(microbatches=3),
    "tp2": a_replica(microbatches=3, tp=2),
    "pp2": a_replica(3, microbatches=3),
    "pp4": a_replica(1, 2, 3, microbatches=3),
    "tp2 x pp2": a_replica(2, microbatches=3, tp=2),
}


# One of each family in every layout; what their relatives add is seen in two.
CASES = [
    (family, layout)
    for family in FAMILIES
    for layout in LAYOUTS
    if family in ("gpt2", "opt", "llama 3", "qwen2") or layout in ("tp1", "tp2 x pp2")
]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return some_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    crew = Crew(tmp_path_factory.mktemp("runs"))
    yield crew
    crew.dismiss()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Family -> its folder, made when first asked for."""
    made = {}

    def folder(family):
        if family not in made:
            made[family] = a_folder(tmp_path_factory.mktemp("model") / "model", family)
        return made[family]

    return folder


def layout_of(name, folder):
    return a_run(LAYOUTS[name], spec=HuggingFaceFolder(folder).spec, pieces=2)


def settings_of(layout, tokens, folder):
    """With a first moment that is the gradient: beta1 is 0 and nothing is clipped."""
    settings = some_settings(tokens, layout, init_from=str(folder))
    return replace(settings, optimizer=replace(settings.optimizer, beta1=0.0, clip_norm=0.0))


def first_batch(tokens, settings):
    """[6, T + 1] tokens of step 1."""
    manifest = load_manifest(tokens)
    stream = TokenStream(manifest, manifest.train, sequence_length=LENGTH)
    size = settings.global_batch_size
    return torch.from_numpy(
        stream.read(
            sequences_of_step(
                1, seed=settings.seed, num_sequences=stream.num_sequences,
                global_batch_size=size, offset=0, count=size,
            )
        )
    )  # fmt: skip


def close(ours, theirs, *, what, largest=0.0):
    """Within RELATIVE of the largest of theirs, or a rounding error of the ``largest`` of all.

    (A key's bias moves all scores of a query alike: without rotary positions its gradient is zero,
    and what is computed is rounding alone.)
    """
    scale = float(np.abs(theirs).max())
    furthest = float(np.abs(ours - theirs).max())
    allowed = max(RELATIVE * scale, ROUNDING * largest)
    assert furthest <= allowed, f"{what}: {furthest:.2e} of {scale:.2e}"


def in_their_form(state, spec, kind):
    """Boxes of a run, put together the way transformers names and shapes them."""
    whole = {}
    for tensor in spec.tensors:
        boxes = [b for b in all_boxes(spec, pieces=2) if b.tensor == tensor.name]
        pieces = [state[f"{box.name} {kind}"] for box in boxes]
        whole[tensor.name] = np.concatenate(pieces, axis=boxes[0].axis)
    theirs = {}
    for tensor in their_tensors(spec):
        joined = np.concatenate([whole[p.tensor.name][: p.rows] for p in tensor.parts])
        theirs[tensor.name] = joined.T if tensor.transposed else joined
    return theirs


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_loss_and_every_gradient_are_those_of_transformers(crew, tokens, folders, family, layout):
    folder = folders(family)
    placed = layout_of(layout, folder)
    settings = settings_of(placed, tokens, folder)
    run = crew.train(placed, settings, steps=range(1, 2))

    model = loaded(folder)
    batch = first_batch(tokens, settings)
    logits = model(batch[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()

    assert run.losses[0] == pytest.approx(loss.item(), rel=1e-6)
    gradients = in_their_form(run.state(), placed.spec, "moment1")
    expected = {
        name: parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    assert gradients.keys() == expected.keys()
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    for name, gradient in gradients.items():
        close(gradient, expected[name], what=name, largest=largest)


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_logits_are_those_of_transformers(tokens, folders, family, layout):
    folder = folders(family)
    placed = layout_of(layout, folder)
    settings = settings_of(placed, tokens, folder)
    batch = first_batch(tokens, settings)[:, :-1]
    groups, _ = groups_of_all(placed)
    with ThreadPoolExecutor(len(groups)) as pool:
        ranks = range(len(groups))
        out = list(pool.map(lambda r: forward(placed, r, groups[r], batch, folder), ranks))
    for group in (group for rank in groups for group in rank.values()):
        group.close()
    shares = [out[rank] for rank in range(len(out)) if placed.is_last(rank)]
    logits = torch.cat(shares, dim=-1)
    with torch.no_grad():
        expected = loaded(folder)(batch).logits
    num_tokens = placed.spec.num_tokens
    close(logits[..., :num_tokens].numpy(), expected.numpy(), what="logits")
    assert (logits[..., num_tokens:] <= torch.finfo(torch.float32).min).all()


def forward(layout, rank, groups, batch, folder):
    """One batch through one rank's stage: what it hands on, or its share of the logits."""
    at, stage = layout.coordinates[rank], layout.stage_of(rank)
    links = Links.of(layout, rank, groups)
    group = TensorGroup(rank=at.tensor_rank, size=stage.tensor_parallel)
    group.communicator = links.tensor
    module = StageModule(
        layout.spec, blocks=stage.layers, first=layout.is_first(rank), last=layout.is_last(rank),
        recompute=False, group=group,
    )  # fmt: skip
    state = StageState(layout, rank, device=torch.device("cpu"))
    state.bind(module.leaves())
    weights = HuggingFaceFolder(folder)
    for box, tensors in state.boxes.items():
        tensors.weight.copy_(weights.read(box))
    x = batch
    if not layout.is_first(rank):
        x = torch.empty(*batch.shape, layout.spec.hidden_size)
        if links.from_previous is not None:
            links.from_previous.broadcast(x, root=0).wait()
        if links.tensor.size > 1:
            links.tensor.broadcast(x, root=0).wait()
    with torch.no_grad():
        x = module(x)
        if layout.is_last(rank):
            return module.head(x)
    if links.to_next is not None:
        links.to_next.broadcast(x, root=0).wait()
    return x


def test_layouts_here_have_the_groups_their_names_say():
    kinds = {
        name: {group.kind for group in a_run(replica).groups} for name, replica in LAYOUTS.items()
    }
    assert GroupKind.tensor in kinds["tp2"]
    assert GroupKind.forward in kinds["pp4"]
    assert {GroupKind.tensor, GroupKind.forward} <= kinds["tp2 x pp2"]
