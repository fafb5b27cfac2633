"""What an event log says of moves: pauses in median steps, first steps, what was redone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sailor.observe.events import Event

_STANDING = ("decide_s", "prepare_s", "copy_s", "switch_s")  # of a pause, before its first step


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Processor seconds that a switch took."""

    stayer_s: float
    newcomer_s: float
    controller_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change of machines that a run trained through.

    ``gap_s``: from the last step applied before to the first applied after it, less one usual step:
    all the time that was lost, whatever it was spent on. ``after_detection_s``: from the moment a
    loss was known to that first step applied; None for planned ones. ``first_step``: the first
    step's own seconds, as a multiple of the median of the generation's later ones. ``stood_s``:
    how long all stood still, from the first that did to Go, on the controller's clock: a part of
    ``gap_s``, and the part that no chance in the length of two steps can hide. ``moved``: machines
    that train and did not before. ``work``: processor seconds of the busiest machine that
    stayed, of the busiest that came, and of the controller: what does not depend on how many of
    them share a processor. None where the log does not say.
    """

    planned: bool
    cause: str
    gap_s: float
    usual_s: float
    after_detection_s: float | None
    first_step: float | None
    steps_redone: int
    stood_s: float
    moved: int
    work: Work | None = None

    @property
    def gap_steps(self) -> float:
        """The lost time in median steps."""
        return self.gap_s / self.usual_s


def usual_interval(log: Sequence[Event]) -> float:
    """Median time between two steps of one generation, its first two left out. Raises
    statistics.StatisticsError when there is none."""
    intervals = []
    for steps in _by_generation(log).values():
        intervals += [b.t - a.t for a, b in zip(steps[2:], steps[3:], strict=False)]
    return median(intervals)


def changes(log: Sequence[Event]) -> list[Change]:
    """Every change after the start, in order, that a step followed."""
    found = []
    by_generation = _by_generation(log)
    lost = [e.t for e in log if e.kind in ("node_lost", "worker_lost")]
    pauses = [e for e in log if e.kind == "pause" and e["cause"] != "start"]
    begun = [e for e in log if e.kind == "generation_started"]
    nodes = {e.generation: set(e.get("nodes", ())) for e in begun}
    for pause in pauses:
        steps = by_generation.get(pause.generation, [])
        before = [e for g, es in by_generation.items() if g < pause.generation for e in es]
        if not steps or not before:
            continue
        first, last = steps[0], max(before, key=lambda e: e.t)
        around = [*before[-12:], *steps[1:12]]
        usual = _interval([e for e in around if e is not first]) or usual_interval(log)
        known = [t for t in lost if t <= first.t]
        later = [e["seconds"] for e in steps[1:]]
        found.append(
            Change(
                planned=bool(pause["planned"]),
                cause=str(pause["cause"]),
                gap_s=first.t - last.t - usual,
                usual_s=usual,
                after_detection_s=first.t - known[-1] if known and not pause["planned"] else None,
                first_step=first["seconds"] / median(later) if len(later) >= 3 else None,
                steps_redone=int(pause["steps_redone"]),
                stood_s=sum(pause.get(part, 0.0) for part in _STANDING),
                moved=len(nodes.get(pause.generation, set()) - nodes.get(last.generation, set())),
                work=_work(pause),
            )
        )
    return found


def _work(pause: Event) -> Work | None:
    if pause.get("stayer_cpu_s") is None:
        return None
    return Work(
        stayer_s=pause["stayer_cpu_s"],
        newcomer_s=pause["newcomer_cpu_s"],
        controller_s=pause["controller_cpu_s"],
    )


def seconds_of(log: Sequence[Event], *, after: int, until: int) -> float:
    """Wall-clock seconds from one step's being applied to a later one's, each as it was last."""
    applied = {e["step"]: e.t for e in log if e.kind == "step" and e["num_samples"]}
    return applied[until] - applied[after]


def losses(log: Sequence[Event]) -> dict[int, float]:
    """Step -> loss of the generation that kept it."""
    kept: dict[int, float] = {}
    for event in log:
        if event.kind == "generation_started":
            kept = {step: loss for step, loss in kept.items() if step <= event["step"]}
        elif event.kind == "step" and event["num_samples"]:
            kept[event["step"]] = event["loss"]
    return kept


def _by_generation(log: Sequence[Event]) -> dict[int, list[Event]]:
    steps: dict[int, list[Event]] = {}
    for event in log:
        if event.kind == "step" and event["num_samples"]:
            steps.setdefault(event.generation, []).append(event)
    return steps


def _interval(steps: Sequence[Event]) -> float | None:
    """Median time between neighbouring steps of one generation."""
    pairs = zip(steps, steps[1:], strict=False)
    near = [
        b.t - a.t for a, b in pairs if b.generation == a.generation and b["step"] == a["step"] + 1
    ]
    return median(near) if len(near) >= 3 else None
