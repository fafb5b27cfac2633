"""From a Config to a question for the planner, and to the function that re-plans during a run.

Shared by action=plan, which shows the answer, and action=train, which acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from actions.domain import HERE, compute_dtype, is_deterministic, model_spec, total_steps
from actions.experience import experience
from actions.hazards import beliefs
from actions.own_machine import beside_per_hour
from actions.times import Ran, calibrated, data_sheets, known_times, with_measured_links
from actions.traces import trace_of, zones_of
from provision.catalog import (
    LOCAL_ZONES,
    OWN_CLUSTERS,
    Catalogue,
    cloud_catalogue,
    is_cpu,
    local_catalogue,
    own_catalogue,
)
from sailor.cluster.network import Network
from sailor.config import Config, Dtype
from sailor.errors import ConfigError
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import allowed_degrees
from sailor.parallel.layout import Member
from sailor.plan import Plan
from sailor.planner.bounds import Bound, bound_of
from sailor.planner.estimate import Estimate, estimate
from sailor.planner.evidence import Evidence, Place
from sailor.planner.hazard import Hazard
from sailor.planner.question import Candidate, Job, Limits, Objective, SearchResult, Space
from sailor.planner.replan import replan
from sailor.planner.search import best_on, search
from sailor.profile.local import local_gpu
from sailor.profile.profile import Numerics, Profile
from sailor.units import parse_bytes, parse_seconds


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything the planner is asked."""

    spec: ModelSpec
    job: Job
    space: Space
    limits: Limits
    objective: Objective
    catalogue: Catalogue
    profile: Profile | None = None  # None: data sheets
    persist_every: int = 100  # steps between durable checkpoints
    spot_aware: bool = True  # actions/prospects.py
    evidence: Mapping[Place, Evidence] = field(default_factory=dict)  # of one's own runs

    @cached_property
    def believed(self) -> dict[Place, Hazard]:
        """Of every place where spot machines are on offer."""
        catalogue = self.catalogue
        return beliefs(catalogue.pool.offers, preempted=catalogue.preempted, evidence=self.evidence)

    def answer(self) -> SearchResult:
        """Search. Raises NoFeasiblePlan."""
        return search(
            self.spec, self.catalogue.pool, job=self.job, network=self.catalogue.network,
            objective=self.objective, space=self.space, limits=self.limits, profile=self.profile,
        )  # fmt: skip

    def on_other_machines(self, chosen: Candidate, network: Network, job: Job) -> Candidate | None:
        """The best plan on a plan's machines, were they or the job as given; limits aside."""
        return best_on(
            chosen.rentals, spec=self.spec, job=job, network=network, space=self.space,
            objective=self.objective, profile=self.profile,
        )  # fmt: skip

    def bound(self, result: SearchResult) -> Bound | None:
        """What no plan on these machines can beat; None where machines cost nothing and seconds
        are not what is asked for."""
        return bound_of(
            result, spec=self.spec, pool=self.catalogue.pool, job=self.job, space=self.space,
            network=self.catalogue.network, limits=self.limits, profile=self.profile,
        )  # fmt: skip

    def replanner(self, plan: Plan) -> Callable[[Sequence[Member]], Plan]:
        """The function the runtime calls when machines come and go in the run of ``plan``.

        A deterministic run keeps its microbatch size: sums inside a microbatch are a kernel's own.
        Raises NoFeasiblePlan when the members cannot hold the model.
        """
        space = self.space
        if self.job.numerics.deterministic:
            sizes = tuple(sorted({replica.microbatch_size for replica in plan.replicas}))
            space = replace(space, microbatch_sizes=sizes)

        def again(members: Sequence[Member]) -> Plan:
            return replan(
                members, spec=self.spec, job=self.job, network=self.catalogue.network, space=space,
                profile=self.profile,
            )  # fmt: skip

        return again

    def step_seconds(self, plan: Plan) -> float:
        """What one step of a plan takes, by the evaluator that ranks plans."""
        return self.estimate(plan).step_seconds

    def estimate(self, plan: Plan) -> Estimate:
        """All of what a plan takes but money: machines that are there have their prices already."""
        return estimate(
            plan, spec=self.spec, profile=self.profile or data_sheets(self.spec, self.job),
            network=self.catalogue.network, numerics=self.job.numerics,
        )  # fmt: skip


def question(config: Config, *, live: bool = False) -> Question:
    """What a configuration asks of the planner, of the cloud's own facts where ``live``.

    Raises ConfigError and CloudError for machines that do not exist, DataError for a profile or a
    run that times cannot be taken from.
    """
    asked = _question(config, live=live)
    name = config.planner.calibrate
    if name is None:
        return asked
    from actions.target import saved_config  # here: planning without a run does without it

    folder = Path(config.runs_dir).expanduser() / name
    try:
        theirs = saved_config(folder)
    except ConfigError as error:
        raise ConfigError(
            f"there is no run {name} to calibrate with", code="E108", why=error.what,
            where=f"planner.calibrate={name}", fix="python run.py action=status   lists runs",
        ) from error  # fmt: skip
    # What the run was planned with is not what it took: its own wishes for times are left aside.
    ran = _question(replace(theirs, planner=replace(theirs.planner, profile=None, calibrate=None)))
    profile = calibrated(
        folder, ran=Ran(spec=ran.spec, job=ran.job, network=ran.catalogue.network),
        known=known_times(config, asked.spec, asked.job), spec=asked.spec, job=asked.job,
    )  # fmt: skip
    return replace(asked, profile=profile)


