"""A new controller of a run that trains: who is still there, and whether it goes on as it is. Pure.

Part of the life cycle. The run begins in the phase ``adopting``, knowing from the journal what was
last told to go and who was a member. Until all of those have dialled in, or time is up, nothing is
decided; training does not wait for it.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.parallel.layout import Layout
from sailor.runtime import reserve
from sailor.runtime.change import Outcome, begin_unplanned, record
from sailor.runtime.commands import Command, Fence, Provision, SendDrop
from sailor.runtime.ending import all_finished
from sailor.runtime.happenings import Rejoined
from sailor.runtime.state import Limits, Node, Phase, Run


def to_adopt(
    *,
    limits: Limits,
    total_steps: int,
    at: float,
    generation: int,
    active: Layout,
    active_generation: int,
    awaited: frozenset[str],
) -> Run:
    """The run as a new controller finds it. ``awaited``: nodes that are believed to live."""
    return Run(
        limits=limits,
        total_steps=total_steps,
        started_at=at,
        phase=Phase.adopting,
        generation=generation,
        active=active,
        active_generation=active_generation,
        intact=True,  # each worker says itself what it holds, and of which generation
        awaited=awaited,
    )


def rejoined(run: Run, event: Rejoined) -> Outcome:
    """A member of the earlier controller has dialled in."""
    member = event.member
    run = replace(
        run,
        nodes={**run.nodes, member.node: Node(member=member, slots=event.slots)},
        generation=max(run.generation, event.heard),
        going_on=run.going_on | event.going_on,
        step=max(run.step, event.step),
    )
    return adopted(run, event.at)


def adopted(run: Run, at: float) -> Outcome:
    """Once nobody is awaited: go on where everybody goes on, else begin a recovery."""
    active = run.active
    if run.phase is not Phase.adopting or active is None or run.awaited - run.nodes.keys():
        return run, []
    if not run.nodes:
        return _begin_anew(run, at)
    workers = {worker for node in run.nodes.values() for worker in node.member.workers}
    trains = set(active.workers) <= run.going_on & workers
    commands: list[Command] = [
        record(
            "adopted",
            generation=run.active_generation,
            step=run.step,
            nodes=sorted(run.nodes),
            trains=trains,
        )
    ]
    if run.generation > run.active_generation:  # one that was under way: it will not come
        nodes = tuple(sorted(run.nodes))
        commands.append(SendDrop(generation=run.generation, nodes=nodes))
    if not trains:
        cause = "a new controller found the run broken"
        run, more = begin_unplanned(run, at, cause=cause, silent_s=at - run.started_at)
        return run, commands + more
    apart = reserve.standbys(run)
    spare = [name for name in run.nodes if name not in active.nodes and name not in apart]
    leaving = [name for name, node in run.nodes.items() if node.leaves_at is not None]
    unplanned_for = sorted({*spare, *leaving})
    run = replace(
        run,
        phase=Phase.training,
        resumed_at=at,
        awaited=frozenset(),
        going_on=frozenset(),
        reconsider=f"a new controller found {', '.join(unplanned_for)}" if unplanned_for else "",
    )
    run, more = reserve.warm(run)
    run, rest = all_finished(run, at)
    return run, commands + more + rest


def waited(run: Run, at: float) -> Outcome:
    """Time passes. Who has not come by the deadline is given up, for good."""
    if at - run.started_at <= run.limits.adopt_s:
        return run, []
    missing = sorted(run.awaited - run.nodes.keys())
    reason = f"did not come back to a new controller within {run.limits.adopt_s:.0f} s"
    commands: list[Command] = [Fence(node=node, reason=reason) for node in missing]
    run, more = adopted(replace(run, awaited=run.awaited - set(missing)), at)
    return run, commands + more


def _begin_anew(run: Run, at: float) -> Outcome:
    """Nobody is left: from the durable checkpoint, with new machines."""
    run = replace(
        run,
        phase=Phase.assembling,
        started_at=at,
        active=None,
        active_generation=0,
        intact=False,
        awaited=frozenset(),
        going_on=frozenset(),
    )
    return run, [Provision()]
