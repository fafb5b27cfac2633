"""Recording what collectives answer and replaying it, in threads of this process."""

import socket
import threading

import pytest
import torch

from sailor.parallel.comm import Aborted, LoopbackCommunicator
from sailor.parallel.groups import loopback_groups
from sailor.parallel.roles import role_of, roles
from sailor.parallel.sandbox import (
    HEAD,
    TAIL,
    LeftSandbox,
    Recorder,
    Recording,
    Replay,
    StaleRecording,
    no_network,
)
from tests.helpers.builders import a_layout, a_plan

NUMERICS = "cpu float32"


class Doubling(LoopbackCommunicator):
    """A sum in which everybody else has the same."""

    def all_reduce(self, tensor):
        tensor.mul_(2)
        return super().all_reduce(tensor)


def two_replicas():
    return a_layout(a_plan([2], [2]))


def recorded(ask, *, layout=None, rank=0):
    layout = layout or two_replicas()
    groups = {
        key: Doubling(rank=group.rank, size=group.size)
        for key, group in loopback_groups(layout, rank).items()
    }
    recorder = Recorder(layout, rank, role="r")
    ask(recorder.wrap(groups), layout)
    return Recording.from_bytes(recorder.recording().to_bytes())


def a_replay(recording, *, rank=0, role="r", abort=None):
    layout = two_replicas()
    replay = Replay(recording, layout, rank, role=role, abort=abort or threading.Event())
    return replay, layout


def world(groups):
    return groups[next(key for key in groups if key.startswith("world"))]


def a_sum(tensor):
    return lambda groups, layout: world(groups).all_reduce(tensor).wait()


def test_a_small_answer_comes_back_to_the_bit():
    recording = recorded(a_sum(torch.tensor([1.0, -2.5])))
    replay, _ = a_replay(recording)
    asked = torch.tensor([7.0, 7.0])
    world(replay.groups).all_reduce(asked).wait()
    assert asked.tolist() == [2.0, -5.0]
    replay.finish()


def test_a_large_answer_is_kept_in_part_and_repeated_never_zero():
    size = 3 * HEAD
    recording = recorded(a_sum(torch.arange(1.0, size + 1, dtype=torch.float64)))
    assert len(recording.to_bytes()) < 8 * (HEAD + TAIL) + 1000
    replay, _ = a_replay(recording)
    asked = torch.zeros(size, dtype=torch.float64)
    world(replay.groups).all_reduce(asked).wait()
    assert asked.count_nonzero() == size
    assert asked[:HEAD].tolist() == [2.0 * i for i in range(1, HEAD + 1)]
    assert asked[HEAD : HEAD + 3].tolist() == [2.0, 4.0, 6.0]
    assert asked[-TAIL:].tolist() == [2.0 * i for i in range(size - TAIL + 1, size + 1)]


def test_answers_to_the_same_question_are_not_all_kept():
    def often(groups, layout):
        for i in range(100):
            world(groups).all_reduce(torch.full((1000,), float(i + 1))).wait()

    recording = recorded(often)
    assert len(recording.operations) == 100
    assert len(recording.samples) == 4


@pytest.mark.parametrize(
    "asked",
    [
        torch.zeros(3),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, 1),
    ],
)
def test_another_question_than_was_recorded_is_refused(asked):
    replay, _ = a_replay(recorded(a_sum(torch.ones(2))))
    with pytest.raises(StaleRecording):
        world(replay.groups).all_reduce(asked)


def test_a_step_that_asks_more_or_less_than_was_recorded_is_refused():
    replay, _ = a_replay(recorded(a_sum(torch.ones(2))))
    with pytest.raises(StaleRecording, match="ended before"):
        replay.finish()
    replay, _ = a_replay(recorded(a_sum(torch.ones(2))))
    world(replay.groups).all_reduce(torch.zeros(2)).wait()
    with pytest.raises(StaleRecording, match="nothing more"):
        world(replay.groups).all_reduce(torch.zeros(2))


def test_a_recording_of_another_role_or_of_nothing_is_refused():
    recording = recorded(a_sum(torch.ones(2)))
    with pytest.raises(StaleRecording):
        a_replay(recording, role="another")
    with pytest.raises(StaleRecording):
        Recording.from_bytes(recording.to_bytes()[:-3])
    with pytest.raises(StaleRecording):
        Recording.from_bytes(b"\xc1 not msgpack")


def test_who_sends_needs_no_answer():
    def send(groups, layout):
        key = next(k for k in groups if k.startswith("forward"))
        groups[key].broadcast(torch.ones(2), root=0).wait()

    recording = recorded(send)
    assert recording.samples == ()
    replay, _ = a_replay(recording)
    key = next(k for k in replay.groups if k.startswith("forward"))
    sent = torch.full((2,), 3.0)
    replay.groups[key].broadcast(sent, root=0).wait()
    assert sent.tolist() == [3.0, 3.0]


def test_a_rehearsal_is_left_at_the_next_operation():
    abort = threading.Event()
    replay, _ = a_replay(recorded(a_sum(torch.ones(2))), abort=abort)
    abort.set()
    with pytest.raises(Aborted):
        world(replay.groups).all_reduce(torch.zeros(2))


def test_inside_the_sandbox_there_is_no_network_and_outside_there_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with no_network(), pytest.raises(LeftSandbox):
            socket.create_connection(address)
        reached = []

        def elsewhere():
            with socket.create_connection(address):
                reached.append(True)

        with no_network():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert reached == [True]
        socket.create_connection(address).close()


def test_ranks_that_do_the_same_have_one_role():
    found = roles(a_layout(a_plan([2], [2])), numerics=NUMERICS)
    assert list(found.values()) == [(0, 2), (1, 3)]
    uneven = roles(a_layout(a_plan([], [2])), numerics=NUMERICS)
    assert list(uneven.values()) == [(0,), (1,), (2,)]


def test_a_role_changes_with_everything_a_step_depends_on():
    layout = two_replicas()
    role = role_of(layout, 0, numerics=NUMERICS)
    others = [
        role_of(layout, 1, numerics=NUMERICS),
        role_of(layout, 0, numerics="cpu bfloat16"),
        role_of(layout, 0, numerics=NUMERICS, code="another version"),
        role_of(a_layout(a_plan([1], [1])), 0, numerics=NUMERICS),
        role_of(a_layout(a_plan([2], [2], microbatches=[3, 1])), 0, numerics=NUMERICS),
    ]
    assert len({role, *others}) == 6
    assert role_of(two_replicas(), 0, numerics=NUMERICS) == role
