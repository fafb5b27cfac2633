"""Sums of gradients: exact ones do not depend on order, and say when they no longer are."""

import random

import pytest
import torch

from sailor.parallel.comm import Aborted, LoopbackCommunicator, Pending
from sailor.parallel.reduce import ExactSum, FastSum
from sailor.parallel.slots import padded
from sailor.parallel.state import StageState
from tests.helpers.engine import a_gpt, a_replica, a_run
from tests.parallel.test_state import module_of

TOKENS = 192


def one_rank(kind):
    layout = a_run(a_replica(microbatches=6, layers=1), spec=a_gpt(num_layers=1))
    state = StageState(layout, 0, device=torch.device("cpu"))
    parameters = state.bind(module_of(layout, 0).leaves())
    return state, parameters, kind(state, parameters, tokens_per_step=TOKENS)


def microbatch_gradients(parameters, *, number, size=1.0):
    """What backward of a summed loss might leave, by parameter, for each of some microbatches."""
    generator = torch.Generator().manual_seed(5)
    return [
        [torch.randn(p.shape, generator=generator) * size for _, p in parameters]
        for _ in range(number)
    ]


def summed(kind, gradients, *, order):
    """The gradient of the mean loss after these microbatches in this order."""
    state, parameters, total = one_rank(kind)
    total.begin({}, num_microbatches=len(order))
    for index in order:
        for (_, parameter), gradient in zip(parameters, gradients[index], strict=True):
            parameter.backward(gradient * total.seed)
    total.reduce()
    return state.gradients.clone(), total


def test_an_exact_sum_has_the_same_bits_in_every_order():
    gradients = microbatch_gradients(one_rank(ExactSum)[1], number=6)
    first, _ = summed(ExactSum, gradients, order=range(6))
    chance = random.Random(1)
    for _ in range(5):
        order = chance.sample(range(6), 6)
        assert torch.equal(summed(ExactSum, gradients, order=order)[0], first)


def test_a_fast_sum_does_depend_on_order_or_this_page_would_prove_nothing():
    gradients = microbatch_gradients(one_rank(FastSum)[1], number=6)
    first, _ = summed(FastSum, gradients, order=range(6))
    backwards, _ = summed(FastSum, gradients, order=range(5, -1, -1))
    assert not torch.equal(first, backwards)


def test_both_sums_are_the_gradient_of_the_mean_loss():
    state, parameters, _ = one_rank(ExactSum)
    gradients = microbatch_gradients(parameters, number=6)
    expected = torch.zeros_like(state.gradients, dtype=torch.float64)
    for index, (name, _) in enumerate(parameters):  # a tied matrix comes twice
        total = sum(g[index].double() for g in gradients) / TOKENS
        state.by_name[name].of(expected).add_(total)
    # The grid is 2^-44 of the mean gradient; fp32 keeps 2^-24 of each value.
    exact, _ = summed(ExactSum, gradients, order=range(6))
    torch.testing.assert_close(exact.double(), expected, rtol=2**-23, atol=6 * 2**-44)
    fast, _ = summed(FastSum, gradients, order=range(6))
    torch.testing.assert_close(fast.double(), expected, rtol=1e-5, atol=1e-7)


def test_the_seed_of_an_exact_sum_is_a_power_of_two_so_that_backward_rounds_nothing_new():
    for tokens in (1, 3, 1024, 1025, 10**6):
        layout = a_run(a_replica(microbatches=6, layers=1), spec=a_gpt(num_layers=1))
        state = StageState(layout, 0, device=torch.device("cpu"))
        seed = ExactSum(
            state, state.bind(module_of(layout, 0).leaves()), tokens_per_step=tokens
        ).seed
        assert seed.hex().startswith("0x1.0000000000000p")


@pytest.mark.parametrize(("size", "exact"), [(1.0, True), (1e5, False)])
def test_gradients_too_large_for_the_grid_are_told_from_those_that_fit(size, exact):
    gradients = microbatch_gradients(one_rank(ExactSum)[1], number=2, size=size)
    _, total = summed(ExactSum, gradients, order=range(2))
    assert bool(total.magnitude() < 1.0) is exact


def test_a_gradient_that_is_not_a_number_stays_visible():
    gradients = microbatch_gradients(one_rank(ExactSum)[1], number=2)
    gradients[1][3].view(-1)[0] = float("nan")
    result, _ = summed(ExactSum, gradients, order=range(2))
    assert result.isnan().sum() == 1


