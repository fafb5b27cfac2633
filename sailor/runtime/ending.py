"""How a run ends: the wish to stop, the last save, and when all of it is durable. Pure.

Part of the life cycle; ``lifecycle.advance`` says when.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.runtime.change import Outcome, drop, end_run, record
from sailor.runtime.commands import Command, SaveHeld, SendHalt
from sailor.runtime.happenings import NodeFinished, NodeSaved, NothingToSave
from sailor.runtime.patience import extra_s
from sailor.runtime.state import End, Phase, Run, Stop


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
    if run.stopping is None or event.generation != run.active_generation:
        return run, []
    run = replace(run, stopping=run.stopping - {event.node})
    if run.stopping or run.stop is None:
        return run, []
    return end_run(run, run.stop.end, run.stop.why)


def save_held(run: Run) -> SaveHeld:
    """The words of a last save while too few are there to train: who is lost stays unsaved only if
    nobody has copies of what it had."""
    nodes = tuple(sorted(run.stopping or ()))
    return SaveHeld(generation=run.active_generation, nodes=nodes, below=run.below)


def nothing_to_save(run: Run, event: NothingToSave) -> Outcome:
    """What is durable already is all there is."""
    if run.stopping is None or run.stop is None or event.generation != run.active_generation:
        return run, []
    return end_run(run, run.stop.end, f"{run.stop.why}; {event.why}")


def saved_nodes(run: Run) -> frozenset[str]:
    """Nodes whose part of the last save is durable already: losing them loses nothing."""
    if run.stopping is None or run.active is None:
        return frozenset()
    asked = run.nodes if run.stopped_parked else run.active.nodes
    return frozenset(asked) - run.stopping


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
    parked = run.phase is Phase.parked  # with no machine left there may be an anchor
    holders = frozenset(run.nodes)
    if not parked and run.active is not None:
        holders &= frozenset(run.active.nodes)
    if run.active is None or not (holders or parked):
        run, more = end_run(run, wish.end, wish.why)
        return run, commands + more
    run = replace(
        run,
        phase=Phase.stopping,
        stopping=holders,
        stop_deadline=at + run.limits.boundary_s + run.limits.save_s + extra_s(run.active),
        stopped_parked=parked,
    )
    if parked:
        return run, [*commands, save_held(run)]
    halt = SendHalt(
        generation=run.active_generation,
        nodes=tuple(sorted(holders)),
        boundary=boundary,
        persist=True,
    )
    return run, [*commands, halt]
