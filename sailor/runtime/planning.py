"""New plans for the machines that are there, made beside the loop, and what each is to take."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from sailor.errors import NoFeasiblePlan
from sailor.parallel.layout import Layout
from sailor.plan import Plan
from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime.controller_settings import Foretold, NotWorth, Replanner
from sailor.runtime.parts import Parts

log = logging.getLogger(__name__)


class Planning:
    """Asks the planner, in a thread, and tells the life cycle what came of it."""

    def __init__(
        self,
        parts: Parts,
        *,
        replan: Replanner,
        not_worth: NotWorth | None,
        foretold: Foretold | None,
    ) -> None:
        self._parts = parts
        self._replan = replan
        self._not_worth = not_worth
        self._foretold = foretold

    async def plan(self, command: c.Replan) -> None:
        """A layout for the members of ``command``, or why there is none or none is wanted."""
        layout, why = None, ""
        try:
            plan = await asyncio.to_thread(self._replan, command.members)
            why = await asyncio.to_thread(self._reason_to_stay, command, plan)
            if not why:
                run = self._parts.settings.run
                lay_out = partial(
                    Layout.of,
                    plan,
                    spec=run.spec,
                    pieces=run.pieces,
                    members=command.members,
                    previous=command.previous,
                )
                layout = await asyncio.to_thread(lay_out)
        except NoFeasiblePlan as error:
            why = error.what
        except Exception as error:  # whatever planning runs into, the run must hear of it
            log.exception("planning failed")
            why = f"planning failed: {error!r}"
        at = self._parts.now()
        self._parts.put(h.Planned(at=at, generation=command.generation, layout=layout, why=why))

    def _reason_to_stay(self, command: c.Replan, plan: Plan) -> str:
        """Why a change that nothing forces is not worth its pause; "" to make it."""
        run, before = self._parts.run, command.previous
        if self._not_worth is None or before is None or not run.training:
            return ""
        staying = {worker for member in command.members for worker in member.workers}
        if not staying.issuperset(before.workers):
            return ""  # somebody leaves: things cannot stay as they are
        return self._not_worth(
            before.plan,
            plan,
            steps_left=run.total_steps - run.step,
            pause_s=self._parts.chronicle.planned_pause_s,
        )

    async def foretell(self, generation: int, plan: Plan) -> None:
        """Write down what the coming generation is expected to take, while it is prepared."""
        if self._foretold is None:
            return
        try:
            fields = await asyncio.to_thread(self._foretold, plan)
        except Exception:  # a run must not end for want of an estimate
            log.exception("no estimate for the plan of generation %d", generation)
            return
        self._parts.events.write("plan_chosen", generation=generation, **fields)
