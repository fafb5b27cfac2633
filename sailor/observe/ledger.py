"""Machines of a run: when each was asked for, came, went, and what it cost, over all starts."""

from __future__ import annotations

from dataclasses import dataclass

from sailor.observe.events import Event

CONTROLLER = "controller"  # the role of the machine that a run's controller lives on
_KILLED = "its run was killed"
_FAULT_S = 300.0  # an end within that time of an injected fault is its doing
_NOT_TAKEN = (_KILLED, "did not come", "released")


@dataclass(kw_only=True, slots=True)
class NodeLife:
    """One machine from request to release. Times are the log's ``t``; None means not yet."""

    node: str
    zone: str = ""
    machine_type: str = ""
    spot: bool = True
    price_per_hour: float = 0.0  # US dollars
    role: str = ""  # "anchor": it keeps copies and trains nothing; CONTROLLER
    requested_at: float = 0.0
    started_at: float | None = None  # the cloud says it runs, where it says so
    joined_at: float | None = None
    noticed_at: float | None = None
    given_back: bool = False  # by ourselves
    injected_at: float | None = None  # a fault that somebody asked for
    lost_at: float | None = None
    lost_cause: str = ""
    fenced: bool = False
    released_at: float | None = None
    proof: str = ""
    news: str = ""  # the last that was heard of it, in a few words
    news_at: float = 0.0

    @property
    def gone_at(self) -> float | None:
        """When it stopped being part of the run: the first of loss and release."""
        times = [t for t in (self.lost_at, self.released_at) if t is not None]
        return min(times) if times else None

    @property
    def unpaid_at(self) -> float | None:
        """When it stopped costing money: its proven release, else its loss."""
        return self.released_at if self.released_at is not None else self.lost_at

    @property
    def came_at(self) -> float | None:
        """When it was there: its start where the cloud told of it, else when it began to serve."""
        return self.serves_from if self.started_at is None else self.started_at

    @property
    def serves_from(self) -> float | None:
        """When it began to be of use: its joining. A controller's own machine joins nobody; what it
        says is in the log from its request on."""
        return self.requested_at if self.role == CONTROLLER else self.joined_at

    @property
    def taken(self) -> bool:
        """Whether it was taken away: lost, or gone after a notice that was not our own."""
        if self.given_back or self.gone_at is None or self.came_at is None:
            return False
        if self.injected_at is not None and self.gone_at - self.injected_at < _FAULT_S:
            return False
        if self.lost_at is not None:
            return self.lost_cause not in _NOT_TAKEN
        return self.noticed_at is not None

    def cost(self, *, now: float) -> float:
        """US dollars until ``now``.

        Counted from the machine's start, or from its request where nobody told of the start: the
        sum is then an upper bound, too high by the wait for capacity.
        """
        begin = self.requested_at if self.started_at is None else self.started_at
        end = now if self.unpaid_at is None else min(self.unpaid_at, now)
        return max(0.0, end - begin) / 3600.0 * self.price_per_hour

    def state(self) -> str:
        """requested, up, leaving, lost or released: one word for a table."""
        if self.released_at is not None and self.lost_at is None:
            return "released"
        if self.lost_at is not None:
            return "lost"
        if self.noticed_at is not None:
            return "leaving"
        return "requested" if self.serves_from is None else "up"


