"""Peers that stop and peers that die: the others leave at once and build groups again."""

import contextlib
import signal

import pytest

from tests.helpers.engine import a_replica, a_run, some_settings
from tests.helpers.engine_worker import Abort

MANY = range(1, 100_000)
LEAVE_S = 0.5  # the wait looks every 20 ms; the rest is for two loaded cores
NOTICE_S = 10.0  # a dead peer's connections break within milliseconds of its death

LAYOUTS = {
    "dp2": a_run(a_replica(microbatches=1), a_replica(microbatches=1)),
    "pp2": a_run(a_replica(2, microbatches=3)),
    "tp2": a_run(a_replica(microbatches=1, tp=2)),
}


@contextlib.contextmanager
def training(crew, tokens, layout, **job):
    """Workers in the middle of a long run; whoever survives serves the next test."""
    settings = some_settings(tokens, layout, total_steps=len(MANY))
    workers, files = crew.start(layout, settings, steps=MANY, **job)
    for worker in workers:
        worker.until_step(3)
    yield workers, files


def come_to_a_standstill(worker):
    """Return when it has applied no step for a while."""
    with contextlib.suppress(TimeoutError):
        while True:
            worker.report(timeout_s=0.5)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("stopped", [0, 1])
def test_an_abort_ends_the_wait_for_a_stopped_peer(crew, tokens, layout, stopped):
    with training(crew, tokens, layout) as (workers, _):
        peer, waiting = workers[stopped], workers[1 - stopped]
        peer.signal(signal.SIGSTOP)
        try:
            come_to_a_standstill(waiting)
            waiting.order(Abort())
            end = waiting.end()
            assert end.how == "aborted"
            assert end.leave_s < LEAVE_S
        finally:
            peer.signal(signal.SIGCONT)
            peer.order(Abort())
        assert peer.end().how in ("aborted", "peer lost")


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("killed", [0, 1])
def test_after_a_peer_is_killed_the_survivor_trains_on_in_a_new_group(crew, tokens, layout, killed):
    with training(crew, tokens, layout) as (workers, files):
        victim, survivor = workers[killed], workers[1 - killed]
        victim.signal(signal.SIGKILL)
        end = survivor.end(timeout_s=NOTICE_S)
        assert end.how == "peer lost"
        crew.retire(victim)
        kept = files[1 - killed]

    # The same process, with somebody new, in the next generation. With two replicas it holds all.
    newcomer = next(worker for worker in crew.workers(2) if worker is not survivor)
    state = (kept,) if layout is LAYOUTS["dp2"] else ()
    again, _ = crew.start(
        LAYOUTS["dp2"], some_settings(tokens, LAYOUTS["dp2"]), steps=range(4, 7), state=state,
        workers=[survivor, newcomer], generation=2,
    )  # fmt: skip
    assert [worker.end().how for worker in again] == ["done", "done"]


def test_a_group_whose_member_never_comes_is_given_up_after_its_time(crew, tokens):
    layout = LAYOUTS["dp2"]
    settings = some_settings(tokens, layout)
    (alone,), _ = crew.start(layout, settings, steps=range(1, 2), ranks=[0], timeout_s=1.0)
    end = alone.end(timeout_s=NOTICE_S)
    assert end.how == "peer lost"
    assert "groups of generation 1" in end.detail
