"""What to rent and how to guard it when machines may vanish: the spot-aware choice.

Four things are chosen together, for each changes the others' worth: where the machines stand (how
many in which place, some of them on demand), how many stand by, how often snapshots are taken and
whether every machine's is copied to another. Every option gets an expected price per sample from
formulas (``expect``); the best few are then lived through thousands of times (``futures.py``) for
their P50 and P90 and for the chance to keep a budget and a deadline.

The formulas treat a place as machines that are lost at rate lambda and come back after r hours: a
share 1 / (1 + lambda r) of them is up, less the share of time that outages shut it. Each loss stops
everybody for the pause and half a step. A snapshot every k steps costs its stall; it is needed
where a loss takes every live owner of some part of the model, and half of k steps is then redone,

    waste(k) = stall / (k step) + need k step / 2    ->    k = sqrt(2 stall / need) / step

which is Young's interval (1974) with the rate of losses that need a copy in place of all losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, comb, inf, sqrt

from sailor.planner.evidence import Place
from sailor.planner.futures import MOST_INTERVALS, Futures, Response, Setup, Stand, imagine
from sailor.planner.hazard import Hazard


@dataclass(frozen=True, kw_only=True, slots=True)
class Pay:
    """What machines of one place are offered at, and how likely they are to be lost.

    ``machines``: the most to be had. A place may be offered twice, on demand with hazard NEVER.
    """

    place: Place
    machines: int
    price_per_hour: float
    hazard: Hazard

    @property
    def on_demand(self) -> bool:
        """Whether its machines stay."""
        return not self.hazard.shape


Speed = Callable[[Mapping[Place, int]], tuple[float, float] | None]
"""(samples per second, seconds a step) of so many machines in these places; None: too few."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What the choice is about besides places. Seconds, bytes, bytes per second.

    ``start_s``: before the first step and after the last one, where machines are paid for.
    """

    samples: float
    machines: int  # wished for in all
    depth: int  # machines that hold one copy of the state together
    state_bytes: float
    response: Response  # its overhead and redone_share are filled in here
    standby_loss_s: float  # the pause when a warm standby takes the place
    start_s: float
    snapshot_stall_s: float
    persist_every: int
    link_bytes_per_second: float
    storage_bytes_per_second: float
    most_standbys: int = 2
    persist_stall_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One option, with what is expected of it. ``dollars_per_sample`` inf: it never gets there."""

    stands: tuple[Stand, ...]
    standbys: int
    snapshot_every: int
    copies: int
    samples_per_second: float
    dollars_per_hour: float
    redone_share: float
    overhead: float
    pause_share: float
    notes: tuple[str, ...] = ()

    @property
    def dollars_per_sample(self) -> float:
        """What a useful sample is expected to cost."""
        if self.samples_per_second <= 0:
            return inf
        return self.dollars_per_hour / 3600 / self.samples_per_second

    @property
    def num_machines(self) -> int:
        """Wished for in all."""
        return sum(stand.machines for stand in self.stands)

    def describe(self) -> str:
        """One line."""
        where = " + ".join(
            f"{s.machines} x {s.place[1]} in {s.place[0]}"
            + ("" if s.hazard.shape else " on demand")
            for s in self.stands
        )
        return (
            f"{where}, {self.standbys} standby, snapshot every {self.snapshot_every} steps, "
            f"{self.copies} copies"
        )


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A choice that was lived through."""

    choice: Choice
    futures: Futures

    @property
    def dollars(self) -> tuple[float, float]:
        """P50 and P90 of the whole job's price."""
        return self.futures.dollars_at(0.5), self.futures.dollars_at(0.9)

    @property
    def hours(self) -> tuple[float, float]:
        """P50 and P90 of its time."""
        return self.futures.hours_at(0.5), self.futures.hours_at(0.9)


def options(offers: Sequence[Pay], *, machines: int, depth: int) -> Iterator[tuple[Stand, ...]]:
    """Ways to place the machines: one place, or evenly over up to four, spot or on demand, and
    spot with one copy of the state on demand."""
    spot = [offer for offer in offers if not offer.on_demand]
    sure = [offer for offer in offers if offer.on_demand]
    for group in (spot, sure):
        for number in range(1, min(4, len(group)) + 1):
            for places in combinations(group, number):
                stands = _even(places, machines)
                if stands:
                    yield stands
    for anchor in sure:
        if anchor.machines < depth or machines <= depth:
            continue
        for number in range(1, min(3, len(spot)) + 1):
            for places in combinations(spot, number):
                rest = _even(places, machines - depth)
                if rest:
                    yield (_stand(anchor, depth), *rest)


