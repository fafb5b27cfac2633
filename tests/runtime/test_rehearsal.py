"""A rehearsal: a real step with recorded answers, on state that is thrown away."""

import threading
from dataclasses import replace

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from sailor.parallel.comm import Aborted
from sailor.parallel.groups import build_groups
from sailor.parallel.roles import role_of
from sailor.parallel.sandbox import Recorder, StaleRecording
from sailor.runtime.rehearsal import CannotRehearse, rehearse
from sailor.runtime.standby import numerics_of
from sailor.training.trainer import Trainer
from tests.helpers.engine import a_gpt, a_replica, a_run, some_settings, some_tokens

# Two replicas of two stages: each role is there twice.
LAYOUT = a_run(a_replica(2, microbatches=2), a_replica(2, microbatches=2), spec=a_gpt(), pieces=1)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return some_settings(some_tokens(tmp_path_factory.mktemp("tokens")), LAYOUT)


def a_trainer(settings, rank):
    trainer = Trainer(layout=LAYOUT, rank=rank, settings=settings)
    trainer.touch()
    return trainer


@pytest.fixture(scope="module")
def world(settings):
    """Four ranks, in threads, after two steps; the second is recorded. (trainers, recordings)."""
    trainers = [a_trainer(settings, rank) for rank in range(4)]
    recordings, errors = {}, []
    store = HashStore()

    def work(rank):
        try:
            groups = build_groups(
                LAYOUT, rank, generation=1, store=store, abort=threading.Event(), timeout_s=30.0,
                host="127.0.0.1",
            )  # fmt: skip
            trainer = trainers[rank]
            trainer.initialise(trainer.state)
            trainer.connect(groups)
            trainer.step(1, stop=False)
            role = role_of(LAYOUT, rank, numerics=numerics_of(settings))
            recorder = Recorder(LAYOUT, rank, role=role)
            trainer.connect(recorder.wrap(groups))
            trainer.step(2, stop=False)
            recordings[rank] = recorder.recording()
            for group in groups.values():
                group.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return trainers, recordings


def role_at(settings, rank):
    return role_of(LAYOUT, rank, numerics=numerics_of(settings))


def test_being_overheard_changes_no_bit(settings, world):
    trainers, _ = world
    for mine, other in ((0, 2), (1, 3)):
        for box, tensors in trainers[mine].state.items():
            assert torch.equal(tensors.weight, trainers[other].state[box].weight)


@pytest.mark.parametrize(("rank", "recorded"), [(0, 0), (1, 1), (2, 0), (3, 1)])
def test_a_role_is_rehearsed_from_the_recording_of_any_rank_that_has_it(
    settings, world, rank, recorded
):
    trainers, recordings = world
    trainer = a_trainer(settings, rank)
    before = [t.weight.clone() for t in trainers[rank].state.values()]
    seconds = rehearse(
        trainer, recordings[recorded], role=role_at(settings, rank), abort=threading.Event(),
        real=[t.weight for t in trainers[rank].state.values()],
    )  # fmt: skip
    assert seconds > 0
    for tensors in trainer.state.values():  # what was thrown away is gone
        assert not tensors.weight.any()
        assert not tensors.moment1.any()
        assert not tensors.moment2.any()
    after = [t.weight for t in trainers[rank].state.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_recording_of_another_role_is_found_out(settings, world):
    _, recordings = world
    with pytest.raises(CannotRehearse, match="StaleRecording"):
        rehearse(
            a_trainer(settings, 0), recordings[1], role=role_at(settings, 0),
            abort=threading.Event(),
        )  # fmt: skip


def test_a_recording_with_other_operations_is_found_out_and_the_state_is_zero(settings, world):
    _, recordings = world
    shorter = replace_operations(recordings[1], recordings[1].operations[:-2])
    trainer = a_trainer(settings, 1)
    with pytest.raises(CannotRehearse, match="nothing more"):
        rehearse(trainer, shorter, role=role_at(settings, 1), abort=threading.Event())
    assert not any(t.weight.any() or t.moment2.any() for t in trainer.state.values())


def replace_operations(recording, operations):
    return type(recording)(
        role=recording.role, operations=tuple(operations), samples=recording.samples
    )


def test_a_recording_of_numbers_that_are_none_never_reaches_the_state(settings, world):
    """What a damaged file may hold: the step is refused, as in real life."""
    _, recordings = world
    nan = torch.full((1,), float("nan"), dtype=torch.float64).numpy().tobytes()
    spoilt = type(recordings[0])(
        role=recordings[0].role, operations=recordings[0].operations,
        samples=tuple(nan * (len(s) // 8) for s in recordings[0].samples),
    )  # fmt: skip
    trainer = a_trainer(settings, 0)
    with pytest.raises(CannotRehearse, match="StepRefused"):
        rehearse(trainer, spoilt, role=role_at(settings, 0), abort=threading.Event())
    assert not any(t.weight.any() for t in trainer.state.values())


def test_a_rehearsal_that_is_called_off_leaves_the_trainer_usable(settings, world):
    _, recordings = world
    abort = threading.Event()
    abort.set()
    trainer = a_trainer(settings, 0)
    with pytest.raises(Aborted):
        rehearse(trainer, recordings[0], role=role_at(settings, 0), abort=abort)
    assert rehearse(trainer, recordings[0], role=role_at(settings, 0), abort=threading.Event())


def test_code_that_changed_makes_a_recording_stale(settings, world):
    _, recordings = world
    newer = role_of(LAYOUT, 0, numerics=numerics_of(settings), code="another version")
    with pytest.raises(CannotRehearse, match=StaleRecording.__name__):
        rehearse(a_trainer(settings, 0), recordings[0], role=newer, abort=threading.Event())


def test_the_role_of_a_trainer_knows_its_recipe(settings):
    other = replace(settings, deterministic=not settings.deterministic)
    assert numerics_of(other) != numerics_of(settings)
