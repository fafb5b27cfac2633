"""The trainer a standby keeps ready: for one role, out of the way of rehearsals, given up once."""

import pytest
import torch

from sailor.runtime.understudy import Understudy
from sailor.training.trainer import Trainer
from tests.helpers.engine import a_gpt, a_replica, a_run, some_settings, some_tokens

# Two replicas of two stages: ranks 0 and 2 have the same role, and so have 1 and 3.
LAYOUT = a_run(a_replica(2, microbatches=2), a_replica(2, microbatches=2), spec=a_gpt(), pieces=1)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return some_settings(some_tokens(tmp_path_factory.mktemp("tokens")), LAYOUT)


@pytest.fixture
def understudy(settings):
    """Ready, after both roles were rehearsed, that of rank 0 first."""
    made = Understudy()
    made.told(LAYOUT, 0, settings=settings)
    made.told(LAYOUT, 1, settings=settings)
    made.get_ready()
    return made


def test_the_likeliest_role_is_taken_by_any_rank_that_has_it(understudy, settings):
    trainer = understudy.take(LAYOUT, 2, settings=settings)
    assert trainer is not None
    assert (trainer.layout, trainer.rank) == (LAYOUT, 2)
    fresh = Trainer(layout=LAYOUT, rank=2, settings=settings)
    fresh.touch()
    assert trainer.state.keys() == fresh.state.keys()
    for t in (trainer, fresh):  # and it computes as one that was made for this seat
        t.initialise(t.state)
    for box, tensors in trainer.state.items():
        assert torch.equal(tensors.weight, fresh.state[box].weight)


def test_another_role_gets_none_and_nothing_is_kept(understudy, settings):
    assert understudy.take(LAYOUT, 1, settings=settings) is None
    assert understudy.take(LAYOUT, 0, settings=settings) is None


def test_while_a_role_is_rehearsed_none_is_in_memory(understudy, settings):
    understudy.told(LAYOUT, 1, settings=settings)
    assert understudy.take(LAYOUT, 0, settings=settings) is None


def test_another_recipe_gets_none(understudy, tmp_path):
    other = some_settings(some_tokens(tmp_path), LAYOUT)
    assert understudy.take(LAYOUT, 0, settings=other) is None