class Ledger:
    """All machines in order of request. A name used again is another machine."""

    def __init__(self) -> None:
        self.lives: list[NodeLife] = []
        self._by_name: dict[str, NodeLife] = {}

    def apply(self, event: Event) -> None:
        """Take the next event of the log; those not about machines are ignored."""
        node = event.get("node") or str(event.get("worker", "")).partition("/")[0]
        if event.kind == "fault_injected":
            node = str(event.get("target", "")).partition("/")[0]
            if node not in self._by_name:
                return
        if not isinstance(node, str) or not node:
            return
        self._apply(event, node)
        if (news := _news(event)) and node in self._by_name:
            life = self._by_name[node]
            life.news, life.news_at = news, event.t

    def _apply(self, event: Event, node: str) -> None:
        match event.kind:
            case "node_requested":
                self._requested(event, node)
            case "node_started":
                self._life(event, node).started_at = event.t
            case "node_refused":
                life = self._life(event, node)
                life.started_at = life.released_at = event.t  # never rented, so never paid
                life.proof = f"refused: {event.get('why', '')}"
            case "node_joined":
                life = self._life(event, node)
                if life.gone_at is not None:  # same name, another machine
                    life = self._open(event, node)
                life.zone = event.get("zone", life.zone)
                life.machine_type = event.get("machine_type", life.machine_type)
                life.joined_at = event.t if life.joined_at is None else life.joined_at
            case "notice":
                life = self._life(event, node)
                life.noticed_at = event.t
                life.given_back = life.given_back or bool(event.get("given_back"))
            case "fault_injected":
                self._life(event, node).injected_at = event.t
            case "node_lost" | "fenced":
                life = self._life(event, node)
                life.fenced = life.fenced or event.kind == "fenced"
                if life.lost_at is None:
                    life.lost_at = event.t
                    life.lost_cause = str(event.get("cause") or event.get("reason") or "")
            case "node_released":
                life = self._life(event, node)
                if life.released_at is None and event.get("released", True):
                    life.released_at = event.t
                life.proof = str(event.get("proof", ""))

    def cost(self, *, now: float, role: str | None = None) -> float:
        """US dollars of all machines until ``now``, or of those with a role."""
        return sum(life.cost(now=now) for life in self.lives if role in (None, life.role))

    def hours(self, *, now: float, role: str) -> float:
        """Machine-hours of machines with a role, from when they began to serve to their end."""
        seconds = 0.0
        for life in self.lives:
            if life.role == role and life.serves_from is not None:
                end = now if life.gone_at is None else life.gone_at
                seconds += max(0.0, end - life.serves_from)
        return seconds / 3600.0

    def members(self) -> list[NodeLife]:
        """Machines that were asked for to join: all but a controller's own."""
        return [life for life in self.lives if life.role != CONTROLLER]

    def present(self) -> list[NodeLife]:
        """Machines that joined and are not gone."""
        return [x for x in self.lives if x.joined_at is not None and x.gone_at is None]

    def unproven(self) -> list[NodeLife]:
        """Machines asked for whose release nobody has proven: they may still cost money."""
        return [life for life in self.lives if life.released_at is None]

    def _requested(self, event: Event, node: str) -> None:
        known = self._by_name.get(node)
        if known is not None and known.joined_at is None and known.gone_at is None:
            return  # the same wish again
        if known is not None and known.gone_at is None:
            known.lost_at = event.t  # its end was never logged: the process before us was killed
            known.lost_cause = _KILLED
        self._open(event, node)

    def _life(self, event: Event, node: str) -> NodeLife:
        return self._by_name.get(node) or self._open(event, node)

    def _open(self, event: Event, node: str) -> NodeLife:
        life = NodeLife(
            node=node,
            zone=event.get("zone", ""),
            machine_type=event.get("machine_type", ""),
            spot=bool(event.get("spot", True)),
            price_per_hour=float(event.get("price_per_hour") or 0.0),
            role=str(event.get("role") or ""),
            requested_at=event.t,
        )
        self.lives.append(life)
        self._by_name[node] = life
        return life


def _news(event: Event) -> str:
    """A machine's row says in a few words what happened to it last."""
    match event.kind:
        case "node_requested":
            return "asked for"
        case "node_started":
            return "it boots"
        case "node_refused":
            return f"refused: {event.get('why', '')}"
        case "node_joined":
            return "joined"
        case "worker_up":
            return "worker started again"
        case "worker_lost":
            return f"worker lost: {event.get('cause', '')}"
        case "notice":
            return f"notice of {event.get('seconds', 0):g} s"
        case "node_lost" | "fenced":
            return str(event.get("cause") or event.get("reason") or "lost")
        case "move_asked":
            return f"to be moved: {event.get('why', '')}"
        case "standby":
            return f"standby, {event.get('state', '')}"
        case "node_released":
            return "released" if event.get("released", True) else "not proven gone"
    return ""