def _even(places: Sequence[Pay], machines: int) -> tuple[Stand, ...]:
    """As even as their capacities allow; nothing when a place would get no machine."""
    if machines < len(places):
        return ()
    shares = [machines // len(places) + (i < machines % len(places)) for i in range(len(places))]
    stands = tuple(
        _stand(place, min(share, place.machines))
        for place, share in zip(places, shares, strict=True)
        if min(share, place.machines) > 0
    )
    return stands if len(stands) == len(places) else ()


def _stand(offer: Pay, machines: int) -> Stand:
    return Stand(
        place=offer.place, machines=machines, price_per_hour=offer.price_per_hour,
        hazard=offer.hazard,
    )  # fmt: skip


def expect(
    stands: Sequence[Stand], guard: Guard, speed: Speed, *, standbys: int, copies: int
) -> Choice:
    """The steady state of an option, by the formulas of the module."""
    up = {i: stand.machines * up_share(stand.hazard) for i, stand in enumerate(stands)}
    total = sum(up.values())
    # What a place has taken back is not paid for.
    open_share = [_outage_up_share(s.hazard, s.machines) for s in stands]
    dollars = sum(up[i] * s.price_per_hour * open_share[i] for i, s in enumerate(stands))
    at = _speed_between(stands, up, speed, standbys)
    losses = sum(up[i] * _lost_per_hour(s.hazard, s.machines) for i, s in enumerate(stands))
    if at is None or total <= 0:
        return Choice(
            stands=tuple(stands), standbys=standbys, snapshot_every=1, copies=copies,
            samples_per_second=0.0, dollars_per_hour=dollars, redone_share=0.0, overhead=0.0,
            pause_share=1.0, notes=("too few machines are expected to be up",),
        )  # fmt: skip
    rate, step_s = at
    pause_s = (guard.standby_loss_s if standbys else guard.response.loss_s) + step_s / 2
    per_loss = pause_s + guard.response.join_s
    pauses = min(1.0, losses * per_loss / 3600)
    in_memory, from_disk = needs(stands, up, guard.depth, copies=copies)
    every, overhead = snapshot_interval(guard, step_s=step_s, need_per_hour=in_memory,
                                        copied=bool(in_memory))  # fmt: skip
    load_s = guard.state_bytes / max(1, guard.depth) / guard.storage_bytes_per_second
    redone = (
        in_memory * every * step_s / 2 + from_disk * (guard.persist_every * step_s / 2 + load_s)
    ) / 3600
    useful = max(0.0, 1.0 - pauses) * max(0.0, 1.0 - overhead) * max(0.0, 1.0 - redone)
    return Choice(
        stands=tuple(stands), standbys=standbys, snapshot_every=every, copies=copies,
        samples_per_second=rate * useful, dollars_per_hour=dollars,
        redone_share=min(1.0, redone), overhead=overhead, pause_share=pauses,
    )  # fmt: skip


def up_share(hazard: Hazard) -> float:
    """Share of a place's machines that is up in the long run."""
    single = hazard.events_per_machine_hour * hazard.mean_bulk * (1.0 - hazard.outage_share)
    return 1.0 / (1.0 + single * hazard.return_hours)


def _outage_up_share(hazard: Hazard, machines: int) -> float:
    rate = hazard.events_per_machine_hour * machines * hazard.outage_share
    return 1.0 / (1.0 + rate * (hazard.outage_hours + hazard.return_hours))


def _lost_per_hour(hazard: Hazard, machines: int) -> float:
    """Machines lost per machine-hour, outages of a place counted as one stop."""
    usual = hazard.mean_bulk * (1.0 - hazard.outage_share)
    return hazard.events_per_machine_hour * (usual + hazard.outage_share)


def _speed_between(
    stands: Sequence[Stand], up: Mapping[int, float], speed: Speed, standbys: int
) -> tuple[float, float] | None:
    """The mean speed of a fractional crowd: with and without each place's outages."""
    rate = step = weight = 0.0
    shut = [1.0 - _outage_up_share(s.hazard, s.machines) for s in stands]
    for gone in [None, *range(len(stands))]:
        chance = 1.0
        for i, s in enumerate(shut):
            chance *= s if i == gone else 1.0 - s
        at = _fractional(
            stands, {i: 0.0 if i == gone else n for i, n in up.items()}, standbys, speed
        )
        if at is not None:
            rate += chance * at[0]
            step += chance * at[1]
            weight += chance
    return (rate, step / weight) if weight > 0 and rate > 0 else None


def _fractional(
    stands: Sequence[Stand], up: Mapping[int, float], standbys: int, speed: Speed
) -> tuple[float, float] | None:
    """Between the whole numbers of machines below and above, the places in proportion."""
    total = sum(up.values())
    below = int(total + 1e-9)
    part = min(1.0, max(0.0, total - below))
    low = _best(_whole(stands, up, below), standbys, speed)
    high = _best(_whole(stands, up, below + 1), standbys, speed) if part > 1e-9 else low
    if high is None:
        return None
    if low is None:  # too few to train at all, for the rest of the time
        return part * high[0], high[1]
    return low[0] + part * (high[0] - low[0]), low[1] + part * (high[1] - low[1])


def _whole(stands: Sequence[Stand], up: Mapping[int, float], number: int) -> dict[Place, int]:
    """So many machines, shared out as ``up`` is; the largest remainders get the rest."""
    total = sum(up.values()) or 1.0
    exact = [up[i] * number / total for i in range(len(stands))]
    given = [int(x) for x in exact]
    order = sorted(range(len(stands)), key=lambda i: (given[i] - exact[i], i))
    for i in order[: number - sum(given)]:
        given[i] += 1
    counts: dict[Place, int] = {}
    for stand, machines in zip(stands, given, strict=True):
        counts[stand.place] = counts.get(stand.place, 0) + machines
    return counts


def _best(counts: Mapping[Place, int], standbys: int, speed: Speed) -> tuple[float, float] | None:
    left = dict(counts)
    for _ in range(min(standbys, sum(left.values()))):
        left[max(left, key=lambda place: (left[place], place))] -= 1
    return speed({p: n for p, n in left.items() if n}) or speed(
        {p: n for p, n in counts.items() if n}
    )


def needs(
    stands: Sequence[Stand], up: Mapping[int, float], depth: int, *, copies: int
) -> tuple[float, float]:
    """Events per hour after which some part of the model has no live owner: those that a copy in
    memory mends, and those that only a durable checkpoint does.

    An event takes machines of one place. If the other places together hold a whole copy, it takes
    nothing. Else it is an outage, or a bulk of at least as many machines as a part has owners that
    happens to be them; a copy kept in another place survives it, one in the same place does not
    survive an outage.
    """
    in_memory = from_disk = 0.0
    total = sum(up.values())
    for i, stand in enumerate(stands):
        hazard = stand.hazard
        events = hazard.events_per_machine_hour * up[i]
        if not events or total - up[i] >= depth:
            continue
        bulk = (1.0 - hazard.outage_share) * _all_owners(
            hazard.mean_bulk, machines=max(1, round(up[i])), depth=depth
        )
        elsewhere = total - up[i] > 0 and len({s.place for s in stands}) > 1
        single_owner = round(total) // max(1, depth) <= 1
        kept = copies or single_owner
        if kept and elsewhere:
            in_memory += events * (bulk + hazard.outage_share)
        elif kept:
            in_memory += events * bulk
            from_disk += events * hazard.outage_share
        else:
            from_disk += events * (bulk + hazard.outage_share)
    return in_memory, from_disk


def _all_owners(mean_bulk: float, *, machines: int, depth: int) -> float:
    """Chance that a bulk takes every owner of some part. Sizes are geometric."""
    owners = max(1, machines // depth)
    parts = min(depth, machines)
    chance, q = 0.0, 1.0 - 1.0 / mean_bulk
    for size in range(owners, machines + 1):
        weight = q ** (size - 1) * (1.0 - q)
        if weight < 1e-12:
            break
        hit = comb(machines - owners, size - owners) / comb(machines, size)
        chance += weight * min(1.0, parts * hit)
    return min(1.0, chance)


def snapshot_interval(
    guard: Guard, *, step_s: float, need_per_hour: float, copied: bool
) -> tuple[int, float]:
    """(steps between snapshots, share of time that they and durable ones cost). Not more often than
    copies can travel, and never more rarely than durable ones, which are written from them."""
    least = 1
    if copied:
        travel_s = guard.state_bytes / max(1, guard.depth) / guard.link_bytes_per_second
        least = max(1, ceil(travel_s / step_s))
    most = max(least, guard.persist_every)
    if need_per_hour <= 0 or not guard.snapshot_stall_s:
        every = most if guard.snapshot_stall_s else least
    else:
        every = round(sqrt(2.0 * guard.snapshot_stall_s * 3600 / need_per_hour) / step_s)
    every = min(max(every, least), most)
    durable = guard.persist_stall_s / (max(1, guard.persist_every) * step_s)
    return every, guard.snapshot_stall_s / (every * step_s) + durable


def rank(offers: Sequence[Pay], guard: Guard, speed: Speed) -> tuple[Choice, ...]:
    """All options by their expected dollars per useful sample, cheapest first."""
    found = [
        expect(stands, guard, speed, standbys=standbys, copies=copies)
        for stands in options(offers, machines=guard.machines, depth=guard.depth)
        for standbys in range(guard.most_standbys + 1)
        for copies in (0, 1)
    ]
    return tuple(
        sorted(found, key=lambda c: (c.dollars_per_sample, c.standbys, c.copies, c.describe()))
    )


def setup_of(choice: Choice, guard: Guard, speed: Speed) -> Setup:
    """A choice as futures take it: speeds by number of machines, spread as the stands are."""
    total = choice.num_machines
    rates, steps = [0.0], [inf]
    for number in range(1, total + 1):
        counts: dict[Place, int] = {}
        given = 0
        for i, stand in enumerate(choice.stands):
            share = number * stand.machines // total
            counts[stand.place] = counts.get(stand.place, 0) + share
            given += share
            if i == len(choice.stands) - 1:
                counts[stand.place] += number - given
        at = speed({p: n for p, n in counts.items() if n})
        rates.append(at[0] if at is not None else 0.0)
        steps.append(at[1] if at is not None else inf)
    loss_s = guard.standby_loss_s if choice.standbys else guard.response.loss_s
    return Setup(
        stands=choice.stands,
        rates=rates,
        step_s=steps,
        samples=guard.samples,
        response=replace(
            guard.response, loss_s=loss_s, overhead=choice.overhead,
            redone_share=min(0.99, choice.redone_share),
        ),
        start_s=guard.start_s,
        standbys=choice.standbys,
    )  # fmt: skip


def judge(
    choices: Sequence[Choice],
    guard: Guard,
    speed: Speed,
    *,
    number: int = 2000,
    seed: int = 0,
    horizon_hours: float | None = None,
    most_intervals: int = MOST_INTERVALS,
) -> tuple[Judged, ...]:
    """Live through the choices; the horizon defaults to three times the expected time."""
    judged = []
    for choice in choices:
        if choice.samples_per_second <= 0:
            continue
        expected = guard.samples / choice.samples_per_second / 3600
        horizon = horizon_hours or 3.0 * expected + 1.0
        futures = imagine(
            setup_of(choice, guard, speed), horizon_hours=horizon, number=number, seed=seed,
            most_intervals=most_intervals,
        )  # fmt: skip
        judged.append(Judged(choice=choice, futures=futures))
    return tuple(judged)


def choose(
    offers: Sequence[Pay], guard: Guard, speed: Speed, *, number: int = 2000, seed: int = 0,
    short_list: int = 3,
) -> tuple[Judged, ...]:  # fmt: skip
    """The spot-aware choice first, with P50 and P90, then the next on the short list.

    The order among them is by the mean of dollars over the futures that were lived through. Raises
    ValueError when no option can train at all.
    """
    ranked = [c for c in rank(offers, guard, speed) if c.samples_per_second > 0]
    if not ranked:
        raise ValueError("no way to place the machines can train the job")
    distinct: dict[tuple[Stand, ...], Choice] = {}
    for choice in ranked:
        distinct.setdefault(choice.stands, choice)
    best = list(distinct.values())[:short_list]
    judged = judge(best, guard, speed, number=number, seed=seed)
    return tuple(sorted(judged, key=lambda j: (float(j.futures.finish_dollars.mean()), j.hours)))
