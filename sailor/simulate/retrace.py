"""A real run's machines as a fleet: the same comings and goings for a simulated run.

Together with costs measured in another run (``costs.measured``) this is how the simulator is
checked: what it makes of the same machines has to be what the real run made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sailor.observe.events import Event
from sailor.simulate.fleet import Change, Fleet, Lease, NodeEvent


def until_stopped(events: Iterable[Event]) -> list[Event]:
    """A log as far as the run was not asked to stop: how it ends is not what is compared."""
    kept = []
    for event in events:
        if event.kind == "stop_asked":
            break
        kept.append(event)
    return kept


def fleet_of(events: Sequence[Event]) -> Fleet:
    """The machines of a log, from its first start to its newest event.

    A machine dies when its last sign of life was, not when that was noticed. One that was told to
    go is there until its notice is over, unless it was lost before: whether it is given back
    earlier is for the life cycle to decide, again. Raises ValueError for an empty log.
    """
    if not events:
        raise ValueError("a log without an event has no machines")
    begin, end = events[0].t, max(event.t for event in events) - events[0].t
    requested: dict[str, float] = {}
    open_: dict[str, Lease] = {}
    leaves: dict[str, float] = {}
    happened: list[NodeEvent] = []
    leases: list[Lease] = []

    def gone(node: str, t: float) -> None:
        lease = open_.pop(node)
        lease.end = min(end, max(t, lease.ready or 0.0))
        if lease.end < end:
            happened.append(
                NodeEvent(t=lease.end, change=Change.gone, node=node, place=lease.place)
            )

    for event in events:
        node, t = str(event.get("node", "")), event.t - begin
        match event.kind:
            case "node_requested":
                requested[node] = t
            case "node_joined" if node not in open_:
                place = (str(event["zone"]), str(event["machine_type"]))
                lease = Lease(
                    node=node, place=place, begin=requested.get(node, t), ready=t, end=end
                )
                open_[node] = lease
                leases.append(lease)
                happened.append(NodeEvent(t=t, change=Change.came, node=node, place=place))
            case "notice" if node in open_ and node not in leaves:
                seconds = float(event["seconds"])
                leaves[node] = t + seconds
                happened.append(
                    NodeEvent(t=t, change=Change.told, node=node, place=open_[node].place,
                              seconds=seconds)
                )  # fmt: skip
            case "node_lost" | "fenced" if node in open_:
                if node in leaves and event.get("cause") == "released":
                    gone(node, leaves.pop(node))
                else:
                    leaves.pop(node, None)
                    gone(node, t - float(event.get("silent_s") or 0.0))
            case "node_released" if node in open_:
                gone(node, leaves.pop(node, t))
    happened.sort(key=lambda entry: (entry.t, entry.change, entry.node))
    return Fleet(
        events=tuple(happened), leases=tuple(leases), seconds=end, source=f"run {events[0].run}"
    )
