"""The central noun: how a model is cut and where each piece runs. Frozen, JSON both ways.

A Plan is a list of replicas. Each replica is a pipeline of its own: its own number of stages, its
own uneven cuts, and for every stage its own machine type, zone and tensor-parallel degree. A
homogeneous Megatron layout is the special case of equal replicas. The planner emits it, the engine
runs it, the simulator times it; none of them adds to it. No torch, no cluster, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sailor.models.spec import ModelSpec

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A contiguous run of blocks on one tensor-parallel group of equal GPUs in one zone.

    ``layers`` counts transformer blocks only. The first stage of a replica also holds the
    embedding, the last one the final norm and the output matrix.
    """

    layers: range
    gpu: str
    machine_type: str
    zone: str
    tensor_parallel: int = 1
    recompute: bool = False

    def __post_init__(self) -> None:
        if len(self.layers) < 1 or self.layers.step != 1 or self.layers.start < 0:
            raise ValueError(f"a stage needs at least one block, got {self.layers}")
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel must be at least 1, got {self.tensor_parallel}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """One copy of the model, as a pipeline. Takes ``num_microbatches`` of every global batch."""

    stages: tuple[Stage, ...]
    num_microbatches: int
    microbatch_size: int

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a replica needs at least one stage")
        if self.num_microbatches < 1 or self.microbatch_size < 1:
            raise ValueError("num_microbatches and microbatch_size must be at least 1")
        expected = 0
        for stage in self.stages:
            if stage.layers.start != expected:
                raise ValueError(f"stage {stage.layers} should start at block {expected}")
            expected = stage.layers.stop

    @property
    def num_stages(self) -> int:
        """Pipeline depth."""
        return len(self.stages)

    @property
    def num_gpus(self) -> int:
        """GPUs used by all stages."""
        return sum(stage.tensor_parallel for stage in self.stages)

    @property
    def num_samples(self) -> int:
        """Sequences of the global batch this replica takes."""
        return self.num_microbatches * self.microbatch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A complete cut of one model over machines, at one global batch.

    ``optimizer_sharding`` is ZeRO-1 over the owners of each box.
    """

    model: str
    replicas: tuple[Replica, ...]
    sequence_length: int
    optimizer_sharding: bool = False

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ValueError("a plan needs at least one replica")
        depths = {replica.stages[-1].layers.stop for replica in self.replicas}
        if len(depths) != 1:
            raise ValueError(f"replicas cut different numbers of blocks: {sorted(depths)}")

    @property
    def num_layers(self) -> int:
        """Transformer blocks of the model."""
        return self.replicas[0].stages[-1].layers.stop

    @property
    def global_batch_size(self) -> int:
        """Sequences per step, all replicas together."""
        return sum(replica.num_samples for replica in self.replicas)

    @property
    def num_microbatches(self) -> int:
        """Microbatches per step, all replicas together."""
        return sum(replica.num_microbatches for replica in self.replicas)

    @property
    def num_gpus(self) -> int:
        """World size."""
        return sum(replica.num_gpus for replica in self.replicas)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.global_batch_size * self.sequence_length

    def stages(self) -> Iterator[tuple[int, int, Stage]]:
        """(replica, stage, Stage) in rank order."""
        for r, replica in enumerate(self.replicas):
            for s, stage in enumerate(replica.stages):
                yield r, s, stage

    def gpus_by_pool(self) -> dict[tuple[str, str], int]:
        """(zone, machine type) -> GPUs the plan uses there."""
        used: dict[tuple[str, str], int] = {}
        for _, _, stage in self.stages():
            key = (stage.zone, stage.machine_type)
            used[key] = used.get(key, 0) + stage.tensor_parallel
        return used

    def problems(self, spec: ModelSpec) -> list[str]:
        """Why this plan cannot run this model; empty when it can."""
        found = []
        if self.num_layers != spec.num_layers:
            found.append(f"plan cuts {self.num_layers} blocks, {spec.name} has {spec.num_layers}")
        if self.sequence_length > spec.max_positions:
            found.append(
                f"sequence length {self.sequence_length} exceeds {spec.max_positions} positions"
            )
        for degree in sorted({stage.tensor_parallel for _, _, stage in self.stages()}):
            found += tensor_parallel_problems(spec, degree)
        return found

    def describe(self) -> str:
        """'pp2 x dp2 x tp1' when all replicas are alike, else each replica in short."""
        shapes = [(r.num_stages, tuple(s.tensor_parallel for s in r.stages)) for r in self.replicas]
        if len(set(shapes)) == 1 and len(set(shapes[0][1])) == 1:
            return f"pp{shapes[0][0]} x dp{len(shapes)} x tp{shapes[0][1][0]}"
        return " + ".join(
            f"pp{depth}(tp{','.join(map(str, degrees))})" for depth, degrees in shapes
        )

    def to_json(self) -> bytes:
        """One JSON document, the same bytes for the same plan."""
        document = {"version": VERSION, "plan": self}
        return msgspec.json.format(msgspec.json.encode(document, enc_hook=encode_hook), indent=2)

    @staticmethod
    def from_json(data: bytes) -> Plan:
        """The plan written by to_json. Raises ValueError on anything else."""
        document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if document.get("version") is None or bytes(document["version"]) != str(VERSION).encode():
            raise ValueError(f"not a plan of version {VERSION}")
        return msgspec.json.decode(document["plan"], type=Plan, dec_hook=decode_hook)


def tensor_parallel_problems(spec: ModelSpec, degree: int) -> list[str]:
    """Why the model cannot be cut ``degree`` ways, naming the number that does not divide."""
    return [
        f"tensor_parallel {degree} does not divide {name} {value}"
        for name, value in (
            ("num_heads", spec.num_heads),
            ("num_kv_heads", spec.num_kv_heads),
            ("ffn_hidden_size", spec.ffn_hidden_size),
            ("vocab_size", spec.vocab_size),
        )
        if value % degree
    ]


def encode_hook(value: Any) -> Any:
    """msgspec hook, here and on the wire: a range travels as [start, stop]."""
    if isinstance(value, range):
        return [value.start, value.stop]
    raise NotImplementedError(f"cannot encode {type(value)}")


def decode_hook(kind: type, value: Any) -> Any:
    """The inverse of encode_hook."""
    if kind is range:
        start, stop = value
        return range(start, stop)
    raise NotImplementedError(f"cannot decode {kind}")
