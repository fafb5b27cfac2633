"""One change of layout, from its cause to Go: the stages of a Transition. Pure.

Part of the life cycle; ``lifecycle.advance`` says when a change begins, this file how it goes on.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.parallel.layout import Layout
from sailor.runtime import reserve, wishes
from sailor.runtime.commands import (
    ChooseSources,
    Command,
    Fence,
    Finish,
    Record,
    Release,
    Replan,
    SendDrop,
    SendGo,
    SendHalt,
    SendPrepare,
    SendSwitch,
)
from sailor.runtime.happenings import NodeHalted, NodePrepared, NodeSwitched, Planned, Restorable
from sailor.runtime.patience import extra_s
from sailor.runtime.state import End, Pause, Phase, Run, Stop, Transition, TransitionStage

Stage = TransitionStage
Outcome = tuple[Run, list[Command]]


def layouts(run: Run) -> list[Layout]:
    """The active layout and the coming one, as far as there are any."""
    both = (run.active, run.transition.layout if run.transition else None)
    return [layout for layout in both if layout is not None]


def uses(run: Run, node: str) -> bool:
    """Whether the active or the coming layout has a role for the node."""
    return any(node in layout.nodes for layout in layouts(run))


def want_plan(run: Run, at: float, *, cause: str) -> Outcome:
    """Membership changed without harm: plan again when the present state allows it."""
    match run.phase:
        case Phase.training if run.stop is None:
            return begin_planned(run, at, cause=cause)
        case Phase.transition if (t := run.transition) is not None:
            if t.planned and run.training:
                cause = f"{t.cause}; {cause}"
                run, commands = drop(run, why="membership changed")
                run, more = begin_planned(run, at, cause=cause)
                return run, commands + more
            if t.stage is Stage.halt and not t.planned and reserve.kept_layout(run) is None:
                return run, []  # the plan that is asked for next will count it in
            return wishes.wished(run, at, cause=cause), []
        case Phase.parked:
            return begin_unplanned(run, at, cause=run.pause.cause if run.pause else cause)
    return run, []


def begin_planned(run: Run, at: float, *, cause: str) -> Outcome:
    """Change the layout while the active generation trains on.

    When somebody must go and another machine can take over, the layout is known; else a plan is
    asked for.
    """
    run = reserve.yielding(run)
    must = reserve.somebody_must_go(run)
    kept = reserve.kept_layout(run) if must else None
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
    run = wishes.fulfilled(run)
    run = replace(run, phase=Phase.transition, generation=generation, transition=transition)
    started = record("transition_started", generation=generation, cause=cause, planned=True)
    if kept is not None:
        run, commands = _prepare(run, transition, kept, at)
        return run, [started, *reserve.promoted(run, kept), *commands]
    # A wish to move that nobody can grant is no reason to plan without the machine.
    moves = {
        name: replace(node, moving="", moving_to="")
        for name, node in run.nodes.items()
        if node.moving
    }
    run = replace(run, nodes={**run.nodes, **moves})
    members = reserve.everybody(run) if must and not moves else reserve.crew(run)
    return run, [started, Replan(generation=generation, members=members, previous=run.active)]


def begin_unplanned(run: Run, at: float, *, cause: str, silent_s: float = 0.0) -> Outcome:
    """Stand still first; used for losses, for the very start and after parking."""
    generation = run.generation + 1
    run = _timed(run, at)
    pause = Pause(
        cause=cause, planned=False, began_at=at - silent_s, booked_at=at, detect_s=silent_s
    )
    if run.pause is not None:
        pause = replace(run.pause, planned=False, cause=_joined_causes(run.pause.cause, cause))
    commands: list[Command] = []
    if run.transition is not None:
        commands.append(_drop_command(run, run.transition))
        if run.transition.planned:
            run = wishes.wished_again(run, at, cause=run.transition.cause)
    transition = Transition(
        generation=generation,
        cause=pause.cause,
        planned=False,
        stage=Stage.halt,
        began_at=at,
        entered_at=at,
        deadline=at + run.limits.halt_s + extra_s(run.active),
        waiting=_to_halt(run),
    )
    run = replace(
        run,
        phase=Phase.transition,
        generation=generation,
        transition=transition,
        pause=pause,
        stumble=None,
        restarts=run.restarts + 1,
        parked_at=None,
        stopping=None,
    )
    if run.restarts > run.limits.max_restarts:
        why = f"{run.restarts - 1} transitions in a row failed, the last one: {cause}"
        return end_run(run, End.failed, why)
    commands.append(record("transition_started", generation=generation, cause=cause, planned=False))
    if transition.waiting:
        commands.append(
            SendHalt(
                generation=run.active_generation,
                nodes=tuple(sorted(transition.waiting)),
                boundary=False,
            )
        )
    run, more = stage_done(run, at)
    return run, commands + more


def _to_halt(run: Run) -> frozenset[str]:
    """Every connected node that may have state or a half-built role."""
    if run.active is None and run.transition is None:
        return frozenset()
    return frozenset(run.nodes)


def _joined_causes(old: str, new: str) -> str:
    return old if new in old else f"{old}; {new}"


def planned(run: Run, event: Planned) -> Outcome:
    """A plan came, or word that there is none: prepare it, drop the change, or park."""
    t = run.transition
    if t is None or event.generation != t.generation or t.stage is not Stage.plan:
        return run, []
    if event.layout is None:
        if t.planned:
            return drop(run, why=event.why or "no better plan")
        run = _timed(run, event.at)
        run = replace(run, phase=Phase.parked, transition=None, parked_at=event.at)
        commands: list[Command] = [record("parked", generation=t.generation, why=event.why)]
        return run, commands
    if t.planned and run.active is not None and _same(run.active, event.layout):
        return drop(run, why="the present layout is already the best")
    return _prepare(run, t, event.layout, event.at)


def _prepare(run: Run, t: Transition, layout: Layout, at: float) -> Outcome:
    run = _timed(run, at)
    t = replace(t, layout=layout)
    run = _enter(run, t, Stage.prepare, at, waiting=frozenset(layout.nodes))
    return run, [SendPrepare(generation=t.generation, layout=layout)]


def answered(run: Run, event: NodePrepared | NodeHalted | NodeSwitched) -> Outcome:
    """A node has done its part of the present stage."""
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
                    booked_at=event.at,
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
    return stage_done(run, event.at)


def stage_done(run: Run, at: float) -> Outcome:
    """Move on if nobody is waited for any more."""
    t = run.transition
    if t is None or t.waiting:
        return run, []
    match t.stage:
        case Stage.halt if not t.planned:
            if _workers_missing(run) and at < t.deadline:
                return run, []  # a node is starting one again; that is faster than doing without
            if (kept := reserve.kept_layout(run)) is not None:
                run, commands = _prepare(run, t, kept, at)
                return run, [*reserve.promoted(run, kept), *commands]
            first = run.active is None and not run.step
            members = reserve.crew(run) if first else reserve.everybody(run)
            run = wishes.fulfilled(_timed(run, at))
            run = _enter(run, t, Stage.plan, at)
            return run, [Replan(generation=t.generation, members=members, previous=run.active)]
        case Stage.prepare if t.planned and run.active is not None:
            nodes = tuple(sorted(run.active.nodes))
            run = _timed(run, at)
            run = _enter(run, t, Stage.halt, at, waiting=frozenset(nodes))
            return run, [SendHalt(generation=run.active_generation, nodes=nodes, boundary=True)]
        case Stage.prepare | Stage.halt if t.layout is not None:
            run = _timed(run, at)
            run = _enter(run, t, Stage.restore, at)
            choose = ChooseSources(
                generation=t.generation, layout=t.layout, live=run.intact, below=run.below
            )
            return run, [choose]
        case Stage.switch if t.layout is not None:
            return _go(run, t, t.layout, at)
    return run, []


def restorable(run: Run, event: Restorable) -> Outcome:
    """The step and the sources are chosen: have the boxes moved."""
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
        record(
            "generation_started",
            generation=t.generation,
            step=t.step,
            layout=layout.plan.describe(),
            world_size=layout.world_size,
            nodes=list(layout.nodes),
        ),
    ]
    kept = not t.planned and run.active is not None and run.active.plan == layout.plan
    run = replace(
        run,
        phase=Phase.training,
        active=layout,
        active_generation=t.generation,
        intact=True,
        transition=None,
        resumed_at=at,
        stumble=None,
        step=t.step,
        finished=frozenset(),
        below=None,
        setbacks=run.setbacks if run.active is not None and _same(run.active, layout) else 0,
    )
    run = reserve.settled(run)
    for name, node in run.nodes.items():
        if node.leaves_at is not None and name not in layout.nodes:
            commands.append(Release(node=name, reason="left after its notice"))
    if kept and (left_out := reserve.left_out(run)):
        # The quickest way back asked no planner whether somebody else could have a part as well.
        run = wishes.wished(run, at, cause=f"{', '.join(left_out)} could train as well")
    run, more = reserve.warm(run)
    return run, [*commands, *more]


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
    if stage in (Stage.halt, Stage.prepare, Stage.switch):
        seconds += extra_s(run.active, t.layout)
    return replace(
        run,
        transition=replace(t, stage=stage, entered_at=at, deadline=at + seconds, waiting=waiting),
    )


def _timed(run: Run, at: float) -> Run:
    """Book the time up to now to the part of the pause that the present stage belongs to."""
    t, pause = run.transition, run.pause
    if pause is None or (t is not None and run.training):
        # Planned, and the old generation trains: no pause, or one whose first step is to come.
        return run
    spent = at - pause.booked_at
    pause = replace(pause, booked_at=at)
    if t is None and run.phase is Phase.parked:
        pause = replace(pause, parked_s=pause.parked_s + spent)
    elif t is None:  # told to go, and the first step never came
        pause = replace(pause, switch_s=pause.switch_s + spent)
    else:
        match t.stage:
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


def fail(run: Run, at: float, *, why: str) -> Outcome:
    """Give up a planned transition before its halt because it did not work: try again later."""
    t = run.transition
    assert t is not None
    run, commands = drop(run, why=why)
    return wishes.wished_again(run, at, cause=t.cause), commands


def drop(run: Run, *, why: str) -> Outcome:
    """Give up a planned transition before its halt; the old generation trains on."""
    t = run.transition
    assert t is not None
    assert run.training
    run = replace(run, phase=Phase.training, transition=None)
    return run, [
        _drop_command(run, t),
        record("transition_dropped", generation=t.generation, why=why),
    ]


def _drop_command(run: Run, t: Transition) -> SendDrop:
    nodes = set(run.nodes) if t.layout is None else set(t.layout.nodes) & set(run.nodes)
    return SendDrop(generation=t.generation, nodes=tuple(sorted(nodes)))


def overdue(run: Run, t: Transition, at: float) -> Outcome:
    """The present stage has passed its deadline: go on without laggards, or start over."""
    laggards = sorted(t.waiting & frozenset(run.nodes))
    what = f"{t.stage.value} took over {at - t.entered_at:.0f} s"
    match t.stage:
        case Stage.plan if t.planned:
            return fail(run, at, why=what)
        case Stage.prepare if t.planned:
            return fail(run, at, why=f"{what}, waiting for {', '.join(laggards)}")
        case Stage.halt if not t.planned and not laggards:
            return stage_done(run, at)  # a worker that does not come back: do without
        case Stage.halt if t.planned:
            return begin_unplanned(run, at, cause=f"{t.cause}; {what}")
    # A minority that does not answer is taken for lost; if most do not, the fault is elsewhere.
    if laggards and 2 * len(laggards) <= len(run.nodes):
        commands: list[Command] = [Fence(node=node, reason=what) for node in laggards]
        nodes = {name: node for name, node in run.nodes.items() if name not in laggards}
        run, more = begin_unplanned(
            replace(run, nodes=nodes), at, cause=f"{what}, without {', '.join(laggards)}"
        )
        return run, commands + more
    return begin_unplanned(run, at, cause=what)


def end_run(run: Run, end: End, why: str) -> Outcome:
    """The run is over."""
    run = replace(run, phase=Phase.ended, transition=None, stop=Stop(end=end, why=why))
    return run, [Finish(end=end, why=why)]


def record(kind: str, **fields: object) -> Record:
    """A line for the run's log."""
    return Record(kind=kind, fields=fields)
