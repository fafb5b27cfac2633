"""Reads the inputs of the published Sailor artifact, so that two planners can be given the same.

Profiles, memory table, bandwidths, transfer prices, scenarios and plans, in the artifact's own file
forms. Used by the comparison in benchmarks/ and its tests alone; the numbers stay outside the
project, in a folder the caller names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sailor.plan import Plan, Replica, Stage

# GPU memory in GB of 2**30 bytes, dollars per GPU-hour: the constants of the artifact's simulator;
# types it has no price for cost nothing here and are named by ``unpriced``.
MEMORY_GB = {
    "A100-40": 40, "V100-16": 16, "GH-96": 96, "A100-80": 80, "RTX-3090": 24, "RTX-2080": 11,
    "Titan-RTX": 24,
}  # fmt: skip
DOLLARS_PER_HOUR = {"A100-40": 3.673385, "V100-16": 2.859998, "GH-96": 11.06}


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSeconds:
    """One layer on one tensor-parallel group: tensor-parallel exchange is inside."""

    forward: float
    backward: float
    update: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What the artifact's planner is asked: GPUs by (type, zone), objective, limits (0: none)."""

    name: str
    model: str
    resources: Mapping[tuple[str, str], int]
    objective: str  # "throughput" | "iteration_cost"
    max_cost: float  # dollars per iteration
    min_throughput: float  # iterations per second


