"""Who stands by, and who takes a leaver's seat. Pure; part of the life cycle.

A run may keep ``Limits.standbys`` machines that are members and warm but have no seat. They are not
named once and for all: whoever has no seat while the crew is complete stands by. When somebody must
go, the layout is kept if a standby, else a spare machine, can take all seats of each leaver;
``lifecycle`` and ``change`` plan again only when none can.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.parallel.layout import Layout, Member
from sailor.parallel.stand_in import stand_in
from sailor.runtime import wishes
from sailor.runtime.commands import Command, Record, SendWarm
from sailor.runtime.state import Node, Run, TransitionStage


def staying(run: Run) -> tuple[Node, ...]:
    """Nodes one may count on: connected, with workers, not about to leave. By name."""
    nodes = [run.nodes[name] for name in sorted(run.nodes, key=_natural)]
    return tuple(n for n in nodes if n.leaves_at is None and n.member.workers)


def standbys(run: Run) -> tuple[str, ...]:
    """Nodes that stand by now: without a seat, not needed to complete the crew, at most as many as
    were wished for; those that are warm first. Before there is a layout, the last ones by name."""
    there = staying(run)
    crew = run.limits.initial_nodes - run.limits.standbys
    beyond = max(0, min(run.limits.standbys, len(there) - crew))
    free = _free(run)
    if run.active is None:
        free.reverse()
    return tuple(sorted((n.member.node for n in free[:beyond]), key=_natural))


def _free(run: Run) -> list[Node]:
    """Staying nodes without a seat, those that were asked to get ready first."""
    seated = frozenset(run.active.nodes) if run.active is not None else frozenset()
    free = [node for node in staying(run) if node.member.node not in seated]
    return sorted(free, key=lambda node: not node.warm)  # stable: then by name


def crew(run: Run) -> tuple[Member, ...]:
    """Who a plan that nothing forces may count on: everybody but those who stand by and, after
    changes that came to nothing, those they failed at."""
    apart = standbys(run)
    given_up = run.setbacks >= wishes.PATIENT_WITH_ONE
    there = [n for n in staying(run) if not (n.unfit and given_up)]
    return tuple(n.member for n in there if n.member.node not in apart)


def left_out(run: Run) -> tuple[str, ...]:
    """Who could train and has no seat, by name: neither do they stand by, nor have they failed."""
    seated = frozenset(run.active.nodes) if run.active is not None else frozenset()
    names = (member.node for member in crew(run))
    return tuple(name for name in names if name not in seated and not run.nodes[name].unfit)


def everybody(run: Run) -> tuple[Member, ...]:
    """Who a plan may count on when somebody is lost and nobody can stand in."""
    return tuple(n.member for n in staying(run))


def kept_layout(run: Run) -> Layout | None:
    """The active layout with a stand-in for everybody who must go; None when that cannot be.

    The very same layout when nobody must go. Those who are warm come before spare machines; one
    that was moved away from for being slow, or has just failed to stand in, never.
    """
    # The simulated world's formations have no seats to keep: it plans again, as without standbys.
    active, run = run.active, yielding(run)
    if not isinstance(active, Layout):
        return None
    keeping = [n.member for n in staying(run) if not n.moving]
    meant = {name: n.moving_to for name, n in run.nodes.items() if n.moving_to}
    return stand_in(active, staying=keeping, others=able(run), meant=meant)


def able(run: Run) -> list[Member]:
    """Machines without a seat that may take others', those asked to get ready first."""
    return [n.member for n in _free(run) if not (n.moving or n.unfit)]


def yielding(run: Run) -> Run:
    """Without wishes to move to a certain machine, where that one cannot have the seats any more or
    somebody must go: whoever must comes first."""
    wishes = {name: n for name, n in run.nodes.items() if n.moving_to}
    if not wishes:
        return run
    left = {name: replace(n, moving="", moving_to="") for name, n in wishes.items()}
    without = replace(run, nodes={**run.nodes, **left})
    there = {member.node for member in able(without)}
    if not somebody_must_go(without) and all(n.moving_to in there for n in wishes.values()):
        return run
    return without


def somebody_must_go(run: Run) -> bool:
    """Whether a seat of the active layout is held by a machine that leaves or is to be moved."""
    if run.active is None:
        return False
    gone = {name for name, n in run.nodes.items() if n.leaves_at is not None or n.moving}
    return any(node in gone or node not in run.nodes for node in run.active.nodes)


def warm(run: Run) -> tuple[Run, list[Command]]:
    """Have those who stand by get ready for the seats of the active layout."""
    layout, apart = run.active, standbys(run)
    if not apart or not isinstance(layout, Layout):
        return run, []
    asked = {name: replace(run.nodes[name], warm=True) for name in apart}
    run = replace(run, nodes={**run.nodes, **asked})
    return run, [SendWarm(generation=run.active_generation, layout=layout, nodes=apart)]


def appointed(run: Run, node: str) -> tuple[Run, list[Command]]:
    """The words and deeds for one that stands by from now on."""
    fields = {"node": node, "state": "appointed", "why": "the crew is complete"}
    run, commands = warm(run)
    return run, [Record(kind="standby", fields=fields), *commands]


def promoted(run: Run, layout: Layout) -> list[Command]:
    """What to write down when ``layout`` seats machines that had no seat: who, for whom."""
    old = run.active
    if old is None:
        return []
    commands: list[Command] = []
    for before, after in dict.fromkeys(
        (a.node, b.node) for a, b in zip(old.workers, layout.workers, strict=True)
    ):
        if before != after:
            fields = {"node": after, "state": "promoted", "why": f"takes the seats of {before}"}
            commands.append(Record(kind="standby", fields=fields))
    return commands


def settled(run: Run) -> Run:
    """After a change: whoever was moved away from has no seat any more and may stand by."""
    seated = frozenset(run.active.nodes) if run.active is not None else frozenset()
    nodes = {
        name: replace(
            n,
            moving="",
            moving_to="",
            unfit=n.unfit and name not in seated,
            warm=n.warm and name not in seated,
        )
        for name, n in run.nodes.items()
    }
    return replace(run, nodes=nodes)


def unfit(run: Run, node: str) -> Run:
    """It failed to stand in: not again."""
    if node not in run.nodes:
        return run
    return replace(run, nodes={**run.nodes, node: replace(run.nodes[node], unfit=True)})


def without_need(run: Run, node: str) -> bool:
    """Whether the change under way, if any, can do without a node: no layout has a seat for it, and
    no plan is being made that may count on it."""
    t = run.transition
    if t is None or t.stage is TransitionStage.plan:
        return False
    layouts = [layout for layout in (run.active, t.layout) if layout is not None]
    return not any(node in layout.nodes for layout in layouts)


def _natural(name: str) -> tuple[str, int, str]:
    """node-10 after node-9."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number), "") if number.isdigit() else (name, 0, "")
