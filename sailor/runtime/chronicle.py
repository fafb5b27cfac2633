"""What a controller's log is told of steps, snapshots, memory and generations, each fact once, and
what the controller itself remembers of them. No torch."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from sailor.parallel.layout import Layout
from sailor.parallel.transition import change_between
from sailor.runtime import commands as c
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.agreement import Agreement
from sailor.runtime.event_sink import EventSink
from sailor.runtime.recent import RecentLosses
from sailor.runtime.roster import AgentRecord
from sailor.runtime.switch_tally import SwitchTally
from sailor.runtime.tally import SnapshotTally

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0  # what a change is taken to cost before one of its kind was seen


class Chronicle:
    """One controller's. ``recorded``: (generation, step) that are in the log already; ``losses`` by
    step, of earlier starts of the run."""

    def __init__(
        self,
        events: EventSink,
        *,
        recorded: Collection[tuple[int, int]],
        losses: Mapping[int, float],
    ) -> None:
        self.losses = RecentLosses(losses)
        self.step_seconds: deque[float] = deque(maxlen=32)  # of the newest steps
        self.planned_pause_s = FIRST_PAUSE_S
        self.loss_pause_s = FIRST_PAUSE_S  # the same of a loss
        self._events = events
        self._recorded = set(recorded)
        self._newest = max(self._recorded, default=(0, -1))
        self._switch = SwitchTally()
        self._layout: Layout | None = None  # of the generation that began last
        self._agreement: Agreement | None = None
        self._tally: SnapshotTally | None = None

    @property
    def newest(self) -> tuple[int, int]:
        """(generation, step) of the newest step in the log; (0, -1) where there is none."""
        return self._newest

    def takes_over(self, layout: Layout) -> None:
        """An earlier controller's generation trains by this layout."""
        self._layout, self._agreement = layout, Agreement(layout=layout)

    def step(self, record: m.StepRecord) -> None:
        """A step was applied, or left out; every rank of the last stage may say so."""
        key = (record.generation, record.step)
        if key in self._recorded:
            return
        self._recorded.add(key)
        self._newest = max(self._newest, key)
        self.losses.note(record)
        if record.num_samples:
            self.step_seconds.append(record.seconds)
        fields: dict[str, Any] = {
            name: getattr(record, name)
            for name in record.__struct_fields__
            if name not in ("generation", "eval_loss", "skipped")
        }
        if record.eval_loss is not None:
            fields["eval_loss"] = record.eval_loss
        if record.skipped:
            fields["skipped"] = record.skipped
            self._events.write(
                "step_refused",
                generation=record.generation,
                step=record.step,
                why=record.skipped,
                action="skip",
            )
        self._events.write("step", generation=record.generation, **fields)

    def halted(self) -> None:
        """A node stands still: what it takes from here to Go is work of the change."""
        self._switch.halted(cpu_s=time.process_time())

    def switched(self, told: m.Switched) -> None:
        """A node has all of its boxes of a generation."""
        layout = self._layout
        self._switch.switched(told, stayed=layout is not None and told.node in layout.nodes)

    def life_cycle(self, command: c.Record, run: s.Run) -> None:
        """Write down what the life cycle says; ``run`` is its state afterwards."""
        fields = dict(command.fields)
        generation = int(fields.pop("generation", run.generation))
        layout = run.active
        if command.kind == "generation_started" and layout is not None:
            self._switch.gone(cpu_s=time.process_time())
            change = change_between(self._layout, layout)
            self.takes_over(layout)
            fields["kept_groups"] = len(change.kept)
            fields["built_groups"] = len(change.built)
        if command.kind in ("generation_started", "adopted") and layout is not None:
            self.close_tally()
            self._tally = SnapshotTally(
                generation=run.active_generation, world_size=layout.world_size
            )
            fields["ranks"] = _seats(layout)
        if command.kind == "pause":
            fields |= self._switch.fields(generation)
            if fields["planned"]:
                self.planned_pause_s = float(fields["total_s"])
            elif fields["cause"] != "start":
                self.loss_pause_s = float(fields["total_s"] - fields["parked_s"])
        self._events.write(command.kind, generation=generation, **fields)

    def snapshot(self, told: m.Snapshotted, *, active_generation: int) -> None:
        """A rank's snapshot, or a peer's copy of it."""
        tally = self._tally
        if tally is None or tally.generation != told.generation:  # a late word
            tally = SnapshotTally(generation=told.generation, world_size=1)
        for kind, fields in tally.hear(told):
            self._events.write(kind, generation=tally.generation, **fields)
        if told.digests and told.generation == active_generation:
            self._compare(told)

    def close_tally(self) -> None:
        """The generation is over, or the run."""
        tally, self._tally = self._tally, None
        if tally is not None:
            for kind, fields in tally.rest():
                self._events.write(kind, generation=tally.generation, **fields)

    def _compare(self, told: m.Snapshotted) -> None:
        """Owners must hold the same bytes; one that does not has a silent fault (invariant I2)."""
        if self._agreement is None:
            return
        snapshot = told.snapshot
        compared = self._agreement.hear(snapshot.worker, step=snapshot.step, digests=told.digests)
        if compared is None:
            return
        for difference in compared.differences:
            holders = [" ".join(map(str, workers)) for _, workers in difference.holders]
            log.error("step %d: owners of %s differ: %s", compared.step, difference.box, holders)
            self._events.write(
                "replicas_differ",
                generation=told.generation,
                step=compared.step,
                box=difference.box,
                holders=holders,
            )
        if not compared.differences:
            self._events.write(
                "replicas_agree",
                generation=told.generation,
                step=compared.step,
                boxes=compared.num_compared,
            )

    def memory(self, agents: Mapping[str, AgentRecord], *, generation: int) -> None:
        """What each rank's process has taken at most, as its agent last said."""
        if self._layout is None:
            return
        ranks = []
        for rank, worker in enumerate(self._layout.workers):
            agent = agents.get(worker.node)
            status = agent.statuses.get(worker) if agent is not None else None
            if status is not None and status.peak_bytes:
                ranks.append(
                    {
                        "rank": rank,
                        "worker": str(worker),
                        "peak_bytes": status.peak_bytes,
                        "base_bytes": status.base_bytes,
                    }
                )
        if ranks:
            self._events.write("memory", generation=generation, ranks=ranks)


def _seats(layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "worker": str(worker),
            "replica": at.replica,
            "stage": at.stage,
            "tensor_rank": at.tensor_rank,
        }
        for rank, (worker, at) in enumerate(zip(layout.workers, layout.coordinates, strict=True))
    ]
