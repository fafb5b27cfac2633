"""The life cycle under seeded random events, in a world that answers late, wrongly or not at all.

The world is a model of what agents do: it keeps who is alive, who stands still and what each holds.
After every event the invariants of the protocol are asserted; once the chaos ends, the run must
get back to training and reach its last step.
"""

import random
from dataclasses import replace

import pytest

from sailor.parallel.layout import WorkerId
from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.lifecycle import advance
from sailor.runtime.reserve import standbys
from sailor.runtime.wishes import LONGEST_WAIT_S
from tests.helpers.builders import a_layout, a_member, a_plan

TOTAL_STEPS = 400


class World:
    """Nodes that do as they are told after a random delay, or die first."""

    def __init__(self, seed: int, *, standbys: int = 0, total_steps: int = TOTAL_STEPS) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.pending: list[tuple[float, h.Event]] = []
        limits = s.Limits(
            initial_nodes=3 + standbys, standbys=standbys, assemble_s=20, max_restarts=10_000,
            park_s=1e9,
        )  # fmt: skip
        self.total_steps = total_steps
        self.run = s.Run(limits=limits, total_steps=total_steps)
        self.alive: dict[str, int] = {}  # node -> incarnation of its one worker
        self.next_node = 0
        self.training: tuple[int, set[str]] | None = None  # generation and nodes that step
        self.step = 0
        self.committed: list[tuple[int, int]] = []  # (generation, step) in order
        self.finish: c.Finish | None = None

    def later(self, event_of, delay: float) -> None:
        at = self.now + delay
        self.pending.append((at, event_of(at)))

    def delay(self) -> float:
        return self.random.choice([0.01, 0.05, 0.3, 2.0])

    def feed(self, event: h.Event) -> None:
        before = self.run
        self.run, commands = advance(self.run, event)
        assert self.run.generation >= before.generation
        for command in commands:
            self.obey(command)
        self.check()

    def check(self) -> None:
        t = self.run.transition
        assert (t is not None) == (self.run.phase is s.Phase.transition)
        if t is not None:
            assert t.generation == self.run.generation
            assert t.deadline >= t.entered_at  # I5: every wait has a deadline
            assert t.waiting <= set(self.run.nodes)
        if self.run.phase is s.Phase.training:
            assert self.run.active is not None
        assert not set(standbys(self.run)) & set(self.run.active.nodes if self.run.active else ())
        assert len(standbys(self.run)) <= self.run.limits.standbys

    def obey(self, command: c.Command) -> None:
        answer = self.answers(command)
        match command:
            case c.Replan():
                nodes = [m for m in command.members if m.workers]
                layout = None
                if len(nodes) >= 2:
                    layout = a_layout(a_plan(*([[]] * len(nodes))))
                    layout = replace(layout, workers=tuple(m.workers[0] for m in nodes))
                self.later(
                    lambda at: h.Planned(at=at, generation=command.generation, layout=layout),
                    self.delay(),
                )
            case c.SendHalt():
                if self.training and command.generation == self.training[0]:
                    self.training = None  # whoever is told stops; the others hang without them
                for node in command.nodes:
                    answer(node, lambda at, n=node: h.NodeHalted(at=at, generation=1, node=n))
                    if command.persist:
                        answer(node, lambda at, n=node: h.NodeSaved(
                            at=at, generation=command.generation, node=n), 3.0)  # fmt: skip
            case c.SaveHeld() if not command.nodes or self.random.random() < 0.5:
                self.later(
                    lambda at: h.NothingToSave(
                        at=at, generation=command.generation, why="no copies"
                    ),
                    self.delay(),
                )
            case c.SaveHeld():
                for node in command.nodes:
                    answer(node, lambda at, n=node: h.NodeSaved(
                        at=at, generation=command.generation, node=n), 3.0)  # fmt: skip
            case c.SendPrepare():
                for node in command.layout.nodes:
                    answer(node, lambda at, n=node: h.NodePrepared(
                        at=at, generation=command.generation, node=n))  # fmt: skip
            case c.ChooseSources():
                step = max(0, self.step - self.random.choice([0, 0, 0, 1]))
                self.later(
                    lambda at: h.Restorable(
                        at=at, generation=command.generation, step=step,
                        redone=self.step - step, source="memory"),
                    self.delay(),
                )  # fmt: skip
            case c.SendSwitch():
                assert self.training is None, "I1: nobody may step while boxes move"
                for node in command.layout.nodes:
                    answer(node, lambda at, n=node: h.NodeSwitched(
                        at=at, generation=command.generation, node=n, copy_s=0.01))  # fmt: skip
            case c.SendWarm():
                assert command.nodes
                assert not set(command.nodes) & set(command.layout.nodes)
            case c.SendGo():
                assert self.training is None, "I1: one generation steps at a time"
                self.step = command.step
                # A worker that died a moment ago, unknown to the controller, never steps.
                workers = command.layout.workers
                if all(self.alive.get(w.node) == w.incarnation for w in workers):
                    self.training = (command.generation, set(command.layout.nodes))
            case c.Fence():
                self.alive.pop(command.node, None)
            case c.Release():
                self.kill(command.node, cause="released")
            case c.Finish():
                self.finish = command

    def answers(self, command):
        generation = getattr(command, "generation", 0)

        def answer(node: str, event_of, extra: float = 0.0) -> None:
            if node not in self.alive:
                return
            roll = self.random.random()
            if self.chaos and roll < 0.03:
                return  # never answers
            if self.chaos and roll < 0.06:
                self.later(
                    lambda at: h.NodeFailed(at=at, generation=generation, node=node, reason="x"),
                    self.delay(),
                )
                return
            self.later(event_of, self.delay() + extra)

        return answer

    chaos = True

    # What happens to nodes

    def join(self) -> None:
        node = f"n{self.next_node}"
        self.next_node += 1
        self.alive[node] = 1
        self.feed(h.Joined(at=self.now, member=a_member(node), slots=1))

    def kill(self, node: str, cause: str = "killed") -> None:
        if self.alive.pop(node, None) is None:
            return
        if self.training and node in self.training[1]:
            self.training = None
        self.later(lambda at: h.Lost(at=at, node=node, cause=cause, silent_s=0.1), 0.1)

    def kill_worker(self, node: str) -> None:
        incarnation = self.alive[node]
        self.alive[node] = incarnation + 1
        if self.training and node in self.training[1]:
            self.training = None
        old = WorkerId(node=node, slot=0, incarnation=incarnation)
        new = replace(old, incarnation=incarnation + 1)
        self.later(lambda at: h.WorkerDied(at=at, worker=old, cause="SIGKILL"), 0.05)
        self.later(lambda at: h.WorkerStarted(at=at, worker=new), 0.1)

    def something_happens(self) -> None:
        nodes = sorted(self.alive)
        roll = self.random.random()
        if roll < 0.45 or len(nodes) < 2:
            self.join()
        elif roll < 0.65:
            self.kill(self.random.choice(nodes))
        elif roll < 0.8:
            self.kill_worker(self.random.choice(nodes))
        elif roll < 0.88:
            self.feed(h.MoveAsked(
                at=self.now, node=self.random.choice(nodes), why="asked",
                to=self.random.choice(["", "", *nodes]), keep_out=self.random.random() < 0.3,
            ))  # fmt: skip
        elif roll < 0.92:
            self.feed(h.Returned(at=self.now, node=self.random.choice(nodes)))
        else:
            node = self.random.choice(nodes)
            seconds = self.random.choice([2.0, 30.0])
            self.feed(h.Noticed(at=self.now, node=node, seconds=seconds))
            self.later(lambda at: h.Lost(at=at, node=node, cause="preempted"), seconds)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.finish is None:
            self.now = round(self.now + 0.1, 3)
            due = [entry for entry in self.pending if entry[0] <= self.now]
            self.pending = [entry for entry in self.pending if entry[0] > self.now]
            for _, event in sorted(due, key=lambda entry: entry[0]):
                if isinstance(event, h.Lost):
                    self.alive.pop(event.node, None)
                    if self.training and event.node in self.training[1]:
                        self.training = None
                self.feed(event)
            if self.training is not None:
                self.take_step()
            self.feed(h.Tick(at=self.now))

    def take_step(self) -> None:
        assert self.training is not None
        generation, nodes = self.training
        assert nodes <= set(self.alive), "a generation with a dead node cannot step"
        if self.step >= self.total_steps:
            for node in sorted(nodes):
                self.feed(h.NodeFinished(at=self.now, generation=generation, node=node))
            return
        self.step += 1
        self.committed.append((generation, self.step))
        self.feed(h.StepApplied(at=self.now, generation=generation, step=self.step))


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_events_ends_in_a_finished_run(seed):
    assert_it_finishes_whatever_comes(seed)


