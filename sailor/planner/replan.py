"""The plan for exactly the machines that live: what the controller asks for in every transition.

The runtime is handed this as a function and knows nothing of planning. Money is no object here,
the machines are paid for; speed is: the answer must come while training stands still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sailor.cluster.network import Network
from sailor.cluster.pool import MachineType, Offer, Pool
from sailor.errors import NoFeasiblePlan
from sailor.models.spec import ModelSpec
from sailor.parallel.layout import Member
from sailor.plan import Plan
from sailor.planner.question import ANY_SPACE, Job, Objective, Space
from sailor.planner.search import search
from sailor.profile.profile import Profile


def replan(
    members: Sequence[Member],
    *,
    spec: ModelSpec,
    job: Job,
    network: Network,
    space: Space = ANY_SPACE,
    profile: Profile | None = None,
) -> Plan:
    """The fastest plan on these members; some may be left out when they would only be in the way.

    ``network`` is the one the first plan was made with: it knows every zone and machine type a
    member can name. Deterministic training needs ``space.microbatch_sizes`` with the one size of
    the run. A depth that the user has set is kept as long as the members allow it: fewer machines
    had better train than stand idle. Raises NoFeasiblePlan when the members cannot hold the model.
    """
    counts = Counter(
        (member.zone, member.machine_type, len(member.workers))
        for member in members
        if member.workers
    )
    if not counts:
        return _nothing(spec)
    pool, renamed = _pool(counts, network)
    known = replace_machines(network, pool)

    def within(space: Space) -> Plan:
        result = search(
            spec, pool, job=job, network=known, objective=Objective.max_throughput, space=space,
            profile=profile,
        )  # fmt: skip
        return _with_names(result.best.plan, renamed)

    wished = replace(space, max_machines=None, num_replicas=None)
    try:
        return within(wished)
    except NoFeasiblePlan:
        if wished.num_stages is None:
            raise
    return within(replace(wished, num_stages=None))


def _nothing(spec: ModelSpec) -> Plan:
    raise NoFeasiblePlan(
        f"no machine is left to run {spec.name} on",
        code="E301",
        why="every member is gone",
        fix="wait for a machine to join",
    )


def _pool(
    counts: Mapping[tuple[str, str, int], int], network: Network
) -> tuple[Pool, dict[str, str]]:
    """The members as offers. A machine with fewer workers than its type has is a type of its own
    here; the second value gives such types their real name back."""
    offers, renamed = [], {}
    for (zone, name, workers), number in sorted(counts.items()):
        kind = network.machine_types[name]
        if workers != kind.num_gpus:
            kind = replace(kind, name=f"{name}({workers})", num_gpus=workers)
            renamed[kind.name] = name
        offers.append(
            Offer(
                machine_type=kind,
                zone=network.zones[zone],
                spot=True,
                price_per_hour=0.0,
                count=number,
                source="member",
                as_of="",
            )  # fmt: skip
        )
    return Pool(offers=tuple(offers)), renamed


def replace_machines(network: Network, pool: Pool) -> Network:
    """The network with the pool's machine types added."""
    types: dict[str, MachineType] = {**network.machine_types, **pool.machine_types}
    return replace(network, machine_types=types)


def _with_names(plan: Plan, renamed: Mapping[str, str]) -> Plan:
    if not renamed:
        return plan
    return replace(
        plan,
        replicas=tuple(
            replace(
                replica,
                stages=tuple(
                    replace(stage, machine_type=renamed.get(stage.machine_type, stage.machine_type))
                    for stage in replica.stages
                ),
            )
            for replica in plan.replicas
        ),
    )
