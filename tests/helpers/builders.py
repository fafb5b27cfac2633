"""Small models, plans and members, so that a test's page shows only what matters to it."""

from __future__ import annotations

from collections.abc import Sequence

from sailor.models.spec import Activation, Family, ModelSpec, Norm, Positions
from sailor.parallel.layout import Layout, Member, WorkerId
from sailor.plan import Plan, Replica, Stage


def a_spec(**changes) -> ModelSpec:
    """A GPT small enough for any test: 4 blocks, 32 wide, 4 heads."""
    fields = {
        "name": "gpt_test",
        "family": Family.gpt,
        "num_layers": 4,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_size": 8,
        "ffn_hidden_size": 64,
        "vocab_size": 64,
        "max_positions": 32,
        "tied_embeddings": True,
        "activation": Activation.gelu,
        "norm": Norm.layernorm,
        "norm_epsilon": 1e-5,
        "positions": Positions.learned,
    }
    return ModelSpec(**{**fields, **changes})


def a_stage(start: int, stop: int, *, tp: int = 1, zone: str = "a", **changes) -> Stage:
    fields = {"gpu": "cpu", "machine_type": "local", "zone": zone, "tensor_parallel": tp}
    return Stage(layers=range(start, stop), **{**fields, **changes})


def a_plan(
    *cuts: Sequence[int], microbatches: Sequence[int] | None = None, tp: int = 1, layers: int = 4
) -> Plan:
    """One replica per entry of ``cuts``; each entry lists where its later stages begin.

    ``a_plan([2], [])``: a two-stage replica cut at block 2, and a one-stage replica.
    """
    counts = microbatches or [2] * len(cuts)
    replicas = []
    for cut, count in zip(cuts, counts, strict=True):
        bounds = [0, *cut, layers]
        stages = tuple(a_stage(a, b, tp=tp) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
        replicas.append(Replica(stages=stages, num_microbatches=count, microbatch_size=1))
    return Plan(model="gpt_test", replicas=tuple(replicas), sequence_length=16)


def a_member(node: str, *, slots: int = 1, zone: str = "a", incarnation: int = 1) -> Member:
    workers = tuple(WorkerId(node=node, slot=k, incarnation=incarnation) for k in range(slots))
    return Member(node=node, zone=zone, machine_type="local", workers=workers)


def a_layout(plan: Plan, *, nodes: int | None = None, pieces: int = 1, **changes) -> Layout:
    """The plan on nodes n0, n1, … of one worker each, or of ``slots``."""
    slots = changes.pop("slots", 1)
    count = nodes if nodes is not None else -(-plan.num_gpus // slots)
    members = [a_member(f"n{i}", slots=slots) for i in range(count)]
    return Layout.of(plan, spec=changes.pop("spec", a_spec()), pieces=pieces, members=members)
