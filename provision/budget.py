"""When money or time is up: decided early enough that the last step, the save and the release
still fit. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sailor.observe.events import Event

_RECENT = 0.2  # weight of the newest step in the running mean
_FIRST_SAVE_S = 10.0  # before one was seen
_FETCH_S = 600.0  # that a controller's own machine is to wait for whoever fetches results, at least
_LEAST_S = 60.0  # that it waits even if nothing is left: whoever looks on has fetched them by then
_WAIT_SHARE = 0.05  # of the budget that may be kept for that wait


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Hard limits; None is no limit. ``deadline_s`` counts from the first start of the run."""

    total_dollars: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """What a controller's own machine does once its run has ended: it waits ``wish_s`` for somebody
    to fetch results, and after that ``idle_s`` pass before its cloud ends it."""

    price_per_hour: float
    wish_s: float
    idle_s: float

    def dollars_kept(self, total_dollars: float) -> float:
        """What of a budget is kept for it: the whole wait, or if that is more than a small share of
        the budget, that share; but enough for a short wait."""
        whole, least = (
            self.price_per_hour * (seconds + self.idle_s) / 3600.0
            for seconds in (self.wish_s, min(self.wish_s, _FETCH_S))
        )
        return min(whole, max(least, _WAIT_SHARE * total_dollars))

    def seconds_paid(self, left_dollars: float) -> float:
        """How much of the wait what is left pays for."""
        if not self.price_per_hour:
            return self.wish_s
        paid = left_dollars / self.price_per_hour * 3600.0 - self.idle_s
        return min(self.wish_s, max(_LEAST_S, paid))


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a run stands, as its log tells: enough to say what stopping takes."""

    step: int = 0
    total_steps: int = 0
    step_s: float = 0.0  # running mean
    slowest_step_s: float = 0.0  # of late: decays towards the mean
    save_s: float = _FIRST_SAVE_S
    pause_s: float = 0.0  # the longest planned pause so far

    def after(self, event: Event) -> Standing:
        """With one more event of the log."""
        match event.kind:
            case "run_started":
                return replace(self, total_steps=int(event["total_steps"]))
            case "step":
                seconds = float(event["seconds"] or 0.0)
                mean = self.step_s + _RECENT * (seconds - self.step_s) if self.step_s else seconds
                slowest = max(seconds, self.slowest_step_s - _RECENT * (self.slowest_step_s - mean))
                return replace(self, step=int(event["step"]), step_s=mean, slowest_step_s=slowest)
            case "persisted":
                return replace(self, save_s=max(_FIRST_SAVE_S, float(event["seconds"])))
            case "pause" if event["planned"]:
                return replace(self, pause_s=max(self.pause_s, float(event["total_s"])))
        return self

    def remaining_s(self) -> float | None:
        """Seconds of training left at the present pace; None before the first step."""
        if not self.step_s or not self.total_steps:
            return None
        return max(0, self.total_steps - self.step) * self.step_s

    def closing_s(self, *, release_s: float) -> float:
        """How long machines are paid for once it is decided to stop: the step under way, the save
        (as long as the last one, and as long again: disks have bad days), the release."""
        return self.slowest_step_s + 2.0 * self.save_s + release_s


def reason_to_stop(
    budget: Budget,
    standing: Standing,
    *,
    spent: float,
    dollars_per_hour: float,
    now: float,
    release_s: float,
    kept: float = 0.0,
) -> str:
    """Why the run must stop now, or nothing.

    ``spent`` is dollars so far, over all starts; ``now`` seconds since the first start. ``kept``:
    dollars that are spent once it has stopped (``Wait``).
    """
    closing_s = standing.closing_s(release_s=release_s)
    if budget.total_dollars is not None:
        ending = dollars_per_hour * closing_s / 3600.0 + kept
        if dollars_per_hour > 0 and spent + ending >= budget.total_dollars:
            return (
                f"${spent:.2f} of ${budget.total_dollars:.2f} are spent, and stopping costs "
                f"${ending:.2f}"
            )
    if budget.deadline_s is not None and now + closing_s >= budget.deadline_s:
        return (
            f"{now / 3600:.2f} h of {budget.deadline_s / 3600:.2f} h have passed, and stopping "
            f"takes {closing_s:.0f} s"
        )
    return ""
