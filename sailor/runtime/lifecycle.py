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

from collections.abc import Sequence
from dataclasses import replace

from sailor.parallel.layout import WorkerId
from sailor.runtime import reserve, wishes
from sailor.runtime.adoption import adopted, rejoined, waited
from sailor.runtime.change import (
    Outcome,
    Stage,
    answered,
    begin_unplanned,
    drop,
    end_run,
    fail,
    layouts,
    overdue,
    planned,
    record,
    restorable,
    stage_done,
    uses,
    want_plan,
)
from sailor.runtime.commands import Command, Fence, Release, SendHalt
from sailor.runtime.ending import (
    finished,
    nothing_to_save,
    save_held,
    saved,
    saved_nodes,
    stop,
)
from sailor.runtime.happenings import (
    Event,
    Joined,
    Lost,
    MoveAsked,
    NodeFailed,
    NodeFinished,
    NodeHalted,
    NodePrepared,
    NodeSaved,
    NodeSwitched,
    NothingToSave,
    Noticed,
    Planned,
    Rejoined,
    ReplanAsked,
    Restorable,
    Returned,
    StepApplied,
    StepRefused,
    StopAsked,
    Tick,
    WorkerDied,
    WorkerStarted,
)
from sailor.runtime.setback import outlived, refused
from sailor.runtime.state import End, Node, Phase, Run, Stop, Stumble


def advance(run: Run, event: Event) -> Outcome:
    """What the run becomes after an event, and what the controller must now do about it.

    Total: every event is accepted in every state. An answer that belongs to another generation, or
    to a stage that is over, changes nothing.
    """
    run, commands = _after(run, event)
    run, more = _settled(run, event.at)
    return run, commands + more


def _after(run: Run, event: Event) -> Outcome:
    if run.phase is Phase.ended:
        return run, []
    match event:
        case Joined():
            return _joined(run, event)
        case Rejoined():
            return rejoined(run, event)
        case Lost():
            return _lost(run, event)
        case Returned():
            return _returned(run, event)
        case WorkerDied():
            return _worker_died(run, event)
        case WorkerStarted():
            return _worker_started(run, event)
        case Noticed():
            return _noticed(run, event)
        case MoveAsked():
            return _move_asked(run, event)
        case Planned():
            return planned(run, event)
        case NodeHalted() if _stands_unasked(run, event):
            return begin_unplanned(run, event.at, cause=f"{event.node} was told to stand still")
        case NodePrepared() | NodeHalted() | NodeSwitched():
            return answered(run, event)
        case Restorable():
            return restorable(run, event)
        case NodeFailed():
            return _node_failed(run, event)
        case StepApplied():
            return _step_applied(run, event)
        case NodeFinished():
            return finished(run, event)
        case NodeSaved():
            return saved(run, event)
        case NothingToSave():
            return nothing_to_save(run, event)
        case StepRefused():
            return refused(run, event)
        case StopAsked():
            return stop(run, event.at, Stop(end=event.end, why=event.why), boundary=True)
        case ReplanAsked():
            return want_plan(run, event.at, cause=f"asked to plan again: {event.why}")
        case Tick():
            return _tick(run, event.at)
    return run, []


def _settled(run: Run, at: float) -> Outcome:
    """Carry out wishes that had to wait for the present state: to stop, then to plan again."""
    if run.stop is not None and run.stopping is None:
        if run.phase is Phase.training:
            return stop(run, at, run.stop, boundary=True)
        if run.phase is Phase.parked:
            return stop(run, at, run.stop, boundary=False)
    waits = run.phase in (Phase.training, Phase.parked) and run.stop is None
    if waits and wishes.due(run, at):
        return want_plan(wishes.fulfilled(run), at, cause=run.reconsider)
    return run, []


def _stands_unasked(run: Run, event: NodeHalted) -> bool:
    """Whether it stands still for a controller that has ended: what it wanted nobody knows."""
    return run.phase is Phase.training and event.generation == run.active_generation