@pytest.mark.matrix  # some minutes
@pytest.mark.parametrize("first", range(60, 3060, 250))
def test_any_order_of_thousands_ends_in_a_finished_run(first):
    for seed in range(first, first + 250):
        assert_it_finishes_whatever_comes(seed)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_stops_a_run_in_any_state_has_it_saved_soon(seed):
    """In the middle of a recovery, of a join, parked: it ends resumable, and never as failed."""
    world = World(seed, standbys=seed % 3)
    for _ in range(3 + seed % 3):
        world.join()
    for _ in range(20 + seed):
        world.something_happens()
        world.pass_time(world.random.choice([0.1, 0.5, 2.0]))
    world.chaos = False
    world.feed(h.StopAsked(at=world.now, end=s.End.interrupted, why="Ctrl-C"))
    for _ in range(5):
        if world.finish is None:
            world.something_happens()
            world.pass_time(0.5)
    # Whoever was asked before the storm was over, and never answers, is waited for once.
    limits = world.run.limits
    world.pass_time(limits.boundary_s + limits.prepare_s + limits.save_s)
    assert world.finish is not None
    assert world.finish.end is s.End.interrupted


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_once_it_is_quiet_nobody_who_could_train_is_left_out(seed, few):
    """Machines that join are paid for, whatever befell the change that was to take them in. With
    ``few`` most are gone at the end, and others come one after the other."""
    world = World(seed, standbys=seed % 3, total_steps=100_000)
    for _ in range(3 + seed % 3):
        world.join()
    for _ in range(40):
        world.something_happens()
        world.pass_time(world.random.choice([0.1, 0.5, 2.0]))
    if few:
        for node in sorted(world.alive)[:-1]:
            world.kill(node)
        for _ in range(world.random.choice([1, 2, 3])):
            world.pass_time(world.random.choice([0.1, 0.5, 2.0]))
            world.join()
    world.chaos = False
    world.pass_time(LONGEST_WAIT_S + 2 * world.run.limits.boundary_s)
    run = world.run
    if len(world.alive) < 2:
        assert run.phase is s.Phase.parked
        return
    assert run.phase is s.Phase.training
    failed = {name for name, node in run.nodes.items() if node.unfit}
    assert set(run.active.nodes) >= set(world.alive) - set(standbys(run)) - failed


def assert_it_finishes_whatever_comes(seed: int) -> None:
    world = World(seed, standbys=seed % 3)
    for _ in range(3 + seed % 3):
        world.join()
    for _ in range(200):
        world.something_happens()
        world.pass_time(world.random.choice([0.1, 0.5, 2.0]))
    world.chaos = False
    for _ in range(3):
        world.join()
    for _ in range(60):
        if world.finish is not None:
            break
        world.pass_time(30)
    assert world.finish is not None
    assert world.finish.end is s.End.done
    generations = [generation for generation, _ in world.committed]
    assert generations == sorted(generations)
    for (g, step), (other, following) in zip(world.committed, world.committed[1:], strict=False):
        assert following == step + 1 or (other > g and following <= step + 1)
    assert world.committed[-1][1] == TOTAL_STEPS
