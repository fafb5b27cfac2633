"""How a run ends: the wish to stop, the last save, and when all of it is durable. Pure.

Part of the life cycle; ``lifecycle.advance`` says when.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.runtime.change import Outcome, drop, end_run, record
from sailor.runtime.state import (
    Command,
    End,
    NodeFinished,
    NodeSaved,
    Phase,
    Run,
    SendHalt,
    Stop,
)


def finished(run: Run, event: NodeFinished) -> Outcome:
    """A node has applied the last step."""
    active = run.active
    if event.generation != run.active_generation or active is None or run.stopping is not None:
        return run, []
    run = replace(run, finished=run.finished | {event.node})
    return all_finished(run, event.at)


def all_finished(run: Run, at: float) -> Outcome:
    """If every node has applied the last step, the run is saved and ends done."""
    if run.active is None or not run.finished >= frozenset(run.active.nodes):
        return run, []
    commands: list[Command] = []
    if run.phase is Phase.transition and run.training:
        run, commands = drop(run, why="the run is finished")
    if run.phase is not Phase.training:
        return run, commands
    done = Stop(end=End.done, why=f"step {run.total_steps} reached")
    run, more = stop(run, at, done, boundary=True)
    return run, commands + more


def saved(run: Run, event: NodeSaved) -> Outcome:
    """A node's part of the last save is durable; with the last of them the run ends."""
    if run.stopping is None:
        return run, []
    run = replace(run, stopping=run.stopping - {event.node})
    if run.stopping or run.stop is None:
        return run, []
    return end_run(run, run.stop.end, run.stop.why)


def saved_nodes(run: Run) -> frozenset[str]:
    """Nodes whose part of the last save is durable already: losing them loses nothing."""
    if run.stopping is None or run.active is None:
        return frozenset()
    return frozenset(run.active.nodes) - run.stopping


def stop(run: Run, at: float, wish: Stop, *, boundary: bool) -> Outcome:
    """Halt whoever trains, have it saved, and then end; at once where nothing can be saved."""
    if run.stopping is not None:
        return run, []
    commands: list[Command] = []
    if run.stop != wish:
        commands.append(record("stop_asked", end=wish.end.value, why=wish.why))
    run = replace(run, stop=wish)
    if run.transition is not None and run.training:
        run, more = drop(run, why=wish.why)
        commands += more
    if run.phase in (Phase.transition, Phase.adopting):
        return run, commands  # carried out as soon as the transition is over
    if run.phase is Phase.assembling or not run.nodes or run.active is None:
        run, more = end_run(run, wish.end, wish.why)
        return run, commands + more
    holders = frozenset(run.active.nodes) & frozenset(run.nodes)
    if not holders:
        run, more = end_run(run, wish.end, wish.why)
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
