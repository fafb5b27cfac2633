"""Thousands of possible futures of a run at once: when it finishes and what it costs.

Every future walks the same grid of time; in each of its intervals machines are lost in events,
come back, are paid for and train, all futures side by side in arrays. What the life cycle does to
the clock is summed up in a few pauses (``Response``), which the simulator of single runs and real
runs measure. What is believed of the hazards is drawn anew for every future, so doubt about them
widens the fan as much as chance does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.evidence import Place
from sailor.planner.hazard import Hazard

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_INTERVAL_S, MOST_INTERVALS = 60.0, 4000
FAN_POINTS = 200  # moments at which the fan's quantiles are taken
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    """Machines held, or wished for, in one place. Prices in US dollars per machine-hour.

    ``worth`` is how much one of them trains compared with the machines ``Setup.rates`` counts.
    """

    place: Place
    machines: int
    price_per_hour: float
    hazard: Hazard
    worth: float = 1.0

    def __post_init__(self) -> None:
        if self.machines < 1 or self.price_per_hour < 0:
            raise ValueError("a stand has machines, and a price that is not negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What machines that come and go cost everybody. Seconds.

    ``loss_s`` from a loss to the first step after it, with detection; ``join_s`` for taking a
    machine in. Of a step under way half is lost on average. ``overhead`` is the share of time that
    snapshots and the like take. ``spread_s``: machines of one event go within so many seconds.
    """

    loss_s: float
    join_s: float
    boot_s: float
    overhead: float = 0.0
    spread_s: float = 180.0
    redone_share: float = 0.0  # further share of time that is done again, see risk.py

    def __post_init__(self) -> None:
        if min(self.loss_s, self.join_s, self.boot_s, self.overhead, self.spread_s) < 0:
            raise ValueError("a negative duration")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A job on some stands. ``rates[n]``: samples per second of n machines, from 0; ``step_s[n]``
    the seconds of a step then. ``start_s`` passes before the first step."""

    stands: Sequence[Stand]
    rates: Sequence[float]
    step_s: Sequence[float]
    samples: float
    response: Response
    start_s: float = 0.0
    standbys: int = 0

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.step_s) or not self.rates:
            raise ValueError("a rate and a step for every number of machines")
        if self.samples <= 0:
            raise ValueError("a job has samples to train")


@dataclass(frozen=True, kw_only=True)
class Futures:
    """What came of them. Never finished within the horizon: infinite hours; dollars run on."""

    finish_hours: Floats
    finish_dollars: Floats
    grid_hours: Floats
    done: Floats  # (quantile, time): share of the job done
    dollars: Floats  # (quantile, time): spent, until its end
    quantiles: tuple[float, ...] = QUANTILES
    mean_machines: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def chance(self, *, dollars: float = inf, hours: float = inf) -> float:
        """Share of the futures that finish within both."""
        within = (self.finish_hours <= hours) & (self.finish_dollars <= dollars)
        return float((within & np.isfinite(self.finish_hours)).mean())

    def hours_at(self, share: float) -> float:
        """Hours that this share of futures needs at most."""
        return float(np.quantile(self.finish_hours, share, method="higher"))

    def dollars_at(self, share: float) -> float:
        """Dollars that this share of futures needs at most."""
        return float(np.quantile(self.finish_dollars, share, method="higher"))


def imagine(
    setup: Setup, *, horizon_hours: float, number: int = 2000, seed: int = 0,
    most_intervals: int = MOST_INTERVALS,
) -> Futures:  # fmt: skip
    """Draw ``number`` futures of at most ``horizon_hours``. The same seed draws the same ones.

    Time is walked in at most ``most_intervals``: fewer cost less and are less exact.
    """
    if horizon_hours <= 0 or number < 1 or most_intervals < 1:
        raise ValueError("futures need a horizon, a number and an interval")
    interval_s = max(LEAST_INTERVAL_S, horizon_hours * 3600.0 / most_intervals)
    chance = np.random.default_rng(seed)
    return _Walk(setup, horizon_hours * 3600.0, number, chance, interval_s=interval_s).run()


class _Walk:
    """All futures on one clock. Arrays are (future, stand) or (future,)."""

    def __init__(
        self, setup: Setup, horizon_s: float, number: int, chance: np.random.Generator, *,
        interval_s: float,
    ) -> None:  # fmt: skip
        self.setup, self.horizon_s, self.number, self.chance = setup, horizon_s, number, chance
        self.interval_s = interval_s
        stands = setup.stands
        self.size = np.array([s.machines for s in stands], dtype=np.int64)
        self.price = np.array([s.price_per_hour for s in stands])
        self.worth = np.array([s.worth for s in stands])
        hazards = [s.hazard for s in stands]
        shape = np.array([h.shape for h in hazards])
        scale = np.array([1.0 / h.rate for h in hazards])
        self.mu = chance.gamma(np.maximum(shape, 1e-12), scale, (number, len(stands)))
        self.mu[:, shape == 0] = 0.0
        self.bulk = np.array([h.mean_bulk for h in hazards])
        self.outage_share = np.array([h.outage_share for h in hazards])
        self.outage_s = np.array([h.outage_hours * 3600 for h in hazards])
        self.return_s = np.array([max(h.return_hours * 3600, 1.0) for h in hazards])
        self.rates = np.asarray(setup.rates, dtype=np.float64)
        self.steps = np.asarray(setup.step_s, dtype=np.float64)

    def run(self) -> Futures:
        setup, dt = self.setup, self.interval_s
        count = int(np.ceil(self.horizon_s / dt))
        up = np.tile(self.size, (self.number, 1))
        booting = np.zeros_like(up)
        missing = np.zeros_like(up)
        shut_s = np.zeros(up.shape)
        debt_s = np.full(self.number, setup.response.boot_s + setup.start_s)
        work = np.zeros(self.number)
        spent = np.zeros(self.number)
        finish_s = np.full(self.number, np.inf)
        every = max(1, count // FAN_POINTS)
        nothing = np.zeros(len(QUANTILES))
        grid, done, money = [0.0], [nothing], [nothing]
        machines = 0.0
        for i in range(count):
            lost = self._lose(up, shut_s)
            up -= lost
            joined = booting
            came = self._return(missing, shut_s)
            missing += lost - came
            up, booting = up + joined, came
            debt_s += self._pauses(up, lost, joined)
            useful_s = np.maximum(0.0, dt - debt_s)
            debt_s = np.maximum(0.0, debt_s - dt)
            # On average over the interval: losses fall in its middle; who came in the middle of
            # the one before has booted boot_s later.
            late = 1.5 - setup.response.boot_s / dt - 1.0
            rate = self._rate(up + 0.5 * lost + late * joined)
            gained = rate * useful_s * (1.0 - setup.response.overhead)
            gained *= 1.0 - setup.response.redone_share
            dollars = ((up + booting) @ self.price) * (dt / 3600)
            running = np.isinf(finish_s)
            ends = running & (work + gained >= setup.samples)
            # Within its last interval a run ends when the rest is done.
            part = np.zeros(self.number)
            np.divide(setup.samples - work, gained, out=part, where=ends & (gained > 0))
            finish_s[ends] = (i + part[ends]) * dt
            spent += np.where(running, dollars * np.where(ends, part, 1.0), 0.0)
            work += np.where(running, gained, 0.0)
            machines += float(up.sum())
            over = not np.isinf(finish_s).any()
            if (i + 1) % every == 0 or over or i + 1 == count:
                grid.append((i + 1) * dt / 3600)
                done.append(np.quantile(np.minimum(work / setup.samples, 1.0), QUANTILES))
                money.append(np.quantile(spent, QUANTILES))
            if over:
                count = i + 1
                break
        return Futures(
            finish_hours=finish_s / 3600,
            finish_dollars=spent,
            grid_hours=np.array(grid),
            done=np.array(done).T,
            dollars=np.array(money).T,
            mean_machines=machines / (count * self.number),
        )

    def _lose(self, up: Ints, shut_s: Floats) -> Ints:
        """Machines lost by stand in one interval."""
        events = self.chance.poisson(self.mu * up * (self.interval_s / 3600))
        lost = events.copy()
        hit = np.nonzero(events)
        if len(hit[0]):
            number = events[hit]
            stand = hit[1]
            # k bulks of mean m, each at least one: k + NegativeBinomial(k, 1 / m).
            extra = self.chance.negative_binomial(number, 1.0 / self.bulk[stand])
            taken = number + extra
            outage = (
                self.chance.random(len(number)) < 1.0 - (1.0 - self.outage_share[stand]) ** number
            )
            taken = np.where(outage, up[hit], np.minimum(taken, up[hit]))
            lost[hit] = taken
            shut = self.chance.exponential(self.outage_s[stand])
            shut_s[hit] = np.where(outage, np.maximum(shut_s[hit], shut), shut_s[hit])
        return np.minimum(lost, up)

    def _return(self, missing: Ints, shut_s: Floats) -> Ints:
        """Machines that can be had again in one interval; none while a place is shut."""
        open_s = np.clip(self.interval_s - shut_s, 0.0, None)
        np.maximum(shut_s - self.interval_s, 0.0, out=shut_s)
        if not missing.any():
            return np.zeros_like(missing)
        came: Ints = self.chance.binomial(missing, -np.expm1(-open_s / self.return_s))
        return came

    def _rate(self, up: Floats) -> Floats:
        """Samples per second of the machines that are up, standbys left out.

        With fewer than the job needs, standbys train too. Between two whole numbers, in between.
        """
        everybody = np.maximum(up @ self.worth, 0.0)
        grid = np.arange(len(self.rates))
        rate: Floats = np.interp(np.maximum(everybody - self.setup.standbys, 0.0), grid, self.rates)
        if self.setup.standbys:
            rate = np.where(rate > 0, rate, np.interp(everybody, grid, self.rates))
        return rate

    def _pauses(self, up: Ints, lost: Ints, joined: Ints) -> Floats:
        """Seconds that everybody stands still for what happened in an interval.

        k machines that go at random moments of S seconds, each stopping everybody for P, stop them
        for (S + P) (1 - (1 - P / (S + P))^k) in all: the expected length of the union.
        """
        response = self.setup.response
        pauses: Floats = np.zeros(self.number)
        if lost.any():
            index = np.clip(up @ self.worth, 0, len(self.steps) - 1).astype(np.int64)
            steps = np.where(np.isfinite(self.steps[index]), self.steps[index], 0.0)
            pause = (response.loss_s + steps / 2)[:, None]
            window = response.spread_s + pause
            share = np.divide(pause, window, out=np.ones_like(pause), where=window > 0)
            pauses += (window * (1.0 - (1.0 - share) ** lost)).sum(axis=1)
        if joined.any():
            pauses += (joined > 0).sum(axis=1) * response.join_s
        return pauses
