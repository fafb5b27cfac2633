"""Asks every so often whether other machines should have the run's seats, and has one moved.

Beside the loop: values are gathered and frozen, ``rebalance.decide`` judges them in a thread, and
what it wishes is a move like an operator's. Every verdict is an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from sailor.parallel.layout import Layout, Member
from sailor.parallel.stand_in import fits, with_zones
from sailor.plan import Plan
from sailor.runtime import happenings as h
from sailor.runtime import reserve
from sailor.runtime.controller_settings import Prospect
from sailor.runtime.hiring import Hiring
from sailor.runtime.paces import Pace
from sailor.runtime.parts import Parts
from sailor.runtime.rebalance import Option, Rules, Standing, Verdict, decide
from sailor.runtime.state import Phase


class Rebalancing:
    """One controller's. ``prospect`` None: neither lines nor losses count, pace alone does."""

    def __init__(self, parts: Parts, *, hiring: Hiring, prospect: Prospect | None) -> None:
        self._parts = parts
        self._hiring = hiring
        self._prospect = prospect
        self._rules = Rules()
        self._due: float | None = None
        self._looking = False
        self._looks = 0
        self._rests: dict[str, int] = {}  # machine -> the look from which it may take seats again

    def mind(self, *, now: float) -> None:
        """Look if it is time to. A look that must wait for calm, or for steps, is not left out."""
        every_s, run = self._parts.settings.rebalance_every_s, self._parts.run
        if every_s is None or self._looking or run.phase is not Phase.training:
            return
        if self._due is None:
            self._due = now + every_s
        pace = self._parts.paces.now() if now >= self._due else None
        if pace is not None:
            self._due = now + every_s
            self._looking = True
            self._parts.beside(self._look(pace))

    async def _look(self, pace: Pace) -> None:
        parts, run = self._parts, self._parts.run
        layout, step_s, free = run.active, parts.median_step_s(), reserve.able(run)
        assert layout is not None
        assert step_s is not None  # where a pace is known, steps were done
        self._looks += 1
        pasts = {member.node: parts.paces.before(member.node) for member in free}
        standing = Standing(
            layout=layout,
            pace=pace,
            before={node: past for node, past in pasts.items() if past is not None},
            step_s=step_s,
            steps_left=run.total_steps - run.step,
            pause_s=parts.chronicle.planned_pause_s,
            loss_s=parts.chronicle.loss_pause_s,
            resting=frozenset(n for n, look in self._rests.items() if self._looks < look),
        )
        try:
            verdict = await asyncio.to_thread(self._judge, standing, free)
        finally:
            self._looking = False
        self._tell(verdict, generation=run.active_generation)

    def _judge(self, standing: Standing, free: Sequence[Member]) -> Verdict:
        """Takes its time in a large run: not in the controller's loop."""
        there = options(
            standing.layout, free, step_seconds=self._step_seconds, losses_per_s=self._losses_per_s
        )
        return decide(replace(standing, options=there), rules=self._rules)

    def _tell(self, verdict: Verdict, *, generation: int) -> None:
        parts = self._parts
        if verdict.node and parts.run.active_generation != generation:
            verdict = Verdict(why="machines have changed meanwhile")
        parts.events.write(
            "rebalancing", generation=generation, decision="move" if verdict.node else "stay",
            node=verdict.node, to=verdict.to, why=verdict.why,
            gained_s_per_step=verdict.gained_s_per_step,
        )  # fmt: skip
        if not verdict.node:
            return
        self._rests[verdict.node] = self._looks + 1 + self._rules.rest_looks
        why = f"better placed: {verdict.why}"
        parts.events.write("move_asked", node=verdict.node, to=verdict.to, why=why)
        parts.put(h.MoveAsked(at=parts.now(), node=verdict.node, to=verdict.to, why=why))

    def _step_seconds(self, plan: Plan) -> float:
        return 1.0 if self._prospect is None else self._prospect.step_seconds(plan)

    def _losses_per_s(self, node: str) -> float:
        """0 where nothing is known: an earlier controller ordered it."""
        request = self._hiring.requests.get(node)
        if self._prospect is None or request is None:
            return 0.0
        return self._prospect.losses_per_s(request)


def options(
    layout: Layout, free: Sequence[Member], *, step_seconds: Callable[[Plan], float],
    losses_per_s: Callable[[str], float],
) -> tuple[Option, ...]:  # fmt: skip
    """Who could take whose seats, and what of lines and losses comes with it. The planner is asked
    only where a machine is in another zone than the seats."""
    ranks: dict[str, list[int]] = {}
    for rank, worker in enumerate(layout.workers):
        ranks.setdefault(worker.node, []).append(rank)
    present_s = step_seconds(layout.plan)
    found = []
    for node, held in ranks.items():
        zones = {layout.stage_of(rank).zone for rank in held}
        for member in (m for m in free if fits(layout, held, m)):
            plan = layout.plan
            if zones != {member.zone}:
                plan = with_zones(layout, dict.fromkeys(held, member.zone))
            found.append(
                Option(
                    node=node,
                    to=member.node,
                    step_ratio=1.0 if plan == layout.plan else step_seconds(plan) / present_s,
                    losses_per_s=losses_per_s(node) - losses_per_s(member.node),
                )
            )
    return tuple(found)
