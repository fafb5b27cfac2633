"""From a configuration to what is simulated: the plan, the machines that come and go, their costs.

Shared by action=simulate and the goodput benchmark. Everything here is read from the configuration,
the catalogue and files of traces; what becomes of it is worked out in ``sailor/simulate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from actions.domain import HERE
from actions.fleets import recruited
from actions.hazards import beliefs
from actions.planning import Question, question
from actions.prospects import LINK_SHARE, STATE_BYTES, answered, guard_with
from provision.outlook import Place as Offered
from provision.spot_model import RATES, ZoneModel, draw
from provision.trace import Trace, merge, read_trace
from sailor.cluster.network import Network
from sailor.cluster.pool import Offer, Zone
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.observe.events import read_events
from sailor.observe.history import replay
from sailor.planner.evidence import Place, observe
from sailor.planner.hazard import NEVER, PRIOR, Hazard
from sailor.planner.question import Candidate
from sailor.planner.risk import Guard, Pay
from sailor.simulate.costs import Costs, measured, stated
from sailor.simulate.fleet import Fleet
from sailor.simulate.goodput import Scene, Size
from sailor.simulate.job import Job
from sailor.simulate.pace import PlannedSpeeds
from sailor.units import parse_seconds


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A plan and the world it is put into. Values; the expensive ones are made when asked for."""

    config: Config
    asked: Question
    chosen: Candidate
    kind: str  # machine type
    trace: Trace
    offers: Mapping[Offered, Offer]
    target: int
    costs: Costs
    notes: tuple[str, ...] = ()

    @property
    def gpus_per_machine(self) -> int:
        """GPUs of the machine type."""
        return self.asked.catalogue.network.machine_types[self.kind].num_gpus

    @property
    def size(self) -> Size:
        """The job's size."""
        parameters = self.asked.spec.num_parameters
        return Size(
            parameters=parameters, num_gpus=self.target * self.gpus_per_machine,
            state_bytes=parameters * STATE_BYTES,
        )  # fmt: skip

    @cached_property
    def speeds(self) -> PlannedSpeeds:
        """What machines make of the job, by the planner of the run."""
        return PlannedSpeeds(
            self.asked.replanner(self.chosen.plan),
            step_seconds=self.asked.step_seconds,
            gpus={
                name: m.num_gpus for name, m in self.asked.catalogue.network.machine_types.items()
            },
            num_layers=self.asked.spec.num_layers,
            twin=_twins(self.asked.catalogue.network, self.trace),
            grain=max(1, self.target // 32),
        )

    @property
    def depth(self) -> int:
        """Machines that hold one copy of the state together, in the plan."""
        plan = self.chosen.plan
        return max(1, round(self.target / max(1, len(plan.replicas))))

    @property
    def total_samples(self) -> float:
        """The whole job."""
        tokens = self.asked.job.total_tokens or 0.0
        return tokens / self.asked.job.sequence_length

    @property
    def prices(self) -> dict[Place, float]:
        """Dollars per machine-hour of the places asked first."""
        return {
            (zone, kind): offer.price_per_hour
            for (zone, kind, spot), offer in self.offers.items()
            if spot
        }

    def job(self, *, snapshot_every: int) -> Job:
        """The job as the simulated world takes it, without an end."""
        return Job(
            samples_per_step=self.asked.job.global_batch_size,
            state_bytes=self.size.state_bytes,
            snapshot_every=snapshot_every,
            persist_every=self.config.checkpoint.persist_every,
        )

    def fleet(self, *, zones: Sequence[str] | None = None) -> Fleet:
        """The machines the run's own recruiting holds on this trace, or on some of its zones."""
        trace, offers = self.trace, {p: o for p, o in self.offers.items() if p[2]}
        if zones is not None:
            trace = replace(trace, events=tuple(e for e in trace.events if e.zone in zones))
            offers = {p: o for p, o in offers.items() if p[0] in zones}
        return recruited(
            trace, offers=offers, target=self.target,
            boot_s=self.costs.boot_s, gain_of=self._gain, seed=self.config.seed,
        )  # fmt: skip

    def scene(self, fleet: Fleet, *, snapshot_every: int) -> Scene:
        """What all policies meet."""
        return Scene(
            fleet=fleet, speeds=self.speeds, job=self.job(snapshot_every=snapshot_every),
            detect_s=self.costs.detect_s,
        )  # fmt: skip

    def speed(self, counts: Mapping[Place, int]) -> tuple[float, float] | None:
        """(samples per second, seconds a step) of so many machines."""
        pace = self.speeds.best(counts)
        if pace is None:
            return None
        return self.asked.job.global_batch_size / pace.step_seconds, pace.step_seconds

    def _gain(self, members: Mapping[Place, int]) -> Callable[[Offered], float]:
        here = self.speed({p: n for p, n in members.items() if n})
        now = here[0] if here else 0.0

        def of(place: Offered) -> float:
            more = {p: n for p, n in members.items() if n}
            more[place[:2]] = more.get(place[:2], 0) + 1
            then = self.speed(more)
            # A machine of the planned kind is of some use even where one alone adds nothing.
            return max(1e-6, (then[0] if then else 0.0) - now)

        return of

    def hazards(self) -> dict[Place, Hazard]:
        """What is believed of each place after the trace so far, from the prior and its price."""
        seen = observe(self.trace.events, seconds=self.trace.seconds)
        believed = beliefs(self.offers.values(), preempted={}, evidence=seen)
        factor = self.config.simulate.hazard_factor
        return {
            place: replace(hazard, rate=hazard.rate / factor)
            if factor not in (0.0, 1.0)
            else hazard
            for place, hazard in believed.items()
        }

    def pays(self) -> list[Pay]:
        """Every place the job may stand in, spot and on demand."""
        hazards, factor = self.hazards(), self.config.simulate.price_factor
        found = []
        for (zone, kind, spot), offer in sorted(self.offers.items()):
            hazard = hazards.get((zone, kind), PRIOR) if spot else NEVER
            price = offer.price_per_hour * (factor if spot else 1.0)
            found.append(
                Pay(place=(zone, kind), machines=min(offer.count, self.target),
                    price_per_hour=price, hazard=hazard)
            )  # fmt: skip
        return found

    def guard(self) -> Guard:
        """What the spot-aware choice has to know of the job and its costs."""
        return guard_with(
            self.costs, samples=self.total_samples, machines=self.target, depth=self.depth,
            state_bytes=self.size.state_bytes, persist_every=self.config.checkpoint.persist_every,
        )  # fmt: skip


def setting(config: Config) -> Setting:
    """The world of a configuration. Raises what planning raises, DataError E506 for a trace that
    cannot be read and ConfigError E102 for zones, rates or a run folder that do not exist."""
    asked = question(config)
    chosen = answered(asked)[0].best
    rental = max(chosen.rentals, key=lambda r: r.num_machines)
    kind = rental.offer.machine_type.name
    target = config.simulate.machines or sum(r.num_machines for r in chosen.rentals)
    trace, notes = trace_for(config, kind=kind, machines=target, zones=_zones(asked, kind))
    asked, offers, more = with_zones(asked, trace, kind=kind, near=rental.offer, target=target)
    machine = asked.catalogue.network.machine_types[kind]
    link = LINK_SHARE * machine.network_bytes_per_second
    return Setting(
        config=config,
        asked=asked,
        chosen=chosen,
        kind=kind,
        trace=trace,
        offers=offers,
        target=target,
        costs=costs_for(config, machines=target, link_bytes_per_second=link),
        notes=(*trace.notes, *notes, *more),
    )


def costs_for(config: Config, *, machines: int, link_bytes_per_second: float) -> Costs:
    """Measured in a run, where one is named; else published figures for a cloud's machines."""
    if config.simulate.costs is None:
        return stated(num_nodes=machines, link_bytes_per_second=link_bytes_per_second)
    path = Path(config.simulate.costs).expanduser() / "events.jsonl"
    try:
        return measured(replay(read_events(path)))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"no costs can be measured in {path.parent}",
            code="E102",
            why="it has no log of a run" if isinstance(error, FileNotFoundError) else str(error),
            where="simulate.costs",
            fix="python run.py   then simulate.costs=runs/NAME",
        ) from error


