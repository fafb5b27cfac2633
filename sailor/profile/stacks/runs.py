"""Published training runs as columns: what ran, on what, how it was laid out, what was measured.

Reads the CSV form of the collection that accuracy is scored on (benchmarks/accuracy.py). Words of
the sources ("full?", "zero1(group 8)", "800 (Slingshot 4x200)") become flags and numbers here, and
only here. Other engines than ours do things ours does not (full sharding, interleaved schedules,
fp8, context parallelism): a run's columns say which, and step.py and peak.py price them with the
same physics.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sailor.cluster.gpu import GPU_TYPES, GpuType
from sailor.profile.stacks.priors import gpu_class

Column = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# The collection's names of GPUs in our words.
_GPU_NAMES = {
    "T4-16": "T4-16", "V100-16-SXM": "V100-16", "V100-32-SXM": "V100-32",
    "A100-40-SXM": "A100-40", "A100-80-SXM": "A100-80", "A800-80-SXM": "A800-80",
    "H100-80-SXM": "H100-80", "H100-96-HBM2e": "H100-96", "H200-141-SXM": "H200-141",
    "GH200-96": "GH200-96", "B200-180-SXM": "B200-180", "GB200-186-SXM": "GB200-186",
    "RTX-4090": "RTX-4090", "RTX-4090-24": "RTX-4090", "RTX-3090": "RTX-3090",
    "RTX-3090-24": "RTX-3090", "A100-80-PCIe": "A100-80-PCIe", "H100-80-PCIe": "H100-80-PCIe",
    "L4-24": "L4-24", "A10G-24": "A10G-24", "L40S-48": "L40S-48", "MI300X-192": "MI300X-192",
    "RTX-2080Ti-11": "RTX-2080Ti", "RTX-2080": "RTX-2080Ti", "Titan-RTX-24": "Titan-RTX",
    "Titan-RTX": "Titan-RTX",
}  # fmt: skip
# Network rates in Gb/s a machine where the source gives none: usual for machines of that class.
_USUAL_GBPS = {"A100": 800.0, "H100": 3200.0, "B200": 3200.0, "V100": 100.0, "T4": 50.0}
# NVLink domains that are larger than a machine.
_NVLINK_DOMAIN = {"GB200-186": 72.0}
_FP8_GAIN = {"H100": 2.0, "B200": 2.0}  # fp8 peak over bf16 peak


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Rows as columns, one entry a run. ``rows`` are the CSV's own, for names and notes."""

    columns: Mapping[str, Column]
    classes: npt.NDArray[np.str_]
    gpus: npt.NDArray[np.str_]
    sources: npt.NDArray[np.str_]
    rows: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def where(self, mask: Mask) -> Runs:
        """The runs of a mask."""
        return Runs(
            columns={name: column[mask] for name, column in self.columns.items()},
            classes=self.classes[mask],
            gpus=self.gpus[mask],
            sources=self.sources[mask],
            rows=tuple(row for row, kept in zip(self.rows, mask.tolist(), strict=True) if kept),
        )

    def with_columns(self, **changed: Column) -> Runs:
        """The same runs with some columns replaced."""
        return Runs(
            columns={**self.columns, **changed}, classes=self.classes, gpus=self.gpus,
            sources=self.sources, rows=self.rows,
        )  # fmt: skip


