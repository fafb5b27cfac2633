"""What a tracker is told: points of a run's series, drawn from its events, and steps taken back.

The same log gives the same points, live or drawn again. Names have the form ``group/series``, which
trackers turn into panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sailor.observe.events import Event
from sailor.observe.history import RunHistory
from sailor.observe.metrics import measure

FIGURES_EVERY_S = 10.0
"""Run time between two points of goodput and cost: each is measured over the whole log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Values after ``step``. ``wall`` is seconds since 1970."""

    step: int
    wall: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewind:
    """Training went back: what was told of steps after ``step`` does not count. They come again."""

    step: int
    wall: float


class Points:
    """Turns the events of a run, from its first, into what trackers are told."""

    def __init__(self) -> None:
        self.history = RunHistory()
        self._figures_t = 0.0
        self._told = 0  # newest step told and not taken back

    def take(self, event: Event) -> Iterator[Point | Rewind]:
        """The next event of the log."""
        self.history.apply(event)
        wall = datetime.fromisoformat(event.time).timestamp()
        match event.kind:
            case "generation_started":
                yield from self._generation(event, wall)
            case "step":
                yield from self._step(event, wall)
            case "evaluated" if event.get("eval_loss") is not None:
                yield Point(
                    step=int(event["step"]), wall=wall, values={"loss/held_out": event["eval_loss"]}
                )
            case "pause" if event.get("total_s") is not None:
                values = {"run/pause_seconds": float(event["total_s"])}
                yield Point(step=self._told, wall=wall, values=values)
            case "run_ended":
                yield from self._figures(event, wall)

    def _generation(self, event: Event, wall: float) -> Iterator[Point | Rewind]:
        step = int(event.get("step", 0))
        if step < self._told:
            self._told = step
            yield Rewind(step=step, wall=wall)
        values = {"run/gpus": float(event.get("world_size", 0)), "run/generation": event.generation}
        yield Point(step=step, wall=wall, values=values)

    def _step(self, event: Event, wall: float) -> Iterator[Point]:
        step = int(event["step"])
        values = {}
        if (held_out := event.get("eval_loss")) is not None:
            values["loss/held_out"] = held_out
        kept = self.history.kept.get(step)
        if kept is not None and kept.generation == event.generation and step > self._told:
            self._told = step
            of_step = {
                "loss/train": kept.loss,
                "optimizer/grad_norm": kept.grad_norm,
                "optimizer/learning_rate": kept.learning_rate,
                "speed/step_seconds": kept.seconds,
                "speed/tokens_per_second": kept.tokens / kept.seconds if kept.seconds else None,
                "run/tokens": float(step * kept.tokens),
            }
            values |= {name: value for name, value in of_step.items() if value is not None}
        if values:
            yield Point(step=step, wall=wall, values=values)
        if event.t >= self._figures_t + FIGURES_EVERY_S:
            yield from self._figures(event, wall)

    def _figures(self, event: Event, wall: float) -> Iterator[Point]:
        self._figures_t = event.t
        figures = measure(self.history)
        values = {
            "run/goodput": figures.goodput,
            "run/cost_usd": figures.cost_usd,
            "run/steps_redone": float(figures.redone_steps),
            "run/durable_step": float(figures.durable_step),
        }
        yield Point(step=self._told, wall=wall, values=values)