def trace_for(
    config: Config, *, kind: str, machines: int, zones: Sequence[str]
) -> tuple[Trace, tuple[str, ...]]:
    """The trace the machines follow, and notes on it. Drawn where no file is given."""
    wish = config.cloud.trace
    seconds, begin = parse_seconds(config.simulate.length), parse_seconds(wish.begin)
    notes: list[str] = []
    if wish.paths:
        trace = merge(
            [read_trace(Path(path).expanduser(), machine_type=kind) for path in wish.paths]
        ).placed(lambda place: (place[0], kind))
        unknown = set(config.cloud.zones) - {zone for zone, _ in trace.places}
        if config.cloud.name not in HERE and unknown:
            raise ConfigError(
                f"the trace has no zone {', '.join(sorted(unknown))}",
                code="E102",
                why="it has " + ", ".join(zone for zone, _ in trace.places),
                where="cloud.zones, cloud.trace.paths",
                fix="cloud.zones=[]",
            )
        if begin >= trace.seconds:
            raise ConfigError(
                f"the trace is over before cloud.trace.begin={wish.begin}", code="E104",
                why=f"{trace.source} is {trace.seconds:,.0f} s long", fix="cloud.trace.begin=0s",
            )  # fmt: skip
        if trace.seconds < begin + seconds:
            notes.append(f"the trace ends after {trace.seconds / 3600:.1f} h")
        trace = trace.cut(begin, min(begin + seconds, trace.seconds))
    else:
        trace = _drawn(config, kind=kind, machines=machines, zones=zones, seconds=seconds)
    if wish.notice is not None:
        trace = trace.announced(parse_seconds(wish.notice))
    return trace, tuple(notes)


