"""What training stacks sustain, as numbers with a prior, a spread and a fitted value.

The prior is from data sheets, operator timings and papers, the spread how far off it may be (a
standard deviation of the logarithm), the fitted value what 460 published runs of 18 sources say
(fit.py; no run is copied here). The analytic profile takes its efficiencies from here, so that what
is checked against measurements is what plans are made with.
"""

from __future__ import annotations

from dataclasses import dataclass

from sailor.cluster.gpu import GpuType


@dataclass(frozen=True, slots=True)
class Prior:
    """One number before and after fitting."""

    prior: float
    spread: float
    fitted: float
    meaning: str


LAUNCHES = 20  # kernels of a block's forward
TENSORS = 12  # of a GPT block: four matrices, their biases, two norms
ATTENTION_BACKWARD = 3.0  # flash attention: 2.5 times the arithmetic at a lower rate

# Prefixes of GPU names, and the architecture whose efficiencies they share.
_CLASSES = (
    ("A100", "A100"), ("A800", "A100"), ("H100", "H100"), ("H200", "H100"), ("GH200", "H100"),
    ("B200", "B200"), ("GB200", "B200"), ("V100", "V100"), ("T4", "T4"), ("RTX", "GeForce"),
    ("Titan", "T4"),
)  # fmt: skip


def gpu_class(gpu: GpuType) -> str:
    """The architecture family of a GPU; "other" for devices nobody measured."""
    for prefix, name in _CLASSES:
        if gpu.name.startswith(prefix):
            return name
    return "other"


STEP: dict[str, Prior] = {
    "matmul_A100": Prior(0.92, 0.1, 0.9325, "share of the best measured product, A100"),
    "matmul_H100": Prior(0.85, 0.12, 0.8543, "the same, Hopper"),
    "matmul_B200": Prior(0.75, 0.15, 0.7841, "the same, Blackwell"),
    "matmul_V100": Prior(0.9, 0.15, 0.9977, "the same, Volta"),
    "matmul_T4": Prior(0.8, 0.25, 1.096, "the same, Turing at 70 W"),
    "matmul_GeForce": Prior(0.9, 0.2, 1.086, "the same, GeForce (of half the tensor rate)"),
    "matmul_other": Prior(0.8, 0.2, 0.8, "the same, devices nobody measured"),
    "fp8_share": Prior(0.75, 0.15, 0.8048, "of the gain that fp8 promises"),
    "misaligned": Prior(1.2, 0.3, 1.431, "slow-down of widths that are no multiple of 64"),
    "half_width": Prior(150, 0.6, 88.52, "hidden size of a rank at which products reach half"),
    "half_tokens": Prior(150, 0.6, 232.1, "tokens of a microbatch at which they do"),
    "attention_A100": Prior(
        0.7, 0.25, 0.4338, "fused attention, of the same ceiling: Ampere and older"
    ),
    "attention_H100": Prior(0.5, 0.25, 0.6172, "Hopper, FlashAttention 2"),
    "attention_B200": Prior(0.45, 0.3, 0.3104, "Blackwell"),
    "attention_cudnn": Prior(1.4, 0.15, 1.069, "what cuDNN and TE gain on Hopper and later"),
    "attention_unfused": Prior(0.35, 0.4, 0.4619, "products of unfused attention"),
    "score_passes": Prior(6, 0.4, 6.814, "times an unfused score matrix is moved"),
    "half_sequence": Prior(700, 0.4, 768.3, "tokens of a sequence at which fused attention does"),
    "memory_share": Prior(0.85, 0.1, 0.7708, "of the data sheet bandwidth"),
    "elementwise": Prior(1, 0.4, 1.325, "bytes moved, relative to our count"),
    "elementwise_fused": Prior(0.7, 0.3, 1.327, "the same, compiled or with fused kernels"),
    "launch_python": Prior(
        3e-05, 0.4, 5.045e-05, "seconds to launch a kernel from eager Python stacks"
    ),
    "launch": Prior(1.2e-05, 0.4, 1.186e-05, "the same, leaner stacks"),
    "owner_seconds": Prior(
        8e-05, 0.5, 8.682e-05, "per owner and block: exposed gather of sharded optimizers"
    ),
    "early_zero3": Prior(0.35, 0.4, 0.1757, "share of the network the first ZeRO-3 used"),
    "link_share": Prior(0.5, 0.4, 0.9833, "of the link inside a machine"),
    "host_share": Prior(0.5, 0.4, 0.3297, "of that where it leads through the host"),
    "ring_seconds": Prior(8e-06, 0.5, 6.772e-06, "start of an all-reduce, per member"),
    "network_share": Prior(0.8, 0.2, 0.9364, "of the card between machines"),
    "tcp_share": Prior(0.5, 0.5, 0.3665, "the same where it is TCP"),
    "gather_exposed": Prior(0.25, 0.5, 0.2595, "of hidden weight gathering"),
    "gather_seconds": Prior(5e-06, 0.7, 5.005e-06, "start of a gather, per member"),
    "reduction_exposed": Prior(0.7, 0.4, 0.9802, "of the gradient reduction, the rest overlaps"),
    "overlap_shown": Prior(0.2, 0.5, 0.1722, "of a reduction that runs beside computing"),
    "boundary_share": Prior(0.7, 0.5, 2.09, "of the card, stage to stage"),
    "optimizer": Prior(1.2, 0.3, 1.291, "bytes moved, relative to 30 a parameter"),
    "host_seconds": Prior(0.01, 0.6, 0.009153, "per step"),
    "head": Prior(1, 0.2, 0.8082, "relative to our count"),
    "recompute_attention": Prior(1, 0.3, 1.085, "cost of selective recompute"),
    "recompute_some": Prior(0.5, 0.3, 0.6741, "share of forward that op-wise recompute repeats"),
    "end_stage": Prior(
        0.5, 0.5, 1.066, "of the head that the last stage shows beside fewer blocks"
    ),
}