@dataclass(frozen=True, kw_only=True)
class ArtifactModel:
    """One model's tables. Layers are the artifact's: embedding, blocks, head, each one layer."""

    name: str
    num_layers: int
    global_batch_size: int
    sequence_length: int
    seconds: Mapping[tuple[str, int, int], tuple[LayerSeconds, ...]]  # (gpu, microbatch, tp)
    parameters: Mapping[int, tuple[float, ...]]  # tp -> floats of each layer
    activations_kept: Mapping[int, tuple[float, ...]]  # tp -> floats kept per sample
    activations_sent: tuple[float, ...]  # floats sent on per sample, at tp 1

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPU types with a profile."""
        return tuple(sorted({gpu for gpu, _, _ in self.seconds}))


@dataclass(frozen=True, kw_only=True)
class ArtifactNetwork:
    """Fitted bandwidths between machines, and dollars per GB between zones."""

    coefficients: Mapping[tuple[str, str, int, str, str, int], tuple[float, float, float]]
    dollars_per_gb: Mapping[tuple[str, str], float]

    def fit(
        self, zone: str, gpu: str, count: int, other_zone: str, other_gpu: str, other_count: int
    ) -> tuple[float, float, float]:
        """The quadratic in log2(bytes / 1e6) that gives GB/s, highest power first.

        A zone the tables lack is read as the nearest pair they have: the same zone, another zone
        of the region, another region. Raises KeyError when the GPU types have no entry at all.
        """
        key = (zone, gpu, count, other_zone, other_gpu, other_count)
        if key in self.coefficients:
            return self.coefficients[key]
        for there in _stand_ins(zone, other_zone):
            key = (*there[:1], gpu, count, *there[1:], other_gpu, other_count)
            if key in self.coefficients:
                return self.coefficients[key]
        raise KeyError(f"no bandwidth between {gpu} x{count} and {other_gpu} x{other_count}")

    def price(self, zone: str, other_zone: str) -> float:
        """Dollars per GB from one zone to the other."""
        if zone == other_zone:
            return 0.0
        known = self.dollars_per_gb.get((zone, other_zone))
        if known is not None:
            return known
        return 0.01 if _region(zone) == _region(other_zone) else 0.02


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


def _stand_ins(zone: str, other_zone: str) -> tuple[tuple[str, str], ...]:
    if zone == other_zone:
        return (("us-central1-a", "us-central1-a"),)
    if _region(zone) == _region(other_zone):
        return (("us-central1-a", "us-central1-b"), ("us-central1-a", "us-central1-a"))
    return (("us-central1-a", "us-west1-b"), ("us-central1-a", "us-central1-a"))


def read_model(folder: Path, *, name: str, training: Path) -> ArtifactModel:
    """One model's tables. ``training`` is the artifact's training configuration of that model.

    Raises ValueError for a profile that is not of this model's number of layers or holds a number
    that is no time.
    """
    config = json.loads(training.read_text())
    num_layers = int(config["num_all_layers"])
    times = json.loads((folder / "profiles_tmp.json").read_text())[name]
    info = json.loads((folder / "llm_info.json").read_text())[name]
    seconds = {}
    for gpu, by_size in times.items():
        for size, by_degree in by_size.items():
            for degree, layers in by_degree.items():
                cell = tuple(
                    LayerSeconds(forward=f, backward=b, update=u)
                    for f, b, u in (layers[str(i)] for i in range(len(layers)))
                )
                if len(cell) != num_layers:
                    continue  # a cell of another model, as one GPU's has: unusable
                if not all(0 <= t < float("inf") for x in cell for t in (x.forward, x.backward)):
                    raise ValueError(f"{name} on {gpu}, microbatch {size}, tp {degree}: not a time")
                seconds[gpu, int(size), int(degree)] = cell
    if not seconds:
        raise ValueError(f"no profile of {name} has {num_layers} layers")

    def column(degree: str, field: str) -> tuple[float, ...]:
        return tuple(float(info[degree][str(i)][field]) for i in range(num_layers))

    return ArtifactModel(
        name=name,
        num_layers=num_layers,
        global_batch_size=int(config["global_batch_size"]),
        sequence_length=int(config["sequence_length"]),
        seconds=seconds,
        parameters={int(d): column(d, "params_floats") for d in info},
        activations_kept={int(d): column(d, "act_mem_floats") for d in info},
        activations_sent=column("1", "act_output_floats"),
    )


def read_network(folder: Path) -> ArtifactNetwork:
    """Bandwidths and transfer prices."""
    tree = json.loads((folder / "multizone_bandwidths_het.json").read_text())
    coefficients = {
        (zone, gpu, int(count), other, other_gpu, int(other_count)): tuple(fit)
        for zone, by_gpu in tree.items()
        for gpu, by_count in by_gpu.items()
        for count, by_zone in by_count.items()
        for other, by_other in by_zone.items()
        for other_gpu, by_other_count in by_other.items()
        for other_count, (fit, _) in by_other_count.items()
    }
    prices = json.loads((folder / "communication_cost.json").read_text())
    return ArtifactNetwork(
        coefficients=coefficients,
        dollars_per_gb={(a, b): float(p) for a, row in prices.items() for b, p in row.items()},
    )


def read_scenarios(path: Path) -> tuple[Scenario, ...]:
    """A list of scenarios. Raises ValueError for a count that is no number of GPUs."""
    found = []
    for entry in json.loads(path.read_text()):
        resources = {}
        for key, count in entry["resources"].items():
            gpu, _, zone = key.partition("_")
            if int(count) < 0 or not zone:
                raise ValueError(f"{entry['name']}: {key!r}: {count} is no number of GPUs")
            resources[gpu, zone] = int(count)
        found.append(
            Scenario(
                name=entry["name"],
                model=entry["model"],
                resources=resources,
                objective=entry["objective"],
                max_cost=float(entry.get("max_cost") or 0),
                min_throughput=float(entry.get("min_throughput") or 0),
            )  # fmt: skip
        )
    return tuple(found)


def plan_from(document: Mapping[str, Any], *, model: ArtifactModel, global_batch_size: int) -> Plan:
    """A plan of the artifact as ours: one replica for each of its data-parallel ranks.

    The artifact gives every replica ceil(batch / (microbatch * replicas)) microbatches; here some
    take one less, so that the batch is kept exactly. The slowest takes as many either way.
    Raises ValueError when stages of one pipeline have different numbers of replicas or when a
    replica of a stage spans machines.
    """
    body = document.get("plan", document)
    pipelines = body.get("pipelines") or body["pipeline_list"]
    size = int(body["mbs"])
    rows: list[tuple[Stage, ...]] = []
    for pipeline in pipelines:
        layers = [range(int(ids[0]), int(ids[-1]) + 1) for ids in pipeline["layers_per_stage"]]
        seats = pipeline.get("tmp_stages") or pipeline["tmp_per_stage"]
        depth = len(seats[0])
        if any(len(stage) != depth for stage in seats):
            raise ValueError("stages have different numbers of replicas")
        for replica in range(depth):
            stages = []
            for ids, stage in zip(layers, seats, strict=True):
                machines, degree = stage[replica]
                if len(machines) != 1:
                    raise ValueError("a tensor-parallel group spans machines")
                gpu, count, zone = machines[0]
                stages.append(
                    Stage(
                        layers=ids,
                        gpu=gpu,
                        machine_type=f"{gpu}x{count}",
                        zone=zone,
                        tensor_parallel=int(degree),
                    )  # fmt: skip
                )
            rows.append(tuple(stages))
    microbatches = -(-global_batch_size // size)
    quotient, remainder = divmod(microbatches, len(rows))
    if quotient == 0:
        raise ValueError(f"{len(rows)} replicas, but only {microbatches} microbatches")
    return Plan(
        model=model.name,
        sequence_length=model.sequence_length,
        replicas=tuple(
            Replica(stages=row, num_microbatches=quotient + (i < remainder), microbatch_size=size)
            for i, row in enumerate(rows)
        ),
    )


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan in the artifact's form. Raises ValueError for what it has no words for: replicas cut
    differently, or of unequal microbatch size."""
    cuts = {tuple(stage.layers for stage in replica.stages) for replica in plan.replicas}
    sizes = {replica.microbatch_size for replica in plan.replicas}
    if len(cuts) > 1 or len(sizes) > 1:
        raise ValueError("the artifact knows one cut and one microbatch size for all replicas")
    (cut,) = cuts
    return {
        "mbs": sizes.pop(),
        "pipeline_list": [
            {
                "num_stages": len(cut),
                "layers_per_stage": [list(layers) for layers in cut],
                "tmp_per_stage": [
                    [_seat(replica.stages[s]) for replica in plan.replicas] for s in range(len(cut))
                ],
                "dp": [len(plan.replicas)] * len(cut),
            }
        ],
    }


def _seat(stage: Stage) -> Sequence[Any]:
    return [[[stage.gpu, stage.tensor_parallel, stage.zone]], stage.tensor_parallel]