def read_runs(path: Path) -> tuple[Runs, dict[str, int]]:
    """The runs of a file that can be priced, and how many were left out, by reason.

    Raises ValueError when the file lacks the columns.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    missing = {"gpu", "layers", "hidden", "num_gpus", "iter_time_s"} - set(rows[0] if rows else {})
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))}")
    return runs_of(rows)


def runs_of(rows: Sequence[Mapping[str, str]]) -> tuple[Runs, dict[str, int]]:
    """Rows as Runs, and how many were left out, by reason."""
    kept: list[Mapping[str, str]] = []
    values: list[dict[str, float]] = []
    left_out: dict[str, int] = {}
    for row in rows:
        reason = _unusable(row)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        kept.append(row)
        values.append(_values(row))
    names = values[0].keys() if values else ()
    gpus = [_gpu(row["gpu"]) for row in kept]
    return (
        Runs(
            columns={name: np.array([value[name] for value in values]) for name in names},
            classes=np.array([gpu_class(gpu) for gpu in gpus]),
            gpus=np.array([gpu.name for gpu in gpus]),
            sources=np.array([row["source"] for row in kept]),
            rows=tuple(kept),
        ),
        left_out,
    )


def number(text: str, default: float = 0.0) -> float:
    """The first number in a text: '800 (Slingshot 4x200)' is 800."""
    found = re.search(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", text or "")
    return float(found[0]) if found else default


def rate(text: str) -> float:
    """A stated rate, the geometric mean of a stated range ('~1 to 25' is 5); 0 where none is."""
    ends = re.search(r"([\d.]+) *(?:to|-) *([\d.]+)", text or "")
    return (float(ends[1]) * float(ends[2])) ** 0.5 if ends else number(text)


# Stacks that compile, or whose documentation names fused norms, activations and rotations: XLA;
# Apex and FlashAttention's kernels; Transformer Engine. llm.c's PyTorch script is run with
# --compile.
_FUSING = ("MaxText", "llm.c", "lit-gpt", "InternEvo", "NeMo", "Megatron-Core")


def _fused(framework: str, notes: str) -> bool:
    """Whether elementwise work is fused."""
    return "torch.compile" in notes or any(name in framework for name in _FUSING)


def _of_regular_test(row: Mapping[str, str]) -> bool:
    """Megatron-LM's own tests with Transformer Engine ask for its unfused attention
    (tests/functional_tests, model_config.yaml: attention-backend), save those that resume and those
    with context parallelism, which it lacks."""
    model = row["model"]
    return model.startswith("gpt3_mcore_te") and "resume" not in model and "cp2" not in model


def _dated(row: Mapping[str, str]) -> float:
    """Year and month in the name of the source's page ("llama3_h100_202412"); 0 where none is."""
    found = re.search(r"(20\d\d)-?(0[1-9]|1[0-2])", row.get("source_detail", ""))
    return float(found[1] + found[2]) if found else 0.0


def _stages(notes: str, *, layers: float, pp: float) -> list[float]:
    """Blocks of each stage, from a note that counts embedding and head as layers of the first and
    the last ("stage layers [7, 9, 9, 9] (incl. embedding+head layers)"); even where none says."""
    found = re.search(r"stage layers \[([\d, ]+)\] \(incl", notes)
    stated = [float(part) for part in found[1].split(",")] if found else []
    if len(stated) != pp or sum(stated) != layers + 2:
        return [float(ceil(layers / pp - 1e-9))] * int(pp)
    stated[0] -= 1
    stated[-1] -= 1
    return stated


def _gpu(name: str) -> GpuType:
    """The GPU of a run."""
    return GPU_TYPES[_GPU_NAMES[name]]


def _unusable(row: Mapping[str, str]) -> str | None:
    """Why a row cannot be priced."""
    if len(re.split(r"[+,]", row["gpu"])) > 1:
        return "several GPU types in one run: which of them ran what is not stated"
    if row["gpu"] not in _GPU_NAMES:
        return "unknown GPU"
    if not number(row["layers"]) or not number(row["hidden"]) or not number(row["num_gpus"]):
        return "model or size not stated"
    if "grpo" in row["model"].lower():
        return "reinforcement learning: most of its step is generation"
    return None


