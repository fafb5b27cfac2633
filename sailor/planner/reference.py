"""The published Sailor simulator's formulas, restated: a compatibility mode for the comparison.

Used by benchmarks/planner.py and its tests alone, so that both planners' plans are judged by the
evaluator of the other side, to the last digit. Not our model: see timing.py and memory.py for that.

The published formulas know replicas that are cut alike and take equal shares. For replicas cut
differently or with unequal shares the same formulas are applied to each group of replicas cut
alike, and the reduction to each run of layers with the same owners; where both readings exist they
agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from sailor.plan import Plan, Replica, Stage
from sailor.profile.artifact import (
    DOLLARS_PER_HOUR,
    MEMORY_GB,
    ArtifactModel,
    ArtifactNetwork,
)

BYTES = 4  # everything is fp32
BUCKET_BYTES = 500_000_000
STATE_BYTES_PER_PARAMETER = 24  # model 4, gradient 4, Adam 8, communication 4, start-up copy 4
# What the published planner adds before it compares with the GPU's memory.
CONSTANT_BYTES = 2.0e9
CONSTANT_BYTES_TENSOR_PARALLEL = 3.0e9
# What its validation adds when it predicts a measured peak.
VALIDATION_BYTES = 4.76e9 + 0.3e9


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceEstimate:
    """One iteration, as the published simulator sees it."""

    pipeline_seconds: float
    sync_seconds: float
    compute_dollars_per_second: float
    transfer_dollars: float
    peak_bytes: float  # of the fullest stage, without the constant
    fits: bool

    @property
    def seconds(self) -> float:
        """One iteration; nothing overlaps."""
        return self.pipeline_seconds + self.sync_seconds

    @property
    def throughput(self) -> float:
        """Iterations per second."""
        return 1.0 / self.seconds

    @property
    def dollars(self) -> float:
        """Per iteration."""
        return self.compute_dollars_per_second * self.seconds + self.transfer_dollars


def bandwidth(coefficients: tuple[float, float, float], num_bytes: float) -> float:
    """GB/s for a message: a quadratic in log2(megabytes), not clamped."""
    u = log2(num_bytes / 1e6)
    a, b, c = coefficients
    return a * u * u + b * u + c


def send_seconds(coefficients: tuple[float, float, float], num_bytes: float) -> float:
    """One message; no latency."""
    return num_bytes / 1e9 / bandwidth(coefficients, num_bytes) if num_bytes else 0.0


def all_reduce_seconds(
    coefficients: tuple[float, float, float], num_bytes: float, num_owners: int
) -> float:
    """A ring, in buckets of 500 MB."""
    if num_owners <= 1 or num_bytes <= 0:
        return 0.0
    seconds = 0.0
    left = num_bytes
    while left > 0:
        bucket = min(left, BUCKET_BYTES)
        seconds += 2 * (num_owners - 1) * send_seconds(coefficients, bucket / num_owners)
        left -= bucket
    return seconds


def evaluate(plan: Plan, *, model: ArtifactModel, network: ArtifactNetwork) -> ReferenceEstimate:
    """The published simulator on a plan whose layers are the artifact's."""
    groups = _cut_alike(plan)
    peak, fits = 0.0, True
    for group in groups:
        for s in range(group[0].num_stages):
            for stage in dict.fromkeys(replica.stages[s] for replica in group):
                need = stage_peak_bytes(
                    model, stage, stage_index=s, num_stages=group[0].num_stages,
                    microbatch_size=group[0].microbatch_size,
                )  # fmt: skip
                peak = max(peak, need)
                constant = (
                    CONSTANT_BYTES if stage.tensor_parallel == 1 else CONSTANT_BYTES_TENSOR_PARALLEL
                )
                fits &= need + constant <= MEMORY_GB[stage.gpu] * 2**30
    rent = sum(
        stage.tensor_parallel * DOLLARS_PER_HOUR.get(stage.gpu, 0.0)
        for _, _, stage in plan.stages()
    )
    return ReferenceEstimate(
        pipeline_seconds=max(pipeline_seconds(group, model, network) for group in groups),
        sync_seconds=sync_seconds(plan, model, network),
        compute_dollars_per_second=rent / 3600,
        transfer_dollars=sum(_pipeline_dollars(group, model, network) for group in groups)
        + _sync_dollars(groups, model, network),
        peak_bytes=peak,
        fits=fits,
    )


def stage_peak_bytes(
    model: ArtifactModel, stage: Stage, *, stage_index: int, num_stages: int, microbatch_size: int
) -> float:
    """Peak of one stage without the constant. The batch does not cap microbatches in flight."""
    degree = stage.tensor_parallel
    state = STATE_BYTES_PER_PARAMETER * sum(model.parameters[degree][i] for i in stage.layers)
    kept = sum(model.activations_kept[degree][i] for i in stage.layers)
    return state + BYTES * microbatch_size * kept * (num_stages - stage_index)


def _cut_alike(plan: Plan) -> list[list[Replica]]:
    """Replicas by their cut and microbatch size: what the artifact calls a pipeline.

    Its replicas take equal shares (one more or less here, to keep the batch exact). Replicas cut
    alike whose shares differ by more are pipelines of their own, by the GPUs they stand on.
    """
    groups: dict[tuple[object, ...], list[Replica]] = {}
    for replica in plan.replicas:
        key = (replica.microbatch_size, *(stage.layers for stage in replica.stages))
        groups.setdefault(key, []).append(replica)
    found = []
    for group in groups.values():
        shares = [replica.num_microbatches for replica in group]
        if max(shares) - min(shares) <= 1:
            found.append(group)
            continue
        kinds: dict[tuple[object, ...], list[Replica]] = {}
        for replica in group:
            row = tuple((stage.gpu, stage.tensor_parallel) for stage in replica.stages)
            kinds.setdefault(row, []).append(replica)
        found += kinds.values()
    return found