def _joined(run: Run, event: Joined) -> Outcome:
    node = event.member.node
    run = replace(run, nodes={**run.nodes, node: Node(member=event.member, slots=event.slots)})
    if run.phase is Phase.assembling:
        return _assembled(run, event.at)
    if run.phase is Phase.adopting:
        return adopted(run, event.at)
    if run.phase is Phase.training and node in reserve.standbys(run):
        return reserve.appointed(run, node)
    return want_plan(run, event.at, cause=f"{node} joined")


def _assembled(run: Run, at: float, *, lost: str = "") -> Outcome:
    """Begin once every node of the start is there or will never be."""
    if len(run.nodes) + len(run.absent) < run.limits.initial_nodes:
        return run, []
    if not run.nodes:
        return end_run(run, End.failed, f"no node could be started; {lost}")
    return begin_unplanned(run, at, cause="start")


def _lost(run: Run, event: Lost) -> Outcome:
    nodes = {name: node for name, node in run.nodes.items() if name != event.node}
    if run.phase is Phase.assembling:
        run = replace(run, nodes=nodes, absent=run.absent | {event.node})
        return _assembled(run, event.at, lost=f"{event.node}: {event.cause}")
    if run.phase is Phase.adopting:
        run = replace(run, nodes=nodes, awaited=run.awaited - {event.node})
        return adopted(run, event.at)
    if event.node not in run.nodes:
        return run, []
    run = replace(run, nodes=nodes)
    if event.node in saved_nodes(run):
        return run, []  # its part is durable already
    cause = f"{event.node} lost: {event.cause}"
    return _hurt(run, event.at, event.node, cause=cause, silent_s=event.silent_s)


def _save_overdue(run: Run, at: float, *, late: Sequence[str], why: str) -> Outcome:
    """A node that does not save while others do is as good as lost: what it had is saved from live
    replicas or copies. Where nobody has saved, it is the store that does not answer."""
    if run.stopped_parked or not saved_nodes(run):
        return end_run(run, End.failed, f"{why}; not saved in time by {', '.join(late)}")
    commands: list[Command] = []
    for node in late:
        cause = "it did not save in time"
        run, more = _lost(run, Lost(at=at, node=node, cause=cause))
        commands += [Fence(node=node, reason=cause), *more]
    return run, commands


def _returned(run: Run, event: Returned) -> Outcome:
    """Whatever it was told, or answered, may be lost: nobody waits for it to be late."""
    t, cause = run.transition, f"the connection of {event.node} broke"
    if t is not None and event.node in t.waiting:
        if not run.training:
            return begin_unplanned(run, event.at, cause=cause)
        run, commands = drop(run, why=cause)
        run, more = want_plan(run, event.at, cause=t.cause)
        return run, commands + more
    if run.stopping is not None and run.stopped_parked:
        return run, [save_held(run)]  # being told twice does no harm
    if run.stopping is not None and event.node in run.stopping:
        again = SendHalt(
            generation=run.active_generation, nodes=(event.node,), boundary=True, persist=True
        )
        return run, [again]  # being told twice does no harm
    seated = run.active is not None and event.node in run.active.nodes
    if run.training and seated and event.missed_go and run.stumble is None:
        return replace(run, stumble=Stumble(at=event.at, cause=f"{cause} as it was to go")), []
    return run, []


def _worker_died(run: Run, event: WorkerDied) -> Outcome:
    node = run.nodes.get(event.worker.node)
    if node is None or event.worker not in node.member.workers:
        return run, []
    left = tuple(w for w in node.member.workers if w != event.worker)
    run = _with_workers(run, node, left)
    if not any(event.worker in layout.workers for layout in layouts(run)):
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
        return stage_done(run, event.at)
    if run.phase is Phase.training and node.member.node in reserve.standbys(run):
        return reserve.warm(run)
    return want_plan(run, event.at, cause=f"worker {event.worker} started")