def test_fresh_memory_after_an_abort_sums_as_before():
    for kind in (ExactSum, FastSum):
        gradients = microbatch_gradients(one_rank(kind)[1], number=2)
        expected, _ = summed(kind, gradients, order=range(2))
        state, parameters, total = one_rank(kind)
        total.begin({}, num_microbatches=2)
        parameters[0][1].backward(gradients[0][0])
        total.renew()
        total.begin({}, num_microbatches=2)
        for gradient in gradients:
            for (_, parameter), part in zip(parameters, gradient, strict=True):
                parameter.backward(part * total.seed)
        total.reduce()
        assert torch.equal(state.gradients, expected)


class Leaving(LoopbackCommunicator):
    """A group whose other members are gone: an operation begins, and is left."""

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        return self

    def wait(self) -> None:
        raise Aborted("a peer is gone")


@pytest.mark.parametrize("in_reduction", [False, True])
def test_only_a_sum_that_others_may_still_write_into_is_given_up(in_reduction):
    """Fresh memory is dear: a step that is left before its reduction keeps what it has."""
    layout = a_run(*[a_replica(microbatches=3, layers=1)] * 2, spec=a_gpt(num_layers=1))
    state = StageState(layout, 0, device=torch.device("cpu"))
    parameters = state.bind(module_of(layout, 0).leaves())
    total = ExactSum(state, parameters, tokens_per_step=TOKENS)
    memory = total._memory.data_ptr()
    total.begin({(0, 1): Leaving(size=2)}, num_microbatches=1)
    parameters[0][1].backward(torch.ones_like(parameters[0][1]))
    if in_reduction:
        with pytest.raises(Aborted):
            total.reduce()
    total.renew()
    assert (total._memory.data_ptr() == memory) is not in_reduction
    total.begin({(0, 1): Leaving(size=2)}, num_microbatches=1)
    if in_reduction:
        with pytest.raises(Aborted):
            total.reduce()
    assert (total.detach() is None) is in_reduction


def test_a_step_forgets_the_one_before_also_where_a_matrix_is_tied():
    for kind in (ExactSum, FastSum):
        gradients = microbatch_gradients(one_rank(kind)[1], number=3)
        expected, _ = summed(kind, gradients[1:], order=range(2))
        state, parameters, total = one_rank(kind)
        names = [name for name, _ in parameters]
        assert len(set(names)) < len(names), "the token matrix is a parameter twice"
        for step in (gradients[:1], gradients[1:]):
            total.begin({}, num_microbatches=len(step))
            for gradient in step:
                for (_, parameter), part in zip(parameters, gradient, strict=True):
                    parameter.backward(part * total.seed)
            total.reduce()
        assert torch.equal(state.gradients, expected)


class Noting(LoopbackCommunicator):
    """Notes the size of every sum that is started, in a list that several share."""

    def __init__(self, started, *, rank, size):
        super().__init__(rank=rank, size=size)
        self.started = started

    def all_reduce(self, tensor):
        self.started.append(tensor.numel())
        return super().all_reduce(tensor)


def test_sums_over_owners_start_while_backward_runs_and_the_embedding_is_last():
    """Two replicas of four blocks; the gradients come in the order of backward."""
    layout = a_run(a_replica(microbatches=3), a_replica(microbatches=3))
    state = StageState(layout, 0, device=torch.device("cpu"))
    parameters = state.bind(module_of(layout, 0).leaves())
    total = FastSum(state, parameters, tokens_per_step=TOKENS, portion=1)
    started: list[int] = []
    groups = {(0, 1): Noting(started, rank=0, size=2)}
    order = sorted(parameters, key=lambda entry: -state.order[entry[0]])
    total.begin(groups, num_microbatches=2)
    for _, parameter in order:
        parameter.backward(torch.ones_like(parameter))
    assert not started, "the first microbatch completes nothing"
    seen = []
    for _, parameter in order:
        parameter.backward(torch.ones_like(parameter))
        seen.append(len(started))
    assert seen == sorted(seen)
    assert seen[len(seen) // 2] >= len(seen) // 3, "half of the way back a third is on the wire"
    total.reduce()
    assert len(started) == len(state.slots), "a portion of one element ends after each parameter"
    assert started[-1] == padded(state.by_name["embedding.tokens.weight"].numel)


def test_what_is_complete_early_waits_for_its_turn():
    """Owners may finish in another order; operations of one group start in the same everywhere."""
    layout = a_run(a_replica(microbatches=3), a_replica(microbatches=3))
    orders = []
    for backwards in (False, True):
        state = StageState(layout, 0, device=torch.device("cpu"))
        parameters = state.bind(module_of(layout, 0).leaves())
        total = FastSum(state, parameters, tokens_per_step=TOKENS, portion=1)
        started: list[int] = []
        total.begin({(0, 1): Noting(started, rank=0, size=2)}, num_microbatches=1)
        for _, parameter in reversed(parameters) if backwards else parameters:
            parameter.backward(torch.ones_like(parameter))
        total.reduce()
        orders.append(started)
    assert orders[0] == orders[1]