def _values(row: Mapping[str, str]) -> dict[str, float]:
    """One row's columns."""
    gpu = _gpu(row["gpu"])
    kind = gpu_class(gpu)
    layers, hidden = number(row["layers"]), number(row["hidden"])
    inner = number(row["ffn_hidden"]) or 4 * hidden
    heads = number(row["heads"], 1.0) or 1.0
    kv_heads = number(row["kv_heads"]) or heads
    vocab = number(row["vocab"]) or 50304.0
    gated = "swiglu" in row["arch"]
    if gated and inner % 64:
        # Two thirds of four times the hidden size, as some sources give it, is what LLaMA's code
        # and those after it round up to a multiple of 256 (model.py, multiple_of).
        inner = 256.0 * ceil(inner / 256)
    block = hidden * (2 * hidden + 2 * hidden * kv_heads / heads)
    block += hidden * inner * (3 if gated else 2)
    matrices = 2 if "untied" in row["arch"] else 1
    num_gpus = number(row["num_gpus"])
    tp, pp, cp = (max(1.0, number(row[name], 1.0)) for name in ("tp", "pp", "cp"))
    dp = number(row["dp"]) or num_gpus / tp / pp / cp
    stated = number(row["micro_batch"])
    titan = "torchtitan" in row["framework"]
    # torchtitan's figure is a rank's whole batch; its pipelines of 2024 cut that into as many
    # microbatches as there are stages (pipelining_utils.py: n_microbatches, by default the degree).
    microbatch = max(1.0, stated / pp) if titan and pp > 1 else stated or 1.0
    notes = row.get("notes", "")
    # Its interleaved schedules place two stages on a rank (pipelining_utils.py, stages_per_rank).
    interleaving = 2.0 if titan and "interleaved" in notes else 1.0
    stages = _stages(notes, layers=layers, pp=pp)
    # A later stage with more blocks may hold more, though fewer microbatches are in flight there.
    fullest = max((blocks * (pp - i), blocks, float(i)) for i, blocks in enumerate(stages))[1:]
    sharding, recompute = row["zero_fsdp"], row["recompute"]
    kernel, precision = row["flash_attn"], row["precision"]
    machine_gpus = number(row["gpus_per_node"], 8.0) or 8.0
    full_sharding = sharding.startswith(("fsdp", "zero3", "model+sequence")) and not (
        "in node" in sharding or "zero2" in sharding
    )
    optimizer_sharding = "zero1" in sharding
    tcp = kind in ("T4", "GeForce")
    return {
        "layers": layers, "hidden": hidden, "inner": inner, "heads": heads,
        "kv_share": kv_heads / heads, "vocab": vocab, "gated": float(gated),
        "block_parameters": block,
        "parameters": layers * block + vocab * hidden * matrices,
        "untied": float(matrices == 2),
        "tokens_per_sequence": number(row["seq"], 2048.0),
        "global_batch": number(row["global_batch"]) or microbatch * dp,
        "microbatch": microbatch,
        "microbatch_stated": float(bool(stated)),
        "tp": tp, "pp": pp, "cp": cp, "dp": dp,
        # Megatron and Llama 3 balance context parallelism (Llama Team 2024, section 3.3.2).
        "contiguous_context": float(titan and cp > 1),
        "interleaving": max(interleaving, number(row["vpp"], 1.0)),
        "first_blocks": stages[0], "inner_blocks": max(stages), "last_blocks": stages[-1],
        "fullest_blocks": fullest[0], "fullest_stage": fullest[1],
        "stages_stated": float(len(set(stages)) > 1),
        "num_gpus": num_gpus, "machine_gpus": machine_gpus,
        "nvlink_gpus": _NVLINK_DOMAIN.get(gpu.name, machine_gpus),
        "network_bytes": 1e9 / 8
        * (rate(row["internode_gbps_per_node"]) or _USUAL_GBPS.get(kind, 10.0)),
        "tcp": float(tcp),
        "matmul": gpu.matmul_flops or 0.85 * gpu.peak_flops,
        "memory_rate": gpu.memory_bytes_per_second,
        "capacity": float(gpu.memory_bytes),
        "link": gpu.link_bytes_per_second,
        "fp8": float("fp8" in precision and "unclear" not in precision),
        "fp8_gain": _FP8_GAIN.get(kind, 1.0),
        "fp32": float("fp32" in precision),
        "recompute_all": float(recompute.startswith("full")),
        "recompute_attention": float(recompute == "selective"),
        "recompute_some": float(recompute == "selective(op)"),
        "recompute_cheap": float(
            recompute.startswith("selective(") and recompute != "selective(op)"
        ),
        "fused_attention": float(not kernel.startswith("no") and not _of_regular_test(row)),
        # torchtitan compiles its loss since April 2025 (pull request 1033): logits never widen.
        "compiled_loss": float(titan and "torch.compile" in notes and _dated(row) >= 202504),
        "fast_attention": float(
            kernel.startswith(("TE", "cudnn")) and kind in ("H100", "B200")
        ),
        "sequence_parallel": float(row["seq_parallel"] == "yes"),
        "sharded_all": float(full_sharding),
        "sharded_machine": float("in node" in sharding),
        "sharded_gradients": float("zero2" in sharding),
        "sharded_optimizer": float(optimizer_sharding),
        "gather_exposed": float(optimizer_sharding and "dist-optimizer" not in sharding
                                and "group" not in sharding),
        # Megatron-Core's recipes ask for it (--overlap-grad-reduce, --overlap-param-gather).
        "overlapped_reduction": float("dist-optimizer" in sharding),
        "shard_group": 8.0 if "group 8" in sharding else 4.0 if "group 4" in sharding else 0.0,
        "deepspeed": float("DeepSpeed" in row["framework"]),
        "early_zero3": float(sharding == "zero3"),
        "fused_kernels": float(_fused(row["framework"], notes)),
        "eager_python": float(
            any(name in row["framework"] for name in ("DeepSpeed", "Sailor", "Megatron-LM"))
        ),
        "seconds": number(row["iter_time_s"]),
        "memory_gb": number(row.get("measured_memory_gb", "")),
    }  # fmt: skip
