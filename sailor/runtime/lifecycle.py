"""The life of a run, as a function: ``advance(run, event) -> (run, commands)``. No I/O, no clock.

The whole elastic logic is here. The controller executes the commands and feeds outcomes back as
events; the simulator does the same on a simulated world. A change of membership or layout is one
mechanism, a Transition, that passes through stages:

    unplanned (a loss)          halt -> plan -> prepare -> restore -> switch -> training
    planned (join, notice)      plan -> prepare -> halt -> restore -> switch -> training

In a planned one the old generation trains until the halt, and anything that goes wrong before the
halt leaves it training. Whatever goes wrong later starts over, one generation higher.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.parallel.layout import Layout, Member, WorkerId
from sailor.runtime.state import (
    ChooseSources,
    Command,
    End,
    Event,
    Fence,
    Finish,
    Joined,
    LossNotFinite,
    Lost,
    Node,
    NodeFailed,
    NodeFinished,
    NodeHalted,
    NodePrepared,
    NodeSaved,
    NodeSwitched,
    Noticed,
    Pause,
    Phase,
    Planned,
    Record,
    Release,
    Replan,
    Restorable,
    Run,
    SendDrop,
    SendGo,
    SendHalt,
    SendPrepare,
    SendSwitch,
    StepApplied,
    Stop,
    StopAsked,
    Tick,
    Transition,
    TransitionStage,
    WorkerDied,
    WorkerStarted,
)

Stage = TransitionStage
Outcome = tuple[Run, list[Command]]


def advance(run: Run, event: Event) -> Outcome:
    """What the run becomes after an event, and what the controller must now do about it.

    Total: every event is accepted in every state. An answer that belongs to another generation, or
    to a stage that is over, changes nothing.
    """
    if run.phase is Phase.ended:
        return run, []
    match event:
        case Joined():
            return _joined(run, event)
        case Lost():
            return _lost(run, event)
        case WorkerDied():
            return _worker_died(run, event)
        case WorkerStarted():
            return _worker_started(run, event)
        case Noticed():
            return _noticed(run, event)
        case Planned():
            return _planned(run, event)
        case NodePrepared() | NodeHalted() | NodeSwitched():
            return _answered(run, event)
        case Restorable():
            return _restorable(run, event)
        case NodeFailed():
            return _node_failed(run, event)
        case StepApplied():
            return _step_applied(run, event)
        case NodeFinished():
            return _finished(run, event)
        case NodeSaved():
            return _saved(run, event)
        case LossNotFinite() if event.generation == run.active_generation:
            why = f"the loss of step {event.step} is not finite; step {run.step} is kept"
            return _stop(run, event.at, Stop(end=End.diverged, why=why), boundary=False)
        case StopAsked():
            return _stop(run, event.at, Stop(end=event.end, why=event.why), boundary=True)
        case Tick():
            return _tick(run, event.at)
    return run, []


# Membership


def _joined(run: Run, event: Joined) -> Outcome:
    node = event.member.node
    run = replace(run, nodes={**run.nodes, node: Node(member=event.member, slots=event.slots)})
    if run.phase is Phase.assembling:
        if len(run.nodes) >= run.limits.initial_nodes:
            return _begin_unplanned(run, event.at, cause="start")
        return run, []
    return _want_plan(run, event.at, cause=f"{node} joined")


def _lost(run: Run, event: Lost) -> Outcome:
    if event.node not in run.nodes:
        return run, []
    nodes = dict(run.nodes)
    del nodes[event.node]
    run = replace(run, nodes=nodes)
    if event.node in _saved_nodes(run):
        return run, []  # its part is durable already
    cause = f"{event.node} lost: {event.cause}"
    return _hurt(run, event.at, event.node, cause=cause, silent_s=event.silent_s)


def _worker_died(run: Run, event: WorkerDied) -> Outcome:
    node = run.nodes.get(event.worker.node)
    if node is None or event.worker not in node.member.workers:
        return run, []
    left = tuple(w for w in node.member.workers if w != event.worker)
    run = _with_workers(run, node, left)
    if not any(event.worker in layout.workers for layout in _layouts(run)):
        return run, []
    cause = f"worker {event.worker} lost: {event.cause}"
    return _hurt(run, event.at, event.worker.node, cause=cause, silent_s=event.silent_s)


def _worker_started(run: Run, event: WorkerStarted) -> Outcome:
    node = run.nodes.get(event.worker.node)
    if node is None or event.worker in node.member.workers:
        return run, []
    others = tuple(w for w in node.member.workers if w.slot != event.worker.slot)
    run = _with_workers(run, node, tuple(sorted((*others, event.worker))))
    t = run.transition
    if t is not None and t.stage is Stage.halt and not t.planned:
        return _stage_done(run, event.at)
    return _want_plan(run, event.at, cause=f"worker {event.worker} started")


def _noticed(run: Run, event: Noticed) -> Outcome:
    node = run.nodes.get(event.node)
    if node is None or node.leaves_at is not None:
        return run, []
    leaving = replace(node, leaves_at=event.at + event.seconds)
    run = replace(run, nodes={**run.nodes, event.node: leaving})
    if not _uses(run, event.node):
        return run, [Release(node=event.node, reason="has a notice and no role")]
    return _want_plan(run, event.at, cause=f"{event.node} leaves in {event.seconds:.0f} s")


def _with_workers(run: Run, node: Node, workers: tuple[WorkerId, ...]) -> Run:
    member = replace(node.member, workers=workers)
    return replace(run, nodes={**run.nodes, member.node: replace(node, member=member)})


def _layouts(run: Run) -> list[Layout]:
    """The active layout and the coming one, as far as there are any."""
    both = (run.active, run.transition.layout if run.transition else None)
    return [layout for layout in both if layout is not None]


def _uses(run: Run, node: str) -> bool:
    """Whether the active or the coming layout has a role for the node."""
    return any(node in layout.nodes for layout in _layouts(run))


def _candidates(run: Run) -> tuple[Member, ...]:
    """Who a new plan may count on: connected, with workers, and not about to leave."""
    nodes = [run.nodes[name] for name in sorted(run.nodes)]
    return tuple([n.member for n in nodes if n.leaves_at is None and n.member.workers])


# Beginning a transition


def _want_plan(run: Run, at: float, *, cause: str) -> Outcome:
    """Membership changed without harm: plan again when the present state allows it."""
    match run.phase:
        case Phase.training if run.stop is None:
            return _begin_planned(run, at, cause=cause)
        case Phase.transition if (t := run.transition) is not None:
            if t.planned and run.training:
                cause = f"{t.cause}; {cause}"
                run, commands = _drop(run, why="membership changed")
                run, more = _begin_planned(run, at, cause=cause)
                return run, commands + more
            if t.stage is Stage.halt and not t.planned:
                return run, []  # the plan that is asked for next will count it in
            return replace(run, reconsider=run.reconsider or cause), []
        case Phase.parked:
            return _begin_unplanned(run, at, cause=run.pause.cause if run.pause else cause)
    return run, []


def _begin_planned(run: Run, at: float, *, cause: str) -> Outcome:
    candidates = _candidates(run)
    leaving = [n.leaves_at for n in run.nodes.values() if n.leaves_at is not None]
    generation = run.generation + 1
    transition = Transition(
        generation=generation,
        cause=cause,
        planned=True,
        stage=Stage.plan,
        began_at=at,
        entered_at=at,
        deadline=at + run.limits.plan_s,
        halt_due=min(leaving) - run.limits.leave_margin_s if leaving else None,
    )
    run = replace(
        run, phase=Phase.transition, generation=generation, transition=transition, reconsider=""
    )
    return run, [
        _record("transition_started", generation=generation, cause=cause, planned=True),
        Replan(generation=generation, members=candidates, previous=run.active),
    ]


def _begin_unplanned(run: Run, at: float, *, cause: str, silent_s: float = 0.0) -> Outcome:
    """Stand still first; used for losses, for the very start and after parking."""
    generation = run.generation + 1
    began = run.pause.began_at if run.pause is not None else at - silent_s
    pause = Pause(cause=cause, planned=False, began_at=began, detect_s=silent_s)
    if run.pause is not None:
        pause = replace(run.pause, planned=False, cause=_joined_causes(run.pause.cause, cause))
    commands: list[Command] = []
    if run.transition is not None:
        commands.append(_drop_command(run, run.transition))
    transition = Transition(
        generation=generation,
        cause=pause.cause,
        planned=False,
        stage=Stage.halt,
        began_at=at,
        entered_at=at,
        deadline=at + run.limits.halt_s,
        waiting=_to_halt(run),
    )
    run = replace(
        run,
        phase=Phase.transition,
        generation=generation,
        transition=transition,
        pause=pause,
        reconsider="",
        restarts=run.restarts + 1,
        parked_at=None,
        stopping=None,
    )
    if run.restarts > run.limits.max_restarts:
        why = f"{run.restarts - 1} transitions in a row failed, the last one: {cause}"
        return _end(run, End.failed, why)
    commands.append(
        _record("transition_started", generation=generation, cause=cause, planned=False)
    )
    if transition.waiting:
        commands.append(
            SendHalt(
                generation=run.active_generation,
                nodes=tuple(sorted(transition.waiting)),
                boundary=False,
            )
        )
    run, more = _stage_done(run, at)
    return run, commands + more


def _hurt(run: Run, at: float, node: str, *, cause: str, silent_s: float) -> Outcome:
    """Something that may have had a role is gone."""
    t = run.transition
    if run.phase is Phase.training:
        if run.active is not None and node in run.active.nodes:
            return _begin_unplanned(run, at, cause=cause, silent_s=silent_s)
        return run, []
    if run.stopping is not None and run.active is not None and node in run.active.nodes:
        return _begin_unplanned(run, at, cause=cause, silent_s=silent_s)
    if run.phase is not Phase.transition or t is None:
        return run, []
    if run.training and run.active is not None and node not in run.active.nodes:
        # Only the coming generation is hurt: forget it, plan again, go on training.
        run, commands = _drop(run, why=cause)
        run, more = _want_plan(run, at, cause=cause)
        return run, commands + more
    return _begin_unplanned(run, at, cause=cause, silent_s=silent_s)


def _to_halt(run: Run) -> frozenset[str]:
    """Every connected node that may have state or a half-built role."""
    if run.active is None and run.transition is None:
        return frozenset()
    return frozenset(run.nodes)


def _joined_causes(old: str, new: str) -> str:
    return old if new in old else f"{old}; {new}"


# Stages


def _planned(run: Run, event: Planned) -> Outcome:
    t = run.transition
    if t is None or event.generation != t.generation or t.stage is not Stage.plan:
        return run, []
    if event.layout is None:
        if t.planned:
            return _drop(run, why=event.why or "no better plan")
        run = replace(run, phase=Phase.parked, transition=None, parked_at=event.at)
        commands: list[Command] = [_record("parked", generation=t.generation, why=event.why)]
        if run.stop is not None:
            run, more = _stop(run, event.at, run.stop, boundary=False)
            return run, commands + more
        return run, commands
    if t.planned and run.active is not None and _same(run.active, event.layout):
        return _drop(run, why="the present layout is already the best")
    layout = event.layout
    run = _timed(run, event.at)
    t = replace(t, layout=layout)
    run = _enter(run, t, Stage.prepare, event.at, waiting=frozenset(layout.nodes))
    return run, [SendPrepare(generation=t.generation, layout=layout)]


def _answered(run: Run, event: NodePrepared | NodeHalted | NodeSwitched) -> Outcome:
    t = run.transition
    if t is None or event.node not in t.waiting:
        return run, []
    match event:
        case NodeHalted():
            if t.stage is not Stage.halt:
                return run, []
            if run.pause is None:
                pause = Pause(
                    cause=t.cause,
                    planned=True,
                    began_at=event.at,
                    hidden_s=t.entered_at - t.began_at,
                )
                run = replace(run, pause=pause)
        case NodePrepared():
            if t.stage is not Stage.prepare or event.generation != t.generation:
                return run, []
        case NodeSwitched():
            if t.stage is not Stage.switch or event.generation != t.generation:
                return run, []
            t = replace(t, copy_s=max(t.copy_s, event.copy_s))
    run = replace(run, transition=replace(t, waiting=t.waiting - {event.node} - event.others))
    return _stage_done(run, event.at)


def _stage_done(run: Run, at: float) -> Outcome:
    """Move on if nobody is waited for any more."""
    t = run.transition
    if t is None or t.waiting:
        return run, []
    match t.stage:
        case Stage.halt if not t.planned:
            if _workers_missing(run) and at < t.deadline:
                return run, []  # a node is starting one again; that is faster than doing without
            candidates = _candidates(run)
            run = _timed(run, at)
            run = _enter(run, t, Stage.plan, at)
            return run, [Replan(generation=t.generation, members=candidates, previous=run.active)]
        case Stage.prepare if t.planned and run.active is not None:
            nodes = tuple(sorted(run.active.nodes))
            run = _timed(run, at)
            run = _enter(run, t, Stage.halt, at, waiting=frozenset(nodes))
            return run, [SendHalt(generation=run.active_generation, nodes=nodes, boundary=True)]
        case Stage.prepare | Stage.halt if t.layout is not None:
            run = _timed(run, at)
            run = _enter(run, t, Stage.restore, at)
            return run, [ChooseSources(generation=t.generation, layout=t.layout, live=run.intact)]
        case Stage.switch if t.layout is not None:
            return _go(run, t, t.layout, at)
    return run, []


def _restorable(run: Run, event: Restorable) -> Outcome:
    t = run.transition
    if t is None or event.generation != t.generation or t.stage is not Stage.restore:
        return run, []
    layout = t.layout
    assert layout is not None
    run = _timed(run, event.at)
    if run.pause is not None:
        redone = max(run.pause.steps_redone, event.redone)
        run = replace(run, pause=replace(run.pause, steps_redone=redone, source=event.source))
    t = replace(t, step=event.step)
    run = _enter(run, t, Stage.switch, event.at, waiting=frozenset(layout.nodes))
    run = replace(run, intact=False)
    return run, [SendSwitch(generation=t.generation, layout=layout, step=event.step)]


def _go(run: Run, t: Transition, layout: Layout, at: float) -> Outcome:
    run = _timed(run, at)
    commands: list[Command] = [
        SendGo(generation=t.generation, layout=layout, step=t.step),
        _record(
            "generation_started",
            generation=t.generation,
            step=t.step,
            layout=layout.plan.describe(),
            world_size=layout.world_size,
            nodes=list(layout.nodes),
        ),
    ]
    run = replace(
        run,
        phase=Phase.training,
        active=layout,
        active_generation=t.generation,
        intact=True,
        transition=None,
        resumed_at=at,
        step=t.step,
        finished=frozenset(),
    )
    for name, node in run.nodes.items():
        if node.leaves_at is not None and name not in layout.nodes:
            commands.append(Release(node=name, reason="left after its notice"))
    if run.stop is not None:
        run, more = _stop(run, at, run.stop, boundary=True)
        return run, commands + more
    if run.reconsider:
        run, more = _begin_planned(run, at, cause=run.reconsider)
        return run, commands + more
    return run, commands


def _enter(
    run: Run, t: Transition, stage: Stage, at: float, *, waiting: frozenset[str] = frozenset()
) -> Run:
    limits = run.limits
    seconds = {
        Stage.halt: limits.boundary_s if t.planned else limits.halt_s,
        Stage.plan: limits.plan_s,
        Stage.prepare: limits.prepare_s,
        Stage.restore: limits.restore_s,
        Stage.switch: limits.switch_s,
    }[stage]
    return replace(
        run,
        transition=replace(t, stage=stage, entered_at=at, deadline=at + seconds, waiting=waiting),
    )


def _timed(run: Run, at: float) -> Run:
    """Book the time spent in the stage that ends now to its part of the pause."""
    t, pause = run.transition, run.pause
    if t is None:
        return run
    spent = at - t.entered_at
    if pause is None:
        # Planned, and the old generation still trains: not a pause, but worth knowing.
        return run
    match t.stage:
        case Stage.halt if t.planned:
            pause = replace(pause, decide_s=pause.decide_s + at - pause.began_at)
        case Stage.halt | Stage.plan | Stage.restore:
            pause = replace(pause, decide_s=pause.decide_s + spent)
        case Stage.prepare:
            pause = replace(pause, prepare_s=pause.prepare_s + spent)
        case Stage.switch:
            copy_s = min(t.copy_s, spent)
            pause = replace(
                pause,
                copy_s=pause.copy_s + copy_s,
                switch_s=pause.switch_s + spent - copy_s,
            )
    return replace(run, pause=pause)


def _workers_missing(run: Run) -> bool:
    return any(len(node.member.workers) < node.slots for node in run.nodes.values())


def _same(a: Layout, b: Layout) -> bool:
    return a.workers == b.workers and a.plan == b.plan


def _drop(run: Run, *, why: str) -> Outcome:
    """Give up a planned transition before its halt; the old generation trains on."""
    t = run.transition
    assert t is not None
    assert run.training
    run = replace(run, phase=Phase.training, transition=None)
    return run, [
        _drop_command(run, t),
        _record("transition_dropped", generation=t.generation, why=why),
    ]


def _drop_command(run: Run, t: Transition) -> SendDrop:
    nodes = set(run.nodes) if t.layout is None else set(t.layout.nodes) & set(run.nodes)
    return SendDrop(generation=t.generation, nodes=tuple(sorted(nodes)))


def _node_failed(run: Run, event: NodeFailed) -> Outcome:
    t = run.transition
    if t is None or event.generation != t.generation:
        return run, []
    cause = f"{event.node} failed to {t.stage.value}: {event.reason}"
    if run.training:
        return _drop(run, why=cause)
    return _begin_unplanned(run, event.at, cause=cause)


# Progress and endings


def _step_applied(run: Run, event: StepApplied) -> Outcome:
    if event.generation != run.active_generation or event.step <= run.step:
        return run, []
    run = replace(run, step=event.step, restarts=0)
    pause = run.pause
    if pause is None or not run.training:
        return run, []
    first_step_s = event.at - run.resumed_at
    run = replace(run, pause=None)
    return run, [
        _record(
            "pause",
            generation=run.active_generation,
            cause=pause.cause,
            planned=pause.planned,
            detect_s=pause.detect_s,
            decide_s=pause.decide_s,
            prepare_s=pause.prepare_s,
            copy_s=pause.copy_s,
            switch_s=pause.switch_s,
            first_step_s=first_step_s,
            hidden_s=pause.hidden_s,
            total_s=event.at - pause.began_at,
            steps_redone=pause.steps_redone,
            source=pause.source,
        )
    ]


def _finished(run: Run, event: NodeFinished) -> Outcome:
    active = run.active
    if event.generation != run.active_generation or active is None or run.stopping is not None:
        return run, []
    run = replace(run, finished=run.finished | {event.node})
    if not run.finished >= frozenset(active.nodes):
        return run, []
    commands: list[Command] = []
    if run.phase is Phase.transition and run.training:
        run, commands = _drop(run, why="the run is finished")
    if run.phase is not Phase.training:
        return run, commands
    stop = Stop(end=End.done, why=f"step {run.total_steps} reached")
    run, more = _stop(run, event.at, stop, boundary=True)
    return run, commands + more


def _saved(run: Run, event: NodeSaved) -> Outcome:
    if run.stopping is None:
        return run, []
    run = replace(run, stopping=run.stopping - {event.node})
    if run.stopping or run.stop is None:
        return run, []
    return _end(run, run.stop.end, run.stop.why)


def _saved_nodes(run: Run) -> frozenset[str]:
    if run.stopping is None or run.active is None:
        return frozenset()
    return frozenset(run.active.nodes) - run.stopping


def _stop(run: Run, at: float, stop: Stop, *, boundary: bool) -> Outcome:
    if run.stopping is not None:
        return run, []
    run = replace(run, stop=stop)
    commands: list[Command] = [_record("stop_asked", end=stop.end.value, why=stop.why)]
    if run.transition is not None and run.training:
        run, more = _drop(run, why=stop.why)
        commands += more
    if run.phase is Phase.transition:
        return run, commands  # carried out as soon as the transition is over
    if run.phase is Phase.assembling or not run.nodes or run.active is None:
        run, more = _end(run, stop.end, stop.why)
        return run, commands + more
    holders = frozenset(run.active.nodes) & frozenset(run.nodes)
    if not holders:
        run, more = _end(run, stop.end, stop.why)
        return run, commands + more
    run = replace(
        run,
        phase=Phase.stopping,
        stopping=holders,
        stop_deadline=at + run.limits.boundary_s + run.limits.save_s,
    )
    halt = SendHalt(
        generation=run.active_generation,
        nodes=tuple(sorted(holders)),
        boundary=boundary,
        persist=True,
    )
    return run, [*commands, halt]


def _end(run: Run, end: End, why: str) -> Outcome:
    run = replace(run, phase=Phase.ended, transition=None, stop=Stop(end=end, why=why))
    return run, [Finish(end=end, why=why)]


# Deadlines


def _tick(run: Run, at: float) -> Outcome:
    if run.phase is Phase.assembling and at - run.started_at > run.limits.assemble_s:
        if not run.nodes:
            why = f"no node appeared within {run.limits.assemble_s:.0f} s"
            return _end(run, End.interrupted, why)
        return _begin_unplanned(run, at, cause="start")
    if run.parked_at is not None and at - run.parked_at > run.limits.park_s:
        why = f"no feasible set of nodes for {run.limits.park_s:.0f} s"
        return _stop(
            replace(run, parked_at=None), at, Stop(end=End.interrupted, why=why), boundary=False
        )
    if run.stopping is not None and at > run.stop_deadline and run.stop is not None:
        why = f"{run.stop.why}; not saved in time by {', '.join(sorted(run.stopping))}"
        return _end(run, End.failed, why)
    t = run.transition
    if t is None:
        return run, []
    if run.training and t.halt_due is not None and at >= t.halt_due:
        return _begin_unplanned(run, at, cause=f"{t.cause}; no time to prepare")
    if at <= t.deadline:
        return run, []
    return _overdue(run, t, at)


def _overdue(run: Run, t: Transition, at: float) -> Outcome:
    laggards = sorted(t.waiting & frozenset(run.nodes))
    what = f"{t.stage.value} took over {at - t.entered_at:.0f} s"
    match t.stage:
        case Stage.plan if t.planned:
            return _drop(run, why=what)
        case Stage.prepare if t.planned:
            return _drop(run, why=f"{what}, waiting for {', '.join(laggards)}")
        case Stage.halt if not t.planned and not laggards:
            return _stage_done(run, at)  # a worker that does not come back: do without
        case Stage.halt if t.planned:
            return _begin_unplanned(run, at, cause=f"{t.cause}; {what}")
    # A minority that does not answer is taken for lost; if most do not, the fault is elsewhere.
    if laggards and 2 * len(laggards) <= len(run.nodes):
        commands: list[Command] = [Fence(node=node, reason=what) for node in laggards]
        nodes = {name: node for name, node in run.nodes.items() if name not in laggards}
        run, more = _begin_unplanned(
            replace(run, nodes=nodes), at, cause=f"{what}, without {', '.join(laggards)}"
        )
        return run, commands + more
    return _begin_unplanned(run, at, cause=what)


def _record(kind: str, **fields: object) -> Record:
    return Record(kind=kind, fields=fields)