PEAK: dict[str, Prior] = {
    "activations": Prior(1, 0.1, 1.005, "kept activations, relative to our count"),
    "checkpoints": Prior(1, 0.1, 1.36, "kept inputs under full recompute, relative"),
    "logit_bytes": Prior(13, 0.2, 13.51, "per logit, unfused loss"),
    "logit_bytes_fused": Prior(6, 0.5, 6.054, "per logit, fused loss"),
    "whole_device_bytes": Prior(
        3e09, 0.3, 3.467e09, "context, communication buffers as nvidia-smi shows"
    ),
    "reserved_bytes": Prior(1.2e09, 0.25, 1.319e09, "beside tensors in reserved blocks"),
    "ranks_bytes": Prior(4.76e09, 0.2, 4.466e09, "beside tensors, Sailor runs"),
    "allocated_bytes": Prior(5e07, 0.7, 1.047e08, "beside the terms, allocated tensors"),
    "fragmentation": Prior(1.06, 0.06, 0.9374, "blocks reserved for what comes and goes, relative"),
    "work_space": Prior(1, 0.5, 0.9951, "relative to our count"),
    "deepspeed_buffers": Prior(1.5e09, 0.6, 2.109e09, "DeepSpeed buckets, bytes"),
    "gathered_blocks": Prior(3, 0.3, 2.135, "blocks whole at a time under full sharding"),
    "sailor_bytes": Prior(24, 0.1, 22.62, "per parameter, fp32 engine of the Sailor artifact"),
    "internevo_bytes": Prior(4, 0.4, 12.41, "per parameter beside weights"),
}

# (source, GPU) -> factor on step seconds that its runs show beside the physics: container, driver,
# kernels nobody wrote down. Unknown stacks have 1, give or take 15 %.
STACKS: dict[tuple[str, str], float] = {
    ("AI-Hypercomputer/gpu-recipes", "H200-141"): 1.170,
    ("AI-Hypercomputer/maxtext", "H100-80"): 1.032,
    ("DachengLi1/AMP real trials", "T4-16"): 1.000,
    ("InternLM/InternEvo", "A100-80"): 1.010,
    ("Korthikanti 2022 (arXiv 2205.05198)", "A100-80"): 0.890,
    ("LLaMA paper (arXiv 2302.13971)", "A100-80"): 0.951,
    ("Llama 3 paper (arXiv 2407.21783)", "H100-80"): 0.983,
    ("MT-NLG 530B (arXiv 2201.11990)", "A100-80"): 1.159,
    ("Megatron-LM SC21 (arXiv 2104.04473)", "A100-80"): 0.917,
    ("NVIDIA NeMo/Megatron-Bridge performance summary", "B200-180"): 0.843,
    ("NVIDIA NeMo/Megatron-Bridge performance summary", "GB200-186"): 0.786,
    ("NVIDIA NeMo/Megatron-Bridge performance summary", "H100-80"): 0.910,
    ("NVIDIA/Megatron-LM CI golden values", "A100-80"): 1.043,
    ("NVIDIA/Megatron-LM CI golden values", "GB200-186"): 1.499,
    ("NVIDIA/Megatron-LM CI golden values", "H100-80"): 1.124,
    ("bigscience-workshop/bigscience", "A100-80"): 1.129,
    ("bigscience-workshop/bigscience", "V100-32"): 0.847,
    ("eth-easl/sailor validation", "GH200-96"): 0.944,
    ("jzhang38/TinyLlama", "A100-40"): 0.934,
    ("mosaicml/llm-foundry", "A100-40"): 1.008,
    ("mosaicml/llm-foundry", "A100-80"): 1.000,
    ("mosaicml/llm-foundry", "H100-80"): 1.169,
    ("pytorch/torchtitan", "H100-96"): 1.015,
    ("pytorch/torchtitan", "H200-141"): 1.077,
    ("tylerromero.com nanogpt speedrun worklog", "RTX-4090"): 0.790,
    ("vTrain/multi", "A100-80"): 0.918,
}

# 99.5 % of the measured peaks stay below the prediction times this.
PEAK_MARGIN = 1.47
