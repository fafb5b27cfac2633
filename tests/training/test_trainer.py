"""Any plan trains the same model: real processes over gloo against one process."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sailor.parallel.comm import Aborted, LoopbackCommunicator, Pending
from sailor.parallel.groups import loopback_groups
from sailor.parallel.layout import WorkerId
from sailor.training.trainer import Trainer
from tests.helpers.engine import a_gpt, a_llama, a_random_plan, a_replica, a_run, some_settings

ONE = (a_replica(microbatches=6),)

# Same microbatches, other replicas and stages: not a bit may change.
SAME_BITS = {
    "dp2": (a_replica(microbatches=3), a_replica(microbatches=3)),
    "dp3 uneven": (
        a_replica(microbatches=3),
        a_replica(microbatches=1),
        a_replica(microbatches=2),
    ),
    "pp2": (a_replica(2, microbatches=6),),
    "pp3 uneven": (a_replica(2, 3, microbatches=6),),
    "pp2 x dp2": (a_replica(2, microbatches=3), a_replica(1, microbatches=3)),
    "pp2 + pp1 at 5:1": (a_replica(3, microbatches=5), a_replica(microbatches=1)),
}

# Another tensor-parallel degree sums in another order. fp32 sums of this size differ by about
# 1e-7 of their value, and AdamW turns that into at most a few 1e-5 of weight in five steps.
CLOSE = {
    "tp2": (a_replica(microbatches=6, tp=2),),
    "tp2 x pp2": (a_replica(2, microbatches=6, tp=2),),
    "tp2 -> tp1, and tp1": (
        a_replica(2, microbatches=3, tp=(2, 1)),
        a_replica(microbatches=3),
    ),
    "tp1 -> tp2, and tp1": (
        a_replica(1, microbatches=4, tp=(1, 2)),
        a_replica(microbatches=2),
    ),
    "tp4": (a_replica(microbatches=3, size=4, tp=4),),  # fewer microbatches: it is slow here
    "tp2 + tp1": (a_replica(microbatches=3, tp=2), a_replica(microbatches=3)),
}
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-4

SPECS = {"gpt": a_gpt(), "llama": a_llama()}


@pytest.fixture(scope="module")
def reference(crew, tokens):
    """Five steps of one process, by family."""
    runs = {}
    for family, spec in SPECS.items():
        layout = a_run(*ONE, spec=spec, pieces=4)
        runs[family] = crew.train(
            layout, some_settings(tokens, layout), steps=range(1, 6), evaluate=True
        )
    return runs


def trained(crew, tokens, replicas, *, family, steps=range(1, 6), **changes):
    layout = a_run(*replicas, spec=SPECS[family], pieces=4)
    return crew.train(layout, some_settings(tokens, layout, **changes), steps=steps, evaluate=True)


def same_bits(one, other):
    a, b = one.state(), other.state()
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def furthest(one, other):
    a, b = one.state(), other.state()
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "gpt") for name in SAME_BITS), ("pp2 x dp2", "llama"), ("pp3 uneven", "llama")],
)
def test_other_replicas_and_stages_change_no_bit(crew, tokens, reference, name, family):
    run = trained(crew, tokens, SAME_BITS[name], family=family)
    assert run.losses == reference[family].losses
    assert run.grad_norms == reference[family].grad_norms
    assert run.eval_losses == reference[family].eval_losses
    assert same_bits(run, reference[family])


@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "gpt") for name in CLOSE), ("tp2 x pp2", "llama"), ("tp1 -> tp2, and tp1", "llama")],
)
def test_other_tensor_parallel_degrees_change_almost_nothing(crew, tokens, reference, name, family):
    run = trained(crew, tokens, CLOSE[name], family=family)
    pairs = zip(run.losses, reference[family].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    pairs = zip(run.eval_losses, reference[family].eval_losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    assert furthest(run, reference[family]) < WEIGHT_TOLERANCE


def test_idle_rows_of_a_vocabulary_are_no_guess_even_where_a_rank_has_no_others(crew, tokens):
    """512 rows of which 256 are tokens: the second of two ranks has none of these."""
    spec = a_gpt(vocab_size=512, vocab_padding=256)
    runs = []
    for tp in (1, 2):
        layout = a_run(a_replica(microbatches=3, tp=tp), spec=spec, pieces=2)
        runs.append(crew.train(layout, some_settings(tokens, layout), steps=range(1, 4)))
    alone, cut = runs
    assert alone.losses[0] == pytest.approx(np.log(256), abs=0.1)
    pairs = zip(alone.losses, cut.losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    assert furthest(alone, cut) < WEIGHT_TOLERANCE
    idle = alone.state()["embedding.tokens.weight[256:512] moment1"]
    assert not idle.any()


def test_the_loss_starts_at_a_guess_and_falls(reference):
    for run in reference.values():
        assert run.losses[0] == pytest.approx(np.log(256), abs=0.1)
        assert run.losses[-1] < run.losses[0] - 0.5
        assert run.eval_losses[1] < run.eval_losses[0] - 0.5


def test_twenty_steps_on_two_unlike_replicas_are_those_of_one_process(crew, tokens):
    layout = a_run(*ONE)
    alone = crew.train(layout, some_settings(tokens, layout), steps=range(1, 21))
    layout = a_run(*SAME_BITS["pp2 + pp1 at 5:1"])
    run = crew.train(layout, some_settings(tokens, layout), steps=range(1, 21))
    assert run.losses == alone.losses
    assert same_bits(run, alone)


def test_the_same_run_twice_has_the_same_bits_with_tensor_parallelism_too(crew, tokens):
    first, second = (trained(crew, tokens, CLOSE["tp2 x pp2"], family="llama") for _ in range(2))
    assert first.losses == second.losses
    assert same_bits(first, second)


def test_recomputing_activations_changes_no_bit(crew, tokens, reference):
    replicas = (a_replica(2, microbatches=6, recompute=True),)
    run = trained(crew, tokens, replicas, family="gpt")
    assert run.losses == reference["gpt"].losses
    assert same_bits(run, reference["gpt"])
    # torch loads its compiler, which takes longer than torch itself, behind innocent names.
    assert not any(end.loaded_compiler for end in run.ends)


def test_recomputing_repeats_the_sums_of_a_tensor_group(crew, tokens):
    plain = trained(crew, tokens, CLOSE["tp2"], family="llama")
    again = (a_replica(microbatches=6, tp=2, recompute=True),)
    run = trained(crew, tokens, again, family="llama")
    assert run.losses == plain.losses
    assert same_bits(run, plain)


@pytest.mark.parametrize("name", ["dp3 uneven", "pp2 x dp2", "tp2 -> tp1, and tp1"])
def test_fast_sums_are_close_to_exact_ones(crew, tokens, reference, name):
    replicas = {**SAME_BITS, **CLOSE}[name]
    run = trained(crew, tokens, replicas, family="gpt", deterministic=False)
    pairs = zip(run.losses, reference["gpt"].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    assert furthest(run, reference["gpt"]) < WEIGHT_TOLERANCE


def test_replicas_may_take_microbatches_of_different_sizes(crew, tokens, reference):
    replicas = (
        a_replica(2, microbatches=2, size=4),
        a_replica(microbatches=4, size=1),
    )
    run = trained(crew, tokens, replicas, family="gpt")
    pairs = zip(run.losses, reference["gpt"].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    assert furthest(run, reference["gpt"]) < WEIGHT_TOLERANCE


@pytest.mark.parametrize("seed", range(6))
def test_any_valid_plan_trains_the_same_model(crew, tokens, reference, seed):
    family = ["gpt", "llama"][seed % 2]
    spec = SPECS[family]
    plan = a_random_plan(spec, random.Random(100 + seed), max_gpus=4, num_samples=12)
    run = trained(crew, tokens, plan.replicas, family=family)
    pairs = zip(run.losses, reference[family].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    assert furthest(run, reference[family]) < WEIGHT_TOLERANCE


def test_samples_are_counted_from_the_start_of_the_run(crew, tokens, reference):
    ranges = [(r.first_sample, r.num_samples) for r in reference["gpt"].steps[0]]
    assert ranges == [(12 * k, 12) for k in range(5)]


def test_one_vote_to_stop_stops_every_rank_after_the_same_step(crew, tokens):
    layout = a_run(*SAME_BITS["pp2 x dp2"])
    settings = some_settings(tokens, layout)
    workers, _ = crew.start(layout, settings, steps=range(1, 20), votes={2: 3})
    assert [worker.end().how for worker in workers] == ["done"] * 4
    for worker in workers:
        assert [report.stop for report in worker.reports] == [False, False, True]


def test_a_loss_that_is_not_a_number_stops_every_rank_with_nothing_applied(crew, tokens):
    layout = a_run(*SAME_BITS["pp2"])
    settings = some_settings(tokens, layout)
    poisoned = "blocks.3.ffn.up.weight"
    workers, files = crew.start(layout, settings, steps=range(1, 3), poison=poisoned)
    assert [worker.end().how for worker in workers] == ["not finite"] * 2
    untouched = crew.train(layout, settings, steps=range(1, 1))
    for file, before in zip(files, untouched.files, strict=True):
        a, b = load_file(file), load_file(before)
        assert all(np.array_equal(a[n], b[n]) for n in a if not n.startswith(poisoned))


@pytest.mark.parametrize("name", ["pp2 x dp2", "pp3 uneven", "pp2 + pp1 at 5:1"])
def test_state_goes_from_one_layout_into_another_and_training_goes_on(
    crew, tokens, reference, name
):
    before = trained(crew, tokens, SAME_BITS["dp3 uneven"], family="gpt", steps=range(1, 3))
    layout = a_run(*SAME_BITS[name], pieces=4)
    settings = some_settings(tokens, layout)
    after = crew.train(layout, settings, steps=range(3, 6), state=before.files)
    assert before.losses + after.losses == reference["gpt"].losses
    assert same_bits(after, reference["gpt"])


@pytest.mark.parametrize("name", ["tp4", "tp2 -> tp1, and tp1"])
def test_state_goes_into_other_tensor_parallel_degrees_and_back(crew, tokens, reference, name):
    at_two = trained(crew, tokens, SAME_BITS["pp2"], family="gpt", steps=range(1, 3))
    layout = a_run(*CLOSE[name], pieces=4)
    settings = some_settings(tokens, layout)
    moved = crew.train(layout, settings, steps=range(3, 3), state=at_two.files)
    assert same_bits(moved, at_two)
    at_four = crew.train(layout, settings, steps=range(3, 5), state=at_two.files)
    layout = a_run(*SAME_BITS["dp2"], pieces=4)
    after = crew.train(layout, settings, steps=range(5, 6), state=at_four.files)
    losses = at_two.losses + at_four.losses + after.losses
    pairs = zip(losses, reference["gpt"].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    assert furthest(after, reference["gpt"]) < WEIGHT_TOLERANCE


def test_the_first_content_depends_on_the_seed_and_not_on_the_cut(crew, tokens):
    def start(replicas, **changes):
        return trained(crew, tokens, replicas, family="gpt", steps=range(1, 1), **changes)

    assert same_bits(start(ONE), start(CLOSE["tp2 x pp2"]))
    assert not same_bits(start(ONE), start(ONE, seed=8))


def test_a_standby_runs_a_whole_step_of_its_role_alone(crew, tokens):
    layout = a_run(*CLOSE["tp2 -> tp1, and tp1"])
    settings = some_settings(tokens, layout)
    workers, _ = crew.start(layout, settings, steps=range(1, 2), loopback=True, evaluate=True)
    assert [worker.end().how for worker in workers] == ["done"] * 4


def test_a_warmed_up_trainer_trains_as_a_cold_one(crew, tokens, reference):
    layout = a_run(*SAME_BITS["pp2 x dp2"], pieces=4)
    settings = some_settings(tokens, layout)
    run = crew.train(layout, settings, steps=range(1, 6), warm_up=True)
    assert run.losses == reference["gpt"].losses
    assert same_bits(run, reference["gpt"])


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_moves_among_others_trains_as_one_made_for_them(tokens, rank, deterministic):
    """It has trained as one of two replicas, is the only one now, and has its memory still."""
    before, after = a_run(*SAME_BITS["dp2"]), a_run(*ONE)
    settings = some_settings(tokens, before, deterministic=deterministic)
    moved = Trainer(layout=before, rank=rank, settings=settings)
    moved.connect(loopback_groups(before, rank))
    moved.initialise(before.kept[rank])
    moved.step(1, stop=False)  # with itself alone: what it leaves behind must not be seen
    fresh = Trainer(layout=after, rank=0, settings=settings)
    state = moved.state
    moved.move_to(after, 0)
    assert moved.state is state
    for trainer in (moved, fresh):
        trainer.initialise(after.kept[0])
        trainer.connect(loopback_groups(after, 0))
    pairs = [[trainer.step(step, stop=False) for trainer in (moved, fresh)] for step in (1, 2, 3)]
    assert [one.loss for one, _ in pairs] == [other.loss for _, other in pairs]
    for box, tensors in fresh.state.items():
        assert torch.equal(moved.state[box].weight, tensors.weight)
        assert torch.equal(moved.state[box].moment2, tensors.moment2)


def test_a_trainer_that_is_left_alone_uses_no_group_of_those_that_are_gone(tokens):
    """The only other replica died: there is no world any more, and its closed group is none."""
    before, after = a_run(*SAME_BITS["dp2"]), a_run(*ONE)
    trainer = Trainer(layout=before, rank=0, settings=some_settings(tokens, before))
    trainer.initialise(before.kept[0])
    trainer.connect({key: Gone(size=2) for key in loopback_groups(before, 0)})
    with pytest.raises(Aborted):
        trainer.step(1, stop=False)
    trainer.move_to(after, 0)
    trainer.loaded()
    trainer.connect(loopback_groups(after, 0))
    assert trainer.step(1, stop=False).num_samples > 0


class Gone(LoopbackCommunicator):
    """A group that was left."""

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        raise Aborted("this group was left and cannot be used again")


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_trainer_among_whom_one_was_replaced_goes_on_with_all_it_has(tokens, deterministic):
    """Same ranks, another worker in one of them: for who stays, nothing but groups is new."""
    before = a_run(*SAME_BITS["dp2"])
    other = WorkerId(node="another", slot=0, incarnation=1)
    after = replace(before, workers=(before.workers[0], other))
    settings = some_settings(tokens, before, deterministic=deterministic)
    trainers = [Trainer(layout=before, rank=0, settings=settings) for _ in range(2)]
    for trainer in trainers:
        trainer.initialise(before.kept[0])
        trainer.connect(loopback_groups(before, 0))
    moved, stayed = trainers
    outcomes = []
    for step in (1, 2, 3):
        if step == 2:
            moved.move_to(after, 0)
            with pytest.raises(ValueError, match="connect first"):
                moved.step(2, stop=False)
            moved.connect(loopback_groups(after, 0))
        outcomes.append([trainer.step(step, stop=False) for trainer in trainers])
    assert [one.loss for one, _ in outcomes] == [other.loss for _, other in outcomes]
    for box, tensors in stayed.state.items():
        assert torch.equal(moved.state[box].weight, tensors.weight)
        assert torch.equal(moved.state[box].moment2, tensors.moment2)


def test_a_trainer_does_not_move_to_other_work(tokens):
    one, two = a_run(*ONE), a_run(*SAME_BITS["pp2"])
    trainer = Trainer(layout=one, rank=0, settings=some_settings(tokens, one))
    with pytest.raises(ValueError, match="other work"):
        trainer.move_to(two, 0)


def test_a_trainer_without_groups_refuses_to_step(tokens):
    layout = a_run(*SAME_BITS["dp2"])
    trainer = Trainer(layout=layout, rank=0, settings=some_settings(tokens, layout))
    with pytest.raises(ValueError, match="connect first"):
        trainer.step(1, stop=False)
    with pytest.raises(ValueError, match="needs groups"):
        trainer.connect({})


def test_a_plan_with_another_batch_than_the_settings_is_refused(crew, tokens):
    layout = a_run(*ONE)
    settings = replace(some_settings(tokens, layout), global_batch_size=13)
    workers, _ = crew.start(layout, settings, steps=range(1, 2))
    end = workers[0].end()
    assert end.how == "failed"
    assert "global batch" in end.detail
