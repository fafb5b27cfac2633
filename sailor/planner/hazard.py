"""How often spot machines are lost, by place: a prior that is shown, and what was seen since.

Losses of a place come as events that take several machines. Events of a place arrive at a rate
``mu`` per machine-hour, which is not known; it has a Gamma distribution, before anything is seen
(the prior) and after E events in H machine-hours,

    mu ~ Gamma(shape a, rate b)   ->   Gamma(a + E, b + H)        (conjugate: BDA3, section 2.6)

so evidence of zero losses lowers the estimate and never makes it zero. Machines per event, waits
for a machine's return and shares of total outages are running means that start at the prior's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sailor.planner.evidence import NOTHING, Evidence, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Hazard:
    """What is believed of a place: the event rate's Gamma, and means of the rest.

    ``shape`` and ``rate`` (machine-hours) are the Gamma's. A hazard of exactly zero is allowed for
    machines that are not taken away: shape 0.
    """

    shape: float
    rate: float
    mean_bulk: float = 1.5
    outage_share: float = 0.03
    outage_hours: float = 1.0
    return_hours: float = 1.0 / 3.0
    weight: float = 2.0  # events and returns that the means above count as
    source: str = ""

    def __post_init__(self) -> None:
        if self.shape < 0 or self.rate <= 0:
            raise ValueError("a Gamma has a shape that is not negative and a positive rate")
        if self.mean_bulk < 1 or not 0 <= self.outage_share <= 1:
            raise ValueError("an event takes at least one machine; an outage share is a share")
        if min(self.outage_hours, self.return_hours) < 0:
            raise ValueError("a wait is a negative duration")

    @property
    def events_per_machine_hour(self) -> float:
        """The mean of the belief."""
        return self.shape / self.rate

    @property
    def machine_hours_per_loss(self) -> float:
        """Machine-hours per lost machine, outages of larger crowds left out; inf when safe."""
        lost = self.events_per_machine_hour * self.mean_bulk
        return 1.0 / lost if lost else float("inf")

    def seen(self, evidence: Evidence) -> Hazard:
        """The belief after the evidence."""
        if not self.shape or evidence == NOTHING:
            return self
        w = self.weight
        usual = evidence.events - evidence.outages  # outages say nothing about usual bulks
        return replace(
            self,
            shape=self.shape + evidence.events,
            rate=self.rate + evidence.machine_hours,
            mean_bulk=max(
                1.0,
                (self.mean_bulk * w + evidence.lost - evidence.outage_lost) / (w + usual),
            ),
            outage_share=(self.outage_share * w + evidence.outages) / (w + evidence.events),
            outage_hours=(self.outage_hours * w + evidence.outage_hours) / (w + evidence.outages),
            return_hours=(self.return_hours * w + evidence.return_hours) / (w + evidence.returns),
            source=f"{self.source}; {evidence.events} events in {evidence.machine_hours:.1f} "
            "machine-hours",
        )

    def describe(self) -> str:
        """One line: the belief and what it rests on."""
        if not self.shape:
            return f"never taken away ({self.source})"
        spread = self.shape**-0.5
        return (
            f"{self.events_per_machine_hour:.3g} loss events per machine-hour (+-{spread:.0%}), "
            f"{self.mean_bulk:.2g} machines each, back after {self.return_hours * 60:.0f} min "
            f"({self.source})"
        )


NEVER = Hazard(shape=0.0, rate=1.0, outage_share=0.0, source="on-demand or reserved")

PRIOR = Hazard(
    shape=0.7,
    rate=7.0,
    source="prior: 0.1 events per machine-hour, worth 0.7 events",
)
"""Before anything is seen. Public traces with machines held until taken: 0.29 events per
machine-hour on AWS p3 (2.11 machines each), 0.35 on g4dn (1.54), 0.13 and 0.048 on two zones of
V100 (1.82, 1.25), 0.1 or less on GCP A100; their middle is 0.1, and all lie within the Gamma's
central 90 %."""


def from_price(prior: Hazard, *, spot: float, on_demand: float) -> Hazard:
    """The prior moved by what spot costs: a dear zone is a crowded one.

    The ratio's median over zones is 0.27 (0.12 to 0.43 for the middle 80 %); the mean moves with
    the square root of ratio / 0.27 and at most by two either way, for no public data ties prices to
    losses more closely. It stays a prior: it is worth no observations.
    """
    if spot <= 0 or on_demand <= 0:
        raise ValueError("a price is not positive")
    factor = min(2.0, max(0.5, (spot / on_demand / 0.27) ** 0.5))
    return replace(
        prior,
        rate=prior.rate / factor,
        source=f"{prior.source}; x{factor:.2f} for a spot price of {spot / on_demand:.0%} of "
        "on-demand",
    )


def from_history(prior: Hazard, *, preempted: float, usual: float) -> Hazard:
    """The prior moved by a cloud's own history: which share of the spot machines that stopped there
    were taken, beside the ``usual`` share of such machines elsewhere. Both in [0, 1].

    Stops are preemptions, at the hazard h, or their owners' doing, at a rate u: the share is
    h / (h + u), so h = u share / (1 - share). Owners are taken to stop as often here as elsewhere;
    because they do not quite, the mean moves by four either way at most. It stays a prior.
    """
    if not (0 <= preempted <= 1 and 0 <= usual <= 1):
        raise ValueError("a share is not between 0 and 1")
    factor = min(4.0, max(0.25, _odds(preempted) / _odds(usual)))
    return replace(
        prior,
        rate=prior.rate / factor,
        source=f"{prior.source}; x{factor:.2f} for {preempted:.0%} of stops being preemptions "
        f"({usual:.0%} elsewhere)",
    )


def _odds(share: float) -> float:
    """Never nothing and never without end: a share is counted from machines."""
    kept = min(0.98, max(0.02, share))
    return kept / (1.0 - kept)


def believe(
    priors: Mapping[Place, Hazard], evidence: Mapping[Place, Evidence]
) -> dict[Place, Hazard]:
    """Every prior after its evidence; places nothing was seen of keep theirs."""
    return {place: prior.seen(evidence.get(place, NOTHING)) for place, prior in priors.items()}