def pipeline_seconds(
    group: Sequence[Replica], model: ArtifactModel, network: ArtifactNetwork
) -> float:
    """Stages of the group in lockstep: each takes as long as its slowest replica."""
    num_stages = group[0].num_stages
    size = group[0].microbatch_size
    rounds = max(replica.num_microbatches for replica in group)
    compute, sends = [], []
    update = 0.0
    for s in range(num_stages):
        slowest = 0.0
        for stage in dict.fromkeys(replica.stages[s] for replica in group):
            cell = model.seconds[stage.gpu, size, stage.tensor_parallel]
            slowest = max(slowest, sum(cell[i].forward + cell[i].backward for i in stage.layers))
            update = max(update, cell[stage.layers.start].update)
        compute.append(slowest)
        sends.append(_stage_sends(group, s, model, network))
    pace = max(c + p for c, p in zip(compute, sends, strict=True))
    return (rounds - 1) * pace + sum(compute) + sum(sends) + update


def _stage_sends(
    group: Sequence[Replica], s: int, model: ArtifactModel, network: ArtifactNetwork
) -> float:
    """What the published simulator adds to a stage for sending, as it does it: forward only on the
    first stage (twice when the pipeline is deep), backward twice on the last."""
    num_stages = group[0].num_stages
    if num_stages == 1:
        return 0.0
    size = group[0].microbatch_size
    layers = group[0].stages[s].layers
    forward = backward = 0.0
    if s < num_stages - 1:
        num_bytes = model.activations_sent[layers.stop - 1] * BYTES * size
        forward = max(
            send_seconds(_fit(network, a, b), num_bytes)
            for a, b in dict.fromkeys((r.stages[s], r.stages[s + 1]) for r in group)
        )
    if s > 0:
        num_bytes = model.activations_sent[layers.start] * BYTES * size
        backward = max(
            send_seconds(_fit(network, a, b), num_bytes)
            for a, b in dict.fromkeys((r.stages[s], r.stages[s - 1]) for r in group)
        )
    if s == 0:
        return forward if num_stages <= 3 else 2 * forward
    return 2 * backward if s == num_stages - 1 else forward + backward


def _fit(network: ArtifactNetwork, a: Stage, b: Stage) -> tuple[float, float, float]:
    return network.fit(a.zone, a.gpu, a.tensor_parallel, b.zone, b.gpu, b.tensor_parallel)


def sync_seconds(plan: Plan, model: ArtifactModel, network: ArtifactNetwork) -> float:
    """All-reduce of gradients: the slowest stage, over the slowest pair of neighbours in its ring
    (the pair that closes the ring is not looked at, and one GPU's rate is taken each side)."""
    edges = sorted({s.layers.start for _, _, s in plan.stages()} | {model.num_layers})
    totals: dict[range, float] = {}
    for start, stop in zip(edges, edges[1:], strict=False):
        owners = [
            next(s for s in replica.stages if s.layers.start <= start < s.layers.stop)
            for replica in plan.replicas
        ]
        sharing = min(4, *(stage.tensor_parallel for stage in owners))
        num_bytes = sum(model.parameters[1][i] for i in range(start, stop)) * BYTES / sharing
        pairs = dict.fromkeys(
            (a.zone, a.gpu, b.zone, b.gpu) for a, b in zip(owners, owners[1:], strict=False)
        )
        seconds = max(
            (
                all_reduce_seconds(network.fit(z, g, 1, y, h, 1), num_bytes, len(owners))
                for z, g, y, h in pairs
            ),
            default=0.0,
        )
        for layers in {stage.layers for stage in owners}:
            totals[layers] = totals.get(layers, 0.0) + seconds
    return max(totals.values())


def _pipeline_dollars(
    group: Sequence[Replica], model: ArtifactModel, network: ArtifactNetwork
) -> float:
    """Activations forward and gradients back over every boundary between zones."""
    size = group[0].microbatch_size
    rounds = max(replica.num_microbatches for replica in group)
    dollars = 0.0
    for replica in group:
        for a, b in zip(replica.stages, replica.stages[1:], strict=False):
            there, back = network.price(a.zone, b.zone), network.price(b.zone, a.zone)
            dollars += model.activations_sent[a.layers.stop - 1] * BYTES * size * there
            dollars += model.activations_sent[b.layers.start] * BYTES * size * back
    return rounds * dollars / 1e9


def _sync_dollars(
    groups: Sequence[Sequence[Replica]], model: ArtifactModel, network: ArtifactNetwork
) -> float:
    """Every neighbour in the ring, the closing pair included, at the bytes of a whole stage."""
    replicas = [replica for group in groups for replica in group]
    owners = len(replicas)
    if owners < 2:
        return 0.0
    edges = sorted({s.layers.start for r in replicas for s in r.stages} | {model.num_layers})
    dollars = 0.0
    for start, stop in zip(edges, edges[1:], strict=False):
        num_bytes = sum(model.parameters[1][i] for i in range(start, stop)) * BYTES
        zones = [
            next(s.zone for s in replica.stages if s.layers.start <= start < s.layers.stop)
            for replica in replicas
        ]
        around = sum(network.price(a, b) for a, b in zip(zones, zones[1:] + zones[:1], strict=True))
        dollars += around * num_bytes / owners * 2 * (owners - 1)
    return dollars / 1e9