def _noticed(run: Run, event: Noticed) -> Outcome:
    node = run.nodes.get(event.node)
    if node is None or node.leaves_at is not None:
        return run, []
    leaving = replace(node, leaves_at=event.at + event.seconds)
    run = replace(run, nodes={**run.nodes, event.node: leaving})
    if not uses(run, event.node):
        return run, [Release(node=event.node, reason="has a notice and no role")]
    return want_plan(run, event.at, cause=f"{event.node} leaves in {event.seconds:.0f} s")


def _move_asked(run: Run, event: MoveAsked) -> Outcome:
    """Swap a machine that could stay. Where nobody can take over, it stays."""
    node = run.nodes.get(event.node)
    why = f"{event.node} is to be moved: {event.why}"
    if node is None or run.active is None or event.node not in run.active.nodes:
        return run, [record("move_refused", node=event.node, why="it has no seat")]
    if node.moving or node.leaves_at is not None:
        return run, [record("move_refused", node=event.node, why="it is on its way out already")]
    if event.to and run.phase is not Phase.training:
        return run, [record("move_refused", node=event.node, why="another change is under way")]
    unfit = node.unfit or event.keep_out
    moving = replace(node, moving=event.why, moving_to=event.to, unfit=unfit)
    wished = replace(run, nodes={**run.nodes, event.node: moving})
    kept = reserve.kept_layout(wished)
    if run.phase not in (Phase.training, Phase.transition) or kept is None or kept is run.active:
        nobody = f"{event.to} cannot" if event.to else "no machine can"
        return run, [record("move_refused", node=event.node, why=f"{nobody} take its seats")]
    return want_plan(wished, event.at, cause=why)


def _with_workers(run: Run, node: Node, workers: tuple[WorkerId, ...]) -> Run:
    member = replace(node.member, workers=workers)
    return replace(run, nodes={**run.nodes, member.node: replace(node, member=member)})


def _hurt(run: Run, at: float, node: str, *, cause: str, silent_s: float) -> Outcome:
    """Something that may have had a role is gone."""
    t = run.transition
    if run.phase is Phase.training:
        if run.active is not None and node in run.active.nodes:
            return begin_unplanned(run, at, cause=cause, silent_s=silent_s)
        return run, []
    if run.stopping is not None and (run.stopped_parked or _seated(run, node)):
        return begin_unplanned(run, at, cause=cause, silent_s=silent_s)
    if run.phase is not Phase.transition or t is None:
        return run, []
    if not run.training and reserve.without_need(run, node):
        run = replace(run, transition=replace(t, waiting=t.waiting - {node}))
        return stage_done(run, at)
    if run.training and run.active is not None and node not in run.active.nodes:
        if reserve.without_need(run, node):
            return run, []
        # Only the coming generation is hurt: forget it, plan again, go on training.
        run, commands = drop(run, why=cause)
        run, more = want_plan(run, at, cause=cause)
        return run, commands + more
    return begin_unplanned(run, at, cause=cause, silent_s=silent_s)


def _seated(run: Run, node: str) -> bool:
    return run.active is not None and node in run.active.nodes


def _node_failed(run: Run, event: NodeFailed) -> Outcome:
    t = run.transition
    stepping = run.training or run.stopping is not None or run.phase is Phase.adopting
    if stepping and run.active_generation == event.generation and run.stumble is None:
        # Whatever broke the step, a lost peer most of all, will be told of more precisely.
        stumble = Stumble(at=event.at, cause=f"{event.node}: {event.reason}")
        return replace(run, stumble=stumble), []
    if t is None or event.generation != t.generation:
        return run, []
    cause = f"{event.node} failed to {t.stage.value}: {event.reason}"
    if run.training:
        run, commands = fail(run, event.at, why=cause)
        if run.active is not None and event.node not in run.active.nodes:
            # Whoever was to take over cannot: try the next one, with the same wishes and notices.
            run, more = _try_again(reserve.unfit(run, event.node), event.at, cause=cause)
            commands = commands + more
        return run, commands
    if run.active is not None and event.node not in run.active.nodes:
        run = reserve.unfit(run, event.node)
    return begin_unplanned(run, event.at, cause=cause)


