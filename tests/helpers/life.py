"""Situations of a life cycle, and events that lead from one to the next."""

from dataclasses import replace

from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.lifecycle import advance
from tests.helpers.builders import a_layout, a_member, a_plan

LIMITS = s.Limits(initial_nodes=2)


def drive(run, *events):
    """Advance through events; the last outcome's commands."""
    commands = []
    for event in events:
        run, commands = advance(run, event)
    return run, commands


def of_kind(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def a_run(**changes):
    return replace(s.Run(limits=LIMITS, total_steps=100), **changes)


def layout_on(*nodes):
    members = [a_member(node) for node in nodes]
    layout = a_layout(a_plan(*([[]] * len(nodes))))
    return replace(layout, workers=tuple(m.workers[0] for m in members))


def a_training_run(*nodes, at=10.0):
    """Generation 1 training on the nodes, having applied step 5."""
    run = a_run(limits=replace(LIMITS, initial_nodes=len(nodes)))
    for node in nodes:
        run, _ = advance(run, h.Joined(at=1, member=a_member(node), slots=1))
    layout = layout_on(*nodes)
    run, _ = advance(run, h.Planned(at=2, generation=1, layout=layout))
    for node in nodes:
        run, _ = advance(run, h.NodePrepared(at=3, generation=1, node=node))
    run, _ = advance(run, h.Restorable(at=4, generation=1, step=0, redone=0, source="init"))
    for node in nodes:
        run, _ = advance(run, h.NodeSwitched(at=5, generation=1, node=node, copy_s=0.1))
    run, _ = advance(run, h.StepApplied(at=6, generation=1, step=1))
    run, _ = advance(run, h.StepApplied(at=at, generation=1, step=5))
    assert run.phase is s.Phase.training
    return run
