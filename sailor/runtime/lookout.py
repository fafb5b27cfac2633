"""Watches the pace of a run for its controller: feeds ``straggler`` and says what to do about it.

It keeps what heartbeats say of each worker's work, asks for probes when nobody works longer but
steps take longer, and wishes a machine moved when that pays. Everything it decides is decided in
``straggler``; whether somebody can take over is the life cycle's to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sailor.runtime.messages import Probed, WorkerStatus
from sailor.runtime.straggler import (
    HeldUp,
    Links,
    Rules,
    Sample,
    Slow,
    Watch,
    began,
    judge_links,
    observed,
    pays,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Move this machine; ``why`` is for the log."""

    node: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeAll:
    """Have every two of these machines measure the line between them."""

    nodes: tuple[str, ...]
    why: str


class Lookout:
    """``rules`` None: nobody is ever suspected."""

    def __init__(self, rules: Rules | None) -> None:
        self._rules = rules
        self._watch = Watch(rules=rules or Rules())
        self._nodes: frozenset[str] = frozenset()
        self._seen: dict[str, int] = {}  # worker -> its newest step here
        self._waiting: list[Sample] = []
        self._lost_s_per_step = 0.0
        self._probes: dict[tuple[str, str], float] = {}
        self._probed: set[str] = set()  # who has yet to answer

    def began(self, *, step: int, nodes: Sequence[str]) -> None:
        """Another generation trains, on these machines."""
        self._watch = began(self._watch, step=step)
        self._nodes = frozenset(nodes)
        self._waiting.clear()
        self._seen.clear()
        self._probed.clear()

    def heard(
        self,
        node: str,
        statuses: Iterable[WorkerStatus],
        *,
        step_s: float,
        steps_left: int,
        pause_s: float,
    ) -> Wish | ProbeAll | None:
        """A heartbeat. Looked at once there is about one new sample of every worker: a thousand
        machines say something all the time."""
        if self._rules is None or node not in self._nodes:
            return None
        samples = self._waiting
        for status in statuses:
            worker = str(status.worker)
            if status.doing == "training" and status.step > self._seen.get(worker, -1):
                self._seen[worker] = status.step
                if status.busy_s > 0:
                    samples.append(
                        Sample(
                            node=node,
                            worker=worker,
                            step=status.step,
                            busy_s=status.busy_s,
                            step_s=step_s,
                        )  # fmt: skip
                    )
        if len(samples) < max(1, len(self._seen)):
            return None
        self._watch, verdict = observed(self._watch, samples)
        samples.clear()
        match verdict:
            case Slow():
                why = f"slow: its work takes {verdict.own:.1f} times as long as it used to"
                return self._worth(
                    verdict.node, why, verdict.gained_s_per_step, steps_left, pause_s
                )
            case HeldUp() if not self._probed:
                self._lost_s_per_step = verdict.lost_s_per_step
                self._probes, self._probed = {}, set(self._nodes)
                why = f"steps take {verdict.ratio:.1f} times as long, nobody works longer"
                return ProbeAll(nodes=tuple(sorted(self._nodes)), why=why)
        return None

    def probed(
        self, answer: Probed, *, steps_left: int, pause_s: float
    ) -> tuple[Links | None, Wish | None]:
        """One machine's probes; with the last of them, what they say and whom to move."""
        if self._rules is None or answer.node not in self._probed:
            return None, None
        self._probed.discard(answer.node)
        for peer, seconds in answer.seconds.items():
            first, second = sorted((answer.node, peer))
            best = self._probes.get((first, second), seconds)
            self._probes[first, second] = min(best, seconds)
        if self._probed:
            return None, None
        links = judge_links(self._probes, rules=self._rules)
        # Of a bad pair either may go: who is left has good lines to all others.
        accused = links.nodes or tuple(pair[1] for pair in links.pairs[:1])
        if not accused:
            return links, None
        why = "its network is slow" if links.nodes else f"the line to {links.pairs[0][0]} is slow"
        return links, self._worth(accused[0], why, self._lost_s_per_step, steps_left, pause_s)

    def _worth(
        self, node: str, why: str, gained_s: float, steps_left: int, pause_s: float
    ) -> Wish | None:
        assert self._rules is not None
        # Whatever comes of it, the next suspicion needs as many looks as this one.
        self._watch = began(self._watch, step=self._watch.seen)
        margin = self._rules.margin
        if not pays(gained_s, steps_left=steps_left, pause_s=pause_s, margin=margin):
            return None
        return Wish(node=node, why=why)
