"""Machines that stand by: for how long they had no seat while others trained, and at what price."""

from __future__ import annotations

from collections import Counter

from sailor.observe.events import Event
from sailor.observe.ledger import Ledger


class Standbys:
    """Time of machines that are there, have no seat and are not on their way out."""

    def __init__(self) -> None:
        self.promoted = 0
        self._seconds = 0.0
        self._dollars = 0.0
        self._seated: frozenset[str] = frozenset()
        self._trains = False
        self._since: dict[str, tuple[float, float]] = {}  # node -> (t, dollars an hour)
        self._warm: Counter[str] = Counter()  # node -> roles it is warm for

    def apply(self, event: Event, ledger: Ledger) -> None:
        """Take the next event of the log; ``ledger`` knows those before it."""
        node = str(event.get("node", ""))
        match event.kind:
            case "generation_started":
                self._seated, self._trains = frozenset(event.get("nodes", ())), True
                for seated in [n for n in self._since if n in self._seated]:
                    self._end(seated, event.t)
                for life in ledger.present():
                    if life.noticed_at is None and not life.role:
                        self._begin(life.node, event.t, life.price_per_hour)
            case "node_joined" if self._trains:
                known = next((x for x in reversed(ledger.lives) if x.node == node), None)
                if known is None or not known.role:  # an anchor never has a seat
                    self._begin(node, event.t, 0.0 if known is None else known.price_per_hour)
            case "notice" | "node_lost" | "fenced" | "node_released":
                self._end(node, event.t)
            case "standby" if event.get("state") == "promoted":
                self.promoted += 1
            case "standby" if event.get("state") == "warm":
                self._warm[node] += 1
            case "run_ended":
                for standing in list(self._since):
                    self._end(standing, event.t)
                self._trains = False
            case _:
                pass

    def first_warmth(self, event: Event) -> bool:
        """Whether a word that a machine is warm, applied last, is its first: a line is enough."""
        return self._warm[str(event.get("node", ""))] == 1

    def seconds(self, *, now: float) -> float:
        """Machine-seconds so far."""
        return self._seconds + sum(max(0.0, now - t) for t, _ in self._since.values())

    def cost(self, *, now: float) -> float:
        """US dollars so far."""
        return self._dollars + sum(
            max(0.0, now - t) / 3600.0 * price for t, price in self._since.values()
        )

    def _begin(self, node: str, t: float, price: float) -> None:
        if node not in self._seated:
            self._since.setdefault(node, (t, price))

    def _end(self, node: str, t: float) -> None:
        begun = self._since.pop(node, None)
        if begun is not None:
            self._seconds += t - begun[0]
            self._dollars += (t - begun[0]) / 3600.0 * begun[1]
