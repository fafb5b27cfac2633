"""The simulated world: the run's own life cycle on a clock that jumps from event to event.

``lifecycle.advance`` decides, exactly as in the controller; here its commands are carried out by a
model of what agents do: answers come after the seconds of a ``Costs`` sheet, machines come and go
as a ``Fleet`` says, steps take what ``Speeds`` says. Training that nothing disturbs is booked in
one piece, so a week takes as many operations as it has events. No random numbers: the same fleet
gives the same bytes.

Machines that answer at the same moment answer together, layouts are kept by counts (formation.py).
What a loss costs follows from who held what: with a live owner of every part nothing is redone but
the step that was cut off; else the newest snapshot copy, else the newest durable checkpoint.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from sailor.observe.goodput import cause_kind
from sailor.parallel.layout import Layout, Member, WorkerId
from sailor.planner.evidence import Place
from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.lifecycle import advance
from sailor.simulate.account import Account
from sailor.simulate.costs import Costs, Pauses
from sailor.simulate.fleet import Change, Fleet, NodeEvent
from sailor.simulate.formation import Formation, farthest_move, seat
from sailor.simulate.job import Job, Outcome
from sailor.simulate.memory import Memory
from sailor.simulate.pace import Speeds
from sailor.simulate.stepping import EPSILON, Stepping

Sink = Callable[[float, str, Mapping[str, Any]], None]
"""Takes (t, kind, fields) of every event a controller would have logged, steps included."""


@dataclass(kw_only=True)
class World:
    """One simulated run. ``simulate`` is the way in."""

    fleet: Fleet
    speeds: Speeds
    costs: Costs
    job: Job
    limits: s.Limits
    sink: Sink | None = None
    account: Account = field(default_factory=Account)
    now: float = 0.0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _alive: dict[str, Place] = field(default_factory=dict)
    _places: dict[str, Place] = field(default_factory=dict)  # of every machine there ever was
    _training: Stepping | None = None
    _applied: int = 0
    _cause: str = "start_up"  # what un-named time is
    _stepped: bool = False
    _finish: c.Finish | None = None
    _pauses: list[Mapping[str, Any]] = field(default_factory=list)
    _timeline: list[tuple[float, int]] = field(default_factory=list)
    _pending: dict[int, Formation] = field(default_factory=dict)
    _restore_disk: bool = False
    _wake: float = float("inf")

    def __post_init__(self) -> None:
        # Nobody decides for us when to end: the fleet's time does, unless the job's steps do.
        total = self.job.total_steps if self.job.total_steps is not None else 1 << 60
        self.run_state = s.Run(limits=self.limits, total_steps=total)
        self._memory = Memory(job=self.job, costs=self.costs)

    def run(self) -> Outcome:
        """Until the run ends or the fleet's time is over."""
        events, index = self.fleet.events, 0
        horizon = self.fleet.seconds
        self.account.book(min(self.costs.launch_s, horizon), "start_up")
        self._cause = "capacity"
        while self._finish is None:
            fleet_t = events[index].t if index < len(events) else horizon
            heap_t = self._heap[0][0] if self._heap else horizon
            t = min(fleet_t, heap_t)
            if t >= horizon:
                break
            self.now = t
            if fleet_t <= heap_t:
                self._node(events[index])
                index += 1
            else:
                heapq.heappop(self._heap)[2]()
            self._arm()
        end = self.now if self._finish is not None else horizon
        self.now = end
        self._close(end, cut="other")
        self.account.book(end, "shut_down" if self._finish is not None else self._cause)
        return Outcome(
            wall_s=end,
            seconds=self.account.parts(),
            steps=self.account.kept_steps,
            samples=self.account.samples,
            redone_steps=self.account.redone_steps,
            generations=self.run_state.active_generation,
            pauses=tuple(self._pauses),
            end=self._finish.end.value if self._finish is not None else "time is over",
            timeline=tuple(self._timeline),
        )

    # Time

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, act))

    def _arm(self) -> None:
        """Wake up when the life cycle's next deadline has passed."""
        run = self.run_state
        due = []
        if run.phase is s.Phase.assembling:
            due.append(run.started_at + run.limits.assemble_s)
        if run.parked_at is not None:
            due.append(run.parked_at + run.limits.park_s)
        if run.stopping is not None:
            due.append(run.stop_deadline)
        t = run.transition
        if t is not None:
            due.append(t.deadline)
            if t.halt_due is not None and run.training:
                due.append(t.halt_due)
        wake = min(due, default=float("inf")) + 0.1  # the controller ticks ten times a second
        if wake != self._wake and wake != float("inf") and wake > self.now:
            self._wake = wake
            self._later(wake - self.now, self._tick)

    def _tick(self) -> None:
        self._wake = float("inf")
        self._feed(h.Tick(at=self.now))

    def _feed(self, event: h.Event) -> None:
        self._note_progress()
        self.run_state, commands = advance(self.run_state, event)
        for command in commands:
            self._obey(command)

    def _note_progress(self) -> None:
        """Tell the life cycle how far training is, before anything else happens to it."""
        training = self._training
        if training is None:
            return
        step = training.base + training.steps_by(self.now)
        if step > self.run_state.step:
            applied = h.StepApplied(at=self.now, generation=training.generation, step=step)
            self.run_state, commands = advance(self.run_state, applied)
            for command in commands:
                self._obey(command)

    # Machines

    def _node(self, event: NodeEvent) -> None:
        node = event.node
        match event.change:
            case Change.came:
                self._alive[node] = self._places[node] = event.place
                zone, kind = event.place
                worker = WorkerId(node=node, slot=0, incarnation=1)
                member = Member(node=node, zone=zone, machine_type=kind, workers=(worker,))
                self._log("node_joined", node=node, zone=zone, machine_type=kind)
                self._feed(h.Joined(at=self.now, member=member, slots=1))
            case Change.told if node in self._alive:
                left = max(0.0, event.seconds - self.costs.notice_delay_s)
                self._later(
                    self.costs.notice_delay_s,
                    lambda: self._feed(h.Noticed(at=self.now, node=node, seconds=left)),
                )
            case Change.gone if node in self._alive:
                self._die(node)
                silent = self.costs.detect_s
                self._later(
                    silent,
                    lambda: self._feed(
                        h.Lost(at=self.now, node=node, cause="preempted", silent_s=silent)
                    ),
                )
            case _:
                pass

    def _die(self, node: str) -> None:
        """A machine is gone, known or not: what it took part in stops."""
        del self._alive[node]
        training = self._training
        if training is not None and node in training.formation.holds:
            self._close(self.now, cut="redone")
            # Named for good when the life cycle says what it is doing about it.
            self._cause = "transition_node_lost"

    # Commands

    def _obey(self, command: c.Command) -> None:
        match command:
            case c.Replan():
                self._plan(command)
            case c.SendPrepare():
                pauses = self._kind()
                hidden = max(0.0, pauses.hidden_s - pauses.decide_s)
                seconds = hidden if self._is_planned() else pauses.prepare_s
                nodes = command.layout.nodes
                self._later(
                    seconds, lambda: self._answer(h.NodePrepared, command.generation, nodes)
                )
            case c.SendHalt():
                self._halt(command)
            case c.SaveHeld() if not command.nodes:
                nothing = h.NothingToSave(
                    at=self.now, generation=command.generation, why="all are gone"
                )
                self._later(0.0, lambda: self._feed(replace(nothing, at=self.now)))
            case c.SaveHeld():
                for node in command.nodes:
                    saved = partial(self._saved, command.generation, node)
                    self._later(self.costs.save_s, saved)
            case c.ChooseSources():
                self._choose(command)
            case c.SendSwitch():
                self._switch(command)
            case c.SendGo():
                self._go(command)
            case c.Fence() | c.Release():
                self._alive.pop(command.node, None)
                if isinstance(command, c.Release):
                    gone = h.Lost(at=self.now, node=command.node, cause="released")
                    self._later(0.0, lambda: self._feed(replace(gone, at=self.now)))
            case c.Record():
                self._record(command)
            case c.Finish():
                self._finish = command
            case _:
                pass  # SendDrop: a prepared generation costs nothing to forget

    def _is_planned(self) -> bool:
        t = self.run_state.transition
        return t is not None and t.planned

    def _kind(self) -> Pauses:
        """The costs of the transition under way."""
        if self._is_planned():
            return self.costs.planned
        return self.costs.unplanned if self._stepped else self.costs.start

    def _plan(self, command: c.Replan) -> None:
        """The best pace for the members, laid over them."""
        names = [member.node for member in command.members]
        pace = self.speeds.best(Counter(map(self._places.__getitem__, names)))
        formation = None
        if pace is not None:
            formation = seat(pace, set(names), places=self._places, previous=self._memory.last)
            self._pending = {command.generation: formation}
        # A Formation has what the life cycle asks of a Layout (formation.py says what that is).
        layout = cast("Layout | None", formation)
        why = "" if pace is not None else f"{len(names)} machines are too few"
        self._later(
            self._kind().decide_s,
            lambda: self._feed(
                h.Planned(at=self.now, generation=command.generation, layout=layout, why=why)
            ),
        )

    def _answer(
        self, kind: type[h.Event], generation: int, nodes: tuple[str, ...], **rest: Any
    ) -> None:
        """All nodes that still live answer at once."""
        here = self._alive.keys() & nodes
        if here:
            make = cast(Any, kind)  # the three kinds of answer differ in ``rest`` only
            event = make(
                at=self.now, generation=generation, node=min(here), others=frozenset(here), **rest
            )
            self._feed(event)

    def _halt(self, command: c.SendHalt) -> None:
        nodes = command.nodes
        training = self._training
        wait = 0.0
        if training is not None and training.generation == command.generation:
            if command.boundary:
                done = training.steps_by(self.now)
                begun = self.now > training.end_of(done) + EPSILON or done == 0
                wait = max(0.0, training.end_of(done + 1 if begun else done) - self.now)
            else:
                self._close(self.now, cut="redone")
        self._later(wait, lambda: self._stand_still(command, nodes))

    def _stand_still(self, command: c.SendHalt, nodes: tuple[str, ...]) -> None:
        training = self._training
        if training is not None and training.generation == command.generation:
            self._note_progress()
            self._close(self.now, cut="other")
            self._cause = "transition_other"
        self._answer(h.NodeHalted, command.generation, nodes)
        if command.persist:
            self._cause = "shut_down"
            for node in nodes:
                self._later(
                    self.costs.save_s,
                    partial(self._saved, command.generation, node),
                )

    def _saved(self, generation: int, node: str) -> None:
        self._feed(h.NodeSaved(at=self.now, generation=generation, node=node))

    def _choose(self, command: c.ChooseSources) -> None:
        """The newest step that every part of the model can reach, and what is redone for it."""
        choice = self._memory.choose(self._alive, applied=self._applied)
        step, source = choice.step, choice.source
        self._restore_disk = source == "disk"
        redone = self._applied - step
        if redone:
            self.account.undo(redone)
            self._applied = step
        seconds = self.costs.planned.decide_s if self._is_planned() else 0.0
        self._later(
            seconds,
            lambda: self._feed(
                h.Restorable(
                    at=self.now,
                    generation=command.generation,
                    step=step,
                    redone=redone,
                    source=source,
                )  # fmt: skip
            ),
        )

    def _switch(self, command: c.SendSwitch) -> None:
        pauses = self._kind()
        formation = self._pending.get(command.generation)
        bandwidth = self.costs.link_bytes_per_second
        share = 0.0
        if formation is not None and self._memory.last is not None:
            share = farthest_move(formation, afresh=self._restore_disk)
            if self._restore_disk:
                bandwidth = min(bandwidth, self.costs.storage_bytes_per_second)
        copy_s = pauses.copy_s + share * self.job.state_bytes / bandwidth
        nodes = command.layout.nodes
        self._later(
            copy_s + pauses.switch_s,
            lambda: self._answer(h.NodeSwitched, command.generation, nodes, copy_s=copy_s),
        )

    def _go(self, command: c.SendGo) -> None:
        formation = self._pending[command.generation]
        pauses = self._kind_of_go
        self._name_pause()
        every = self.job.snapshot_every
        rest = self.costs.between_steps_s + self.costs.snapshot_stall_s / every
        if self.job.persist_every:
            rest += self.costs.persist_stall_s / self.job.persist_every
        self._applied = command.step
        self._memory.holds(formation, alive=self._alive)
        self._timeline.append((self.now, formation.world_size))
        self._training = training = Stepping(
            generation=command.generation, formation=formation, base=command.step, began=self.now,
            lead_s=pauses.gap_s, extra_s=pauses.extra_s, step_s=formation.plan.step_seconds,
            rest_s=rest,
        )  # fmt: skip
        if not formation.holds.keys() <= self._alive.keys():
            self._training = None  # one died a moment ago, unknown to the controller: nobody steps
            self._cause = "transition_node_lost"
            return
        generation = command.generation
        self._later(
            training.end_of(1) - self.now,
            lambda: self._first_step(generation),
        )
        if self.job.total_steps is not None:
            left = self.job.total_steps - command.step
            self._later(
                max(0.0, training.end_of(left) - self.now),
                lambda: self._last_step(generation),
            )

    def _first_step(self, generation: int) -> None:
        if self._training is not None and self._training.generation == generation:
            self._note_progress()

    def _last_step(self, generation: int) -> None:
        training = self._training
        if training is None or training.generation != generation:
            return
        self._note_progress()
        for node in training.formation.nodes:
            self._feed(h.NodeFinished(at=self.now, generation=generation, node=node))

    @property
    def _kind_of_go(self) -> Pauses:
        """Go comes when the transition is over: the pause tells what kind it was."""
        pause = self.run_state.pause
        if not self._stepped:
            return self.costs.start
        return self.costs.planned if pause is not None and pause.planned else self.costs.unplanned

    # Books

    def _close(self, t: float, *, cut: str) -> None:
        """Training stops at ``t``: book its steps, and what was begun and not finished."""
        training = self._training
        if training is None:
            return
        self._training = None
        count = training.steps_by(t)
        self.account.book(min(t, training.began + training.lead_s), self._cause)
        if count:
            # The first step's surplus is work on a step that counts, as the event log has it.
            self.account.add("good", training.extra_s)
            self.account.cursor += training.extra_s
            self._stepped = True
        every, persist = self.job.snapshot_every, self.job.persist_every
        others = {
            "checkpoint": self.costs.snapshot_stall_s / every
            + (self.costs.persist_stall_s / persist if persist else 0.0),
            "other": self.costs.between_steps_s,
        }
        self.account.steps(
            count, good_seconds=training.step_s, samples=self.job.samples_per_step, others=others
        )
        if self.sink is not None:
            self._log_steps(training, count)
        self._applied = training.base + count
        self._memory.stepped(training, until=t)
        self.account.book(t, cut)

    def _name_pause(self) -> None:
        """Book the interruption that ends now under its cause."""
        pause = self.run_state.pause
        cause = self._cause
        if self._stepped and pause is not None and cause != "capacity":
            cause = f"transition_{cause_kind(pause.cause)}"
        self.account.book(self.now, cause)
        self._cause = cause

    def _record(self, command: c.Record) -> None:
        fields = command.fields
        match command.kind:
            case "transition_started" if self._training is None and self._cause == "capacity":
                self.account.book(self.now, "capacity")
                kind = cause_kind(str(fields.get("cause", "")))
                self._cause = f"transition_{kind}" if self._stepped else "start_up"
            case "parked":
                self.account.book(self.now, self._cause)
                self._cause = "capacity"
            case "pause":
                self._pauses.append({"t": self.now, **fields})
            case _:
                pass
        self._log(command.kind, **fields)

    def _log(self, kind: str, **fields: Any) -> None:
        if self.sink is not None:
            self.sink(self.now, kind, fields)

    def _log_steps(self, training: Stepping, count: int) -> None:
        assert self.sink is not None
        for number in range(1, count + 1):
            end = training.end_of(number) - training.rest_s
            first = training.extra_s if number == 1 else 0.0
            self.sink(
                end,
                "step",
                {
                    "step": training.base + number,
                    "generation": training.generation,
                    "seconds": training.step_s + first,
                    "num_samples": self.job.samples_per_step,
                },
            )


def simulate(
    fleet: Fleet,
    *,
    speeds: Speeds,
    costs: Costs,
    job: Job,
    limits: s.Limits | None = None,
    sink: Sink | None = None,
) -> Outcome:
    """Run the job on the fleet. ``limits``: the life cycle's waits; patience is without end unless
    they say otherwise, for a simulated run is given up by nobody."""
    waits = limits or s.Limits(
        initial_nodes=max(1, _first_crowd(fleet)), assemble_s=3600.0, park_s=float("inf"),
        halt_s=600.0, boundary_s=3600.0, plan_s=600.0, prepare_s=3600.0, restore_s=600.0,
        switch_s=36_000.0, save_s=3600.0, max_restarts=1 << 30,
    )  # fmt: skip
    return World(fleet=fleet, speeds=speeds, costs=costs, job=job, limits=waits, sink=sink).run()


def _first_crowd(fleet: Fleet) -> int:
    """Machines that come together at the very start."""
    first = next((e.t for e in fleet.events if e.change is Change.came), 0.0)
    return sum(1 for e in fleet.events if e.change is Change.came and e.t <= first + 1.0)
