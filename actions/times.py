"""Which times a plan is made with: data sheets, a measured profile, either scaled by a run.

The scale is one number: how much longer the work of a run's steps took than predicted, links and
host aside, found so that the prediction for that run's plan is what its steps took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from actions.profile import read_profile
from provision.catalog import Catalogue
from sailor.cluster.network import Link, Network, Tier
from sailor.config import Config
from sailor.errors import DataError
from sailor.models.spec import ModelSpec
from sailor.observe.events import read_events
from sailor.observe.history import RunHistory, replay
from sailor.observe.metrics import check_plans
from sailor.plan import Plan
from sailor.planner.estimate import estimate
from sailor.planner.question import Job
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.measured import BadProfile, MeasuredProfile, Measurement
from sailor.profile.profile import Profile

LEAST_STEPS = 5  # of a run, for its step time to mean anything
CALIBRATED_ERROR = 0.15
_SCALES = (1e-3, 1e3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a run trained, and on which machines: those it had, not those that are asked for now."""

    spec: ModelSpec
    job: Job
    network: Network


def data_sheets(spec: ModelSpec, job: Job) -> AnalyticProfile:
    """Times when nothing was measured."""
    return AnalyticProfile(spec=spec, sequence_length=job.sequence_length, numerics=job.numerics)


def known_times(config: Config, spec: ModelSpec, job: Job) -> MeasuredProfile | None:
    """What planner.profile names. Raises DataError E520 when it is for something else."""
    if config.planner.profile is None:
        return None
    path = Path(config.planner.profile).expanduser()
    measurement = read_profile(path)
    try:
        if measurement.sequence_length != job.sequence_length:
            raise BadProfile(
                f"it was measured with sequences of {measurement.sequence_length}, not of "
                f"{job.sequence_length}"
            )
        return MeasuredProfile(
            measurement=measurement, spec=spec, numerics=job.numerics,
            besides=data_sheets(spec, job),
        )  # fmt: skip
    except BadProfile as error:
        raise DataError(
            "the profile cannot be used", code="E520", why=str(error), where=str(path),
            fix="python run.py action=profile   with this run's model and train.sequence_length",
        ) from error  # fmt: skip


def with_measured_links(catalogue: Catalogue, measurement: Measurement) -> Catalogue:
    """The catalogue's network with measured links between processes of this computer. Only those:
    what joins rented machines was not measured."""
    fit = measurement.point_to_point
    if fit is None or measurement.gpu != "cpu" or fit.beta <= 0:
        return catalogue
    links = {
        tier: Link(
            tier=tier, seconds_per_message=fit.alpha, bytes_per_second=1 / fit.beta,
            source="measured between two processes here",
        )
        for tier in (Tier.machine, Tier.zone)
    }  # fmt: skip
    return replace(catalogue, network=replace(catalogue.network, measured=links))


def calibrated(
    folder: Path, *, ran: Ran, known: MeasuredProfile | None, spec: ModelSpec, job: Job
) -> Profile:
    """The times of ``known``, or of data sheets, scaled so that the run in ``folder`` took what is
    predicted for it. The run may be of another model: what a stack makes of its hardware is much
    the same for all. A measured profile is scaled by runs of what was measured alone.

    Raises DataError E520 when the run tells nothing.
    """
    useless = partial(
        DataError, f"run {folder.name} cannot calibrate", code="E520", where=str(folder),
        fix="train.steps=20 faults=none run.name=NEW makes one that can",
    )  # fmt: skip
    try:
        history = replay(read_events(folder / "events.jsonl"))
        plan = Plan.from_json((folder / "plan.json").read_bytes())
    except (OSError, ValueError) as error:
        raise useless(why=f"it has no steps yet: {error}") from error
    seconds = _step_seconds(history, plan)
    if seconds is None:
        raise useless(why=f"fewer than {LEAST_STEPS} of its steps ran under its first plan")
    base: AnalyticProfile | MeasuredProfile = data_sheets(ran.spec, ran.job)
    if known is not None:
        if (ran.spec, ran.job.sequence_length) != (spec, job.sequence_length):
            raise useless(why=f"planner.profile is of {spec.name}, the run was of {ran.spec.name}")
        base = known

    def predicted(scale: float) -> float:
        return estimate(
            plan, spec=ran.spec, profile=replace(base, scale=scale), network=ran.network,
            numerics=ran.job.numerics,
        ).step_seconds  # fmt: skip

    low, high = _SCALES
    if not predicted(low) <= seconds <= predicted(high):
        raise useless(
            why=f"its steps took {seconds:.3g} s, {predicted(1.0):.3g} s were predicted, of which "
            f"{predicted(low):.3g} s are links and host: no scale of the work explains that",
        )
    for _ in range(60):  # the prediction grows with the scale: halve the range
        middle = (low * high) ** 0.5
        low, high = (middle, high) if predicted(middle) < seconds else (low, middle)
    return replace(known or data_sheets(spec, job), scale=high, relative_error=CALIBRATED_ERROR)


def _step_seconds(history: RunHistory, plan: Plan) -> float | None:
    """What a step took under the run's first plan, the median; None when too few ran."""
    for check in check_plans(history):
        if check.layout == plan.describe() and check.steps >= LEAST_STEPS and check.actual_step_s:
            return check.actual_step_s
    return None