def _drawn(
    config: Config, *, kind: str, machines: int, zones: Sequence[str], seconds: float
) -> Trace:
    wish = config.cloud.trace
    if wish.rates not in RATES:
        raise ConfigError(
            f"there are no rates {wish.rates!r}", code="E102",
            why="rates are measured on: "
            + "; ".join(f"{name}, {rates.source}" for name, rates in RATES.items()),
            where=f"cloud.trace.rates={wish.rates}", fix=f"cloud.trace.rates={next(iter(RATES))}",
        )  # fmt: skip
    rates = RATES[wish.rates]
    factor = config.simulate.hazard_factor
    models = [
        ZoneModel(
            zone=zone,
            machine_type=kind,
            machines=machines,
            node_hours_per_loss=rates.node_hours_per_loss / factor if factor else 1e12,
            mean_bulk=rates.mean_bulk,
            outage_share=0.03,
        )
        for zone in zones[: wish.zones]
    ]
    return draw(models, seconds=seconds, seed=config.seed)


def _zones(asked: Question, kind: str) -> list[str]:
    """Zones that offer the machine type as spot, cheapest first."""
    offers = [o for o in asked.catalogue.pool.offers if o.machine_type.name == kind]
    spot = [o for o in offers if o.spot] or offers
    return list(dict.fromkeys(o.zone.name for o in sorted(spot, key=lambda o: o.price_per_hour)))


def _twins(network: Network, trace: Trace) -> dict[str, str]:
    """Zone -> the first zone of the trace in the same region: links between them are as wide."""
    firsts: dict[tuple[str, str, str], str] = {}
    twins = {}
    for name, _ in trace.places:
        zone = network.zones[name]
        twins[name] = firsts.setdefault((zone.cloud, zone.region, zone.network), name)
    return twins


def with_zones(
    asked: Question, trace: Trace, *, kind: str, near: Offer, target: int
) -> tuple[Question, dict[Offered, Offer], tuple[str, ...]]:
    """Offers in every zone of the trace, and a network that knows them.

    A zone the catalogue does not have is taken for one more of the plan's region, at its price.
    """
    network = asked.catalogue.network
    zones, offers, strange = dict(network.zones), dict[Offered, Offer](), []
    for zone, _ in trace.places:
        known = [
            o for o in asked.catalogue.pool.offers
            if o.zone.name == zone and o.machine_type.name == kind
        ]  # fmt: skip
        if not known:
            strange.append(zone)
            place = Zone(name=zone, region=near.zone.region, cloud=near.zone.cloud,
                         network=near.zone.network)  # fmt: skip
            zones[zone] = place
            twins = [
                o for o in asked.catalogue.pool.offers
                if o.zone == near.zone and o.machine_type.name == kind
            ]  # fmt: skip
            known = [replace(offer, zone=place) for offer in twins]
        for offer in known:
            offers[zone, kind, offer.spot] = replace(offer, count=target)
    notes: tuple[str, ...] = ()
    if strange:
        notes = (
            f"{', '.join(strange)}: not in the catalogue, taken for zones of "
            f"{near.zone.region} at {near.zone.name}'s price",
        )
    catalogue = replace(
        asked.catalogue,
        network=Network(zones=zones, machine_types=network.machine_types, tariffs=network.tariffs),
    )
    return replace(asked, catalogue=catalogue), offers, notes