def _question(config: Config, *, live: bool = False) -> Question:
    """As asked, times as known before a run has scaled them."""
    spec = model_spec(config)
    catalogue = catalogue_of(config)
    if live:
        from actions.account import asked_of_cloud  # here: planning offline does without it

        catalogue = asked_of_cloud(config, catalogue)
    train = config.train
    job = Job(
        sequence_length=train.sequence_length,
        global_batch_size=train.global_batch_size,
        numerics=Numerics(
            compute_bytes=4 if compute_dtype(config) is Dtype.float32 else 2,
            deterministic=is_deterministic(config),
        ),
        total_tokens=float(total_steps(config) * train.global_batch_size * train.sequence_length),
    )
    known = known_times(config, spec, job)
    if known is not None:
        catalogue = with_measured_links(catalogue, known.measurement)
    return Question(
        spec=spec,
        job=job,
        profile=known,
        space=_space(config, spec, catalogue),
        limits=Limits(
            total_dollars=config.budget.total_usd,
            dollars_per_hour=_for_training(config),
            beside_per_hour=beside_per_hour(config),
            deadline_seconds=(
                None if config.budget.deadline is None else parse_seconds(config.budget.deadline)
            ),
            min_tokens_per_second=config.planner.min_tokens_per_second,
        ),
        objective=Objective[config.planner.objective.name],
        catalogue=catalogue,
        persist_every=config.checkpoint.persist_every,
        spot_aware=config.planner.spot_aware,
        evidence=experience(config).evidence if config.planner.spot_aware else {},
    )


def _for_training(config: Config) -> float | None:
    """Dollars an hour for machines that train: what is left of the limit beside the others."""
    limit = config.budget.per_hour_usd
    return None if limit is None else max(0.0, limit - beside_per_hour(config))


def catalogue_of(config: Config) -> Catalogue:
    """The machines a configuration allows."""
    cloud = config.cloud
    if cloud.name in HERE:
        gpu = local_gpu(
            memory_bytes=parse_bytes(cloud.memory_per_gpu),
            num_workers=cloud.nodes * cloud.gpus_per_node,
        )
        zones = zones_of(trace_of(config)) if cloud.name == "trace" else LOCAL_ZONES
        return local_catalogue(
            gpu=gpu, nodes=cloud.nodes, gpus_per_node=cloud.gpus_per_node, zones=zones
        )
    if cloud.name in OWN_CLUSTERS:
        cpu = None
        if any(is_cpu(name) for name in cloud.machine_types):
            cpu = local_gpu(memory_bytes=parse_bytes(cloud.memory_per_gpu), num_workers=1)
        return own_catalogue(
            cloud.name, cluster=cloud.cluster, zones=cloud.zones,
            machine_types=cloud.machine_types, max_nodes=cloud.max_nodes, cpu=cpu,
        )  # fmt: skip
    return cloud_catalogue(
        cloud.name, regions=cloud.regions, zones=cloud.zones, machine_types=cloud.machine_types,
        spot=cloud.spot, max_nodes=cloud.max_nodes,
    )  # fmt: skip


def _space(config: Config, spec: ModelSpec, catalogue: Catalogue) -> Space:
    """What the user leaves free. Local runs show re-splitting, so they do without the two knobs
    that would spare it: recompute and sharding have to be asked for there."""
    wish = config.planner
    here = config.cloud.name in HERE
    free = (False,) if here else (False, True)
    degrees = allowed_degrees(spec, max_degree=catalogue.pool.max_gpus_per_machine)
    if config.train.sequence_parallel:  # equal runs of every sequence
        degrees = tuple(d for d in degrees if config.train.sequence_length % d == 0)
    return Space(
        tensor_parallel_degrees=(
            degrees if wish.tensor_parallel is None else (wish.tensor_parallel,)
        ),
        microbatch_sizes=None if wish.microbatch_size is None else (wish.microbatch_size,),
        recompute=free if wish.recompute is None else (wish.recompute,),
        optimizer_sharding=(
            free if wish.optimizer_sharding is None else (wish.optimizer_sharding,)
        ),
        num_stages=wish.pipeline_parallel,
        num_replicas=wish.data_parallel,
        max_machines=(
            config.cloud.nodes
            if here
            else max(1, config.cloud.max_nodes - (config.cloud.standbys or 0))
        ),
    )
