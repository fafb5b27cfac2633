"""The planner at scale, and against looking at everything: part of benchmarks.planner.

At scale the whole search runs, as action=plan runs it, on made-up pools of real GPU types; the gap
is to the bound that action=plan prints. Against everything: a small model on a few machines, every
fleet worked out with the same evaluator.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from actions.domain import model_spec
from benchmarks.configuration import configured
from sailor.cluster.gpu import GPU_TYPES
from sailor.cluster.network import Network
from sailor.cluster.pool import MachineType, Offer, Pool, Zone
from sailor.models.spec import ModelSpec
from sailor.planner.bounds import bound_of
from sailor.planner.exhaustive import all_fleets
from sailor.planner.fleet import FleetSearch, Goal
from sailor.planner.own_costs import Ground, OwnCosts
from sailor.planner.question import Job, Objective, Space
from sailor.planner.reference_costs import ReferenceCosts
from sailor.planner.search import search
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.artifact import ArtifactModel, ArtifactNetwork, Scenario
from sailor.profile.profile import Numerics

# GPU type, GPUs of a machine, bytes/s of its card, dollars an hour (on the order of spot prices).
MACHINES = (
    ("H100-80", 8, 400e9, 20.0),
    ("A100-80", 8, 200e9, 9.0),
    ("L4-24", 8, 12.5e9, 3.0),
    ("V100-16", 8, 12.5e9, 4.0),
)
TOKENS, BATCH = 2048, 4096
# Slower machines beside two others: a hundred thousand fleets are a minute or two of looking.
MACHINES_AGAINST, QUICK_MACHINES = 5, 3


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """One pool's search: CPU seconds of it and of the bound, and how far apart they are."""

    gpus: int
    types: int
    zones: int
    search_cpu_s: float
    bound_cpu_s: float
    step_s: float
    gap: float | None
    gpus_used: int

    def document(self) -> dict[str, Any]:
        """In JSON types."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def scale(network: ArtifactNetwork, model: ArtifactModel, *, quick: bool) -> dict[str, Any]:
    """Figures and the curves behind them. The published formulas have no bound: beside their three
    types the same numbers of ours are searched and bounded."""
    spec = model_spec(configured("model=gpt_2_7b"))
    three = three_types(network, model)
    beside = one_pool(spec, gpus=768, types=3, zones=1)
    whole = one_pool(spec, gpus=4096, types=4, zones=10)
    curve = [
        *(one_pool(spec, gpus=4096, types=4, zones=zones) for zones in (1, 2, 5)),
        *(one_pool(spec, gpus=gpus, types=4, zones=10) for gpus in (160, 640, 1280, 16384)),
    ]
    against = against_everything(slower=QUICK_MACHINES if quick else MACHINES_AGAINST)
    return {
        "figures": {
            "cpu_s_3types_256": three,
            "own_cpu_s_3types_256": beside.search_cpu_s,
            "gap_3types_256": beside.gap,
            "cpu_s_4096x4x10": whole.search_cpu_s,
            "bound_cpu_s_4096x4x10": whole.bound_cpu_s,
            "gap_4096": whole.gap,
            "speedup_vs_exhaustive": against["speedup"],
            "exhaustive_ratio": against["ratio"],
        },
        "detail": {"scale": [p.document() for p in (beside, whole, *curve)], "exhaustive": against},
    }


def three_types(network: ArtifactNetwork, model: ArtifactModel) -> float:
    """CPU seconds for three GPU types, 256 of each in one zone, with the published inputs."""
    scenario = Scenario(
        name="three_types_256", model=model.name,
        resources={(gpu, "us-central1-a"): 256 for gpu in ("A100-40", "V100-16", "GH-96")},
        objective="throughput", max_cost=0.0, min_throughput=0.0,
    )  # fmt: skip
    began = time.process_time()
    FleetSearch(ReferenceCosts(model, network, scenario), Goal()).best()
    return time.process_time() - began


def one_pool(spec: ModelSpec, *, gpus: int, types: int, zones: int) -> Scaled:
    """The whole search for the most throughput, and its bound. GPUs are spread over types and zones
    as evenly as machines allow; half of the zones are in each of two regions."""
    pool = a_pool(gpus=gpus, types=types, zones=zones)
    network = Network(
        zones={offer.zone.name: offer.zone for offer in pool.offers},
        machine_types=pool.machine_types,
    )
    job = Job(sequence_length=TOKENS, global_batch_size=BATCH, numerics=Numerics())
    began = time.process_time()
    result = search(
        spec, pool, job=job, network=network, objective=Objective.max_throughput
    )  # fmt: skip
    searched = time.process_time()
    space = Space(tensor_parallel_degrees=(1, 2, 4, 8))
    bound = bound_of(result, spec=spec, pool=pool, job=job, space=space, network=network)
    return Scaled(
        gpus=gpus, types=types, zones=zones, search_cpu_s=searched - began,
        bound_cpu_s=time.process_time() - searched,
        step_s=result.best.estimate.step_seconds, gap=None if bound is None else bound.gap,
        gpus_used=result.best.plan.num_gpus,
    )  # fmt: skip


def a_pool(*, gpus: int, types: int, zones: int) -> Pool:
    """So many GPUs in all."""
    offers = []
    for gpu, per_machine, card, dollars in MACHINES[:types]:
        kind = MachineType(
            name=f"{per_machine}x{gpu}", gpu=GPU_TYPES[gpu], num_gpus=per_machine,
            network_bytes_per_second=card, source="benchmark",
        )  # fmt: skip
        whole = gpus // types // per_machine
        for zone in range(zones):
            count = whole // zones + (zone < whole % zones)
            if count:
                place = Zone(name=f"z{zone}", region=f"r{zone % 2}", cloud="cloud")
                offers.append(
                    Offer(
                        machine_type=kind, zone=place, spot=True, price_per_hour=dollars,
                        count=count, source="benchmark", as_of="2026-01-01",
                    )
                )  # fmt: skip
    return Pool(offers=tuple(offers))


def against_everything(*, slower: int) -> dict[str, Any]:
    """CPU seconds of looking at every fleet over those of the search, and the ratio of what they
    found (1: the same)."""
    began = time.process_time()
    found = FleetSearch(a_small_world(slower=slower), Goal()).best()
    ours = time.process_time() - began
    began = time.process_time()
    costs = a_small_world(slower=slower)
    every = FleetSearch(costs, Goal())
    best, number = inf, 0
    for crews in all_fleets(costs, every.templates):
        number += 1
        other = every.work_out(crews)
        if other is not None:
            best = min(best, other.seconds)
    theirs = time.process_time() - began
    return {
        "fleets": number, "search_cpu_s": ours, "exhaustive_cpu_s": theirs,
        "speedup": theirs / ours, "ratio": None if found is None else found.seconds / best,
    }  # fmt: skip


def a_small_world(*, slower: int) -> OwnCosts:
    """Six blocks of a small model on two machines of two slow GPUs and so many of a slower one."""
    base = model_spec(configured("model=gpt_tiny"))
    spec = replace(base, num_layers=6)
    job = Job(sequence_length=128, global_batch_size=8, numerics=Numerics(compute_bytes=4))
    slow = replace(
        GPU_TYPES["V100-16"], name="slow", has_context=False, peak_flops_fp32=4e10,
        memory_bytes=24 << 20, memory_bytes_per_second=1e10, link_bytes_per_second=1e9,
    )  # fmt: skip
    slowest = replace(slow, name="slower", peak_flops_fp32=1e10, memory_bytes=16 << 20)
    kinds = [
        MachineType(name="a", gpu=slow, num_gpus=2, network_bytes_per_second=1e9, source="b"),
        MachineType(name="b", gpu=slowest, num_gpus=1, network_bytes_per_second=1e9, source="b"),
    ]
    zone = Zone(name="z", region="r", cloud="cloud")
    return OwnCosts(
        spec,
        [
            Ground(machine_type=kinds[0], zones={"z": 2}, dollars_per_hour=2.0),
            Ground(machine_type=kinds[1], zones={"z": slower}, dollars_per_hour=1.0),
        ],
        job=job,
        space=Space(
            tensor_parallel_degrees=(1, 2), microbatch_sizes=(1, 2), recompute=(False,)
        ),
        profile=AnalyticProfile(spec=spec, sequence_length=128, numerics=job.numerics),
        network=Network(zones={"z": zone}, machine_types={k.name: k for k in kinds}),
    )  # fmt: skip
