"""Which times a plan is made with: data sheets, a measured profile, either scaled by a run.

The scale is one number: how much longer the work of a run's steps took than predicted, links and
host aside, found so that the prediction for that run's plan is what its steps took.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from actions.profile import read_profile
from provision.catalog import Catalogue
from sailor.cluster.network import Link, Network, Tier
from sailor.config import Config
from sailor.errors import ConfigError, DataError
from sailor.models.spec import ModelSpec
from sailor.observe.events import read_events
from sailor.observe.history import replay
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
        return MeasuredProfile(
            measurement=measurement, spec=spec, numerics=job.numerics,
            besides=data_sheets(spec, job),
        )  # fmt: skip
    except BadProfile as error:
        raise DataError(
            "the profile cannot be used", code="E520", why=str(error), where=str(path),
            fix="action=profile with the model and train.sequence_length of this run",
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
    config: Config, profile: MeasuredProfile | None, *, spec: ModelSpec, job: Job, network: Network
) -> Profile | None:
    """The profile with the scale that planner.calibrate's run asks for; as it is without one.

    Raises ConfigError E108 when there is no such run, DataError E520 when it tells nothing.
    """
    name = config.planner.calibrate
    if name is None:
        return profile
    folder = Path(config.runs_dir).expanduser() / name
    try:
        history = replay(read_events(folder / "events.jsonl"))
        plan = Plan.from_json((folder / "plan.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"there is no run {name} to calibrate with", code="E108", why=str(error),
            where=f"planner.calibrate={name}", fix="python run.py action=status lists runs",
        ) from error  # fmt: skip
    measured = [
        check.actual_step_s
        for check in check_plans(history)
        if check.layout == plan.describe() and check.steps >= LEAST_STEPS
    ]
    seconds = next((s for s in measured if s), None)
    if seconds is None or plan.problems(spec):
        raise DataError(
            f"run {name} tells nothing about {spec.name}", code="E520",
            why=f"it takes {LEAST_STEPS} steps of this model under its first plan",
            where=str(folder), fix="train.steps=20 faults=none run.name=NEW makes one",
        )  # fmt: skip
    base: AnalyticProfile | MeasuredProfile = profile or data_sheets(spec, job)

    def predicted(scale: float) -> float:
        return estimate(
            plan, spec=spec, profile=replace(base, scale=scale), network=network,
            numerics=job.numerics,
        ).step_seconds  # fmt: skip

    low, high = _SCALES
    for _ in range(60):  # the prediction grows with the scale: halve the range
        middle = (low * high) ** 0.5
        low, high = (middle, high) if predicted(middle) < seconds else (low, middle)
    return replace(base, scale=high, relative_error=CALIBRATED_ERROR)