def _try_again(run: Run, at: float, *, cause: str) -> Outcome:
    run = reserve.yielding(run)
    if reserve.somebody_must_go(run):
        return want_plan(run, at, cause=cause)
    return run, []


def _step_applied(run: Run, event: StepApplied) -> Outcome:
    if event.generation != run.active_generation or event.step <= run.step:
        return run, []
    run = outlived(replace(run, step=event.step, restarts=0), step=event.step)
    pause = run.pause
    # While the next change halts at the boundary, the last one's first step may still come in.
    if pause is None or not (run.training or pause.booked_at <= run.resumed_at):
        return run, []
    run = replace(run, pause=None)
    return run, [
        record(
            "pause",
            generation=run.active_generation,
            cause=pause.cause,
            planned=pause.planned,
            detect_s=pause.detect_s,
            decide_s=pause.decide_s,
            prepare_s=pause.prepare_s,
            copy_s=pause.copy_s,
            switch_s=pause.switch_s,
            first_step_s=event.at - pause.booked_at,
            parked_s=pause.parked_s,
            hidden_s=pause.hidden_s,
            total_s=event.at - pause.began_at,
            steps_redone=pause.steps_redone,
            source=pause.source,
        )
    ]


def _tick(run: Run, at: float) -> Outcome:
    if run.phase is Phase.adopting:
        return waited(run, at)
    if run.phase is Phase.assembling and at - run.started_at > run.limits.assemble_s:
        if not run.nodes:
            why = f"no node appeared within {run.limits.assemble_s:.0f} s"
            return end_run(run, End.interrupted, why)
        return begin_unplanned(run, at, cause="start")
    if run.parked_at is not None and at - run.parked_at > run.limits.park_s:
        why = f"no feasible set of nodes for {run.limits.park_s:.0f} s"
        return stop(
            replace(run, parked_at=None), at, Stop(end=End.interrupted, why=why), boundary=False
        )
    if run.stopping is not None and at > run.stop_deadline and run.stop is not None:
        return _save_overdue(run, at, late=sorted(run.stopping), why=run.stop.why)
    overstayed = [
        name
        for name, node in sorted(run.nodes.items())
        if node.leaves_at is not None and at > node.leaves_at + run.limits.overstay_s
    ]
    if overstayed and run.phase in (Phase.training, Phase.parked):
        stays = {name: replace(run.nodes[name], leaves_at=None) for name in overstayed}
        run = replace(run, nodes={**run.nodes, **stays})
        return want_plan(run, at, cause=f"{', '.join(overstayed)} did not leave after all")
    stumble = run.stumble
    if stumble is not None and at - stumble.at > run.limits.stumble_s:
        return begin_unplanned(run, at, cause=stumble.cause, silent_s=at - stumble.at)
    t = run.transition
    if t is None:
        return run, []
    if run.training and t.halt_due is not None and at >= t.halt_due:
        return begin_unplanned(run, at, cause=f"{t.cause}; no time to prepare")
    if at <= t.deadline:
        return run, []
    if run.training and t.stage is Stage.prepare and run.active is not None:
        run, commands = overdue(run, t, at)
        late = t.waiting - frozenset(run.active.nodes if run.active is not None else ())
        for node in sorted(late):
            run = reserve.unfit(run, node)
        if late:
            run, more = _try_again(run, at, cause=f"{', '.join(sorted(late))} did not prepare")
            commands = commands + more
        return run, commands
    return overdue(run, t, at)
