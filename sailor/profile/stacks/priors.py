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
    "matmul_A100": Prior(0.92, 0.1, 0.9527, "share of the best measured product, A100"),
    "matmul_H100": Prior(0.85, 0.12, 0.8368, "the same, Hopper"),
    "matmul_B200": Prior(0.75, 0.15, 0.7862, "the same, Blackwell"),
    "matmul_V100": Prior(0.9, 0.15, 0.9955, "the same, Volta"),
    "matmul_T4": Prior(0.8, 0.25, 1.073, "the same, Turing at 70 W"),
    "matmul_GeForce": Prior(0.9, 0.2, 1.092, "the same, GeForce (of half the tensor rate)"),
    "matmul_other": Prior(0.8, 0.2, 0.8, "the same, devices nobody measured"),
    "fp8_share": Prior(0.75, 0.15, 0.708, "of the gain that fp8 promises"),
    "misaligned": Prior(1.2, 0.3, 1.368, "slow-down of widths that are no multiple of 64"),
    "half_width": Prior(150, 0.6, 78.21, "hidden size of a rank at which products reach half"),
    "half_tokens": Prior(150, 0.6, 350.1, "tokens of a microbatch at which they do"),
    "attention_A100": Prior(
        0.7, 0.25, 0.4375, "fused attention, of the same ceiling: Ampere and older"
    ),
    "attention_H100": Prior(0.5, 0.25, 0.6553, "Hopper, FlashAttention 2"),
    "attention_B200": Prior(0.45, 0.3, 0.3223, "Blackwell"),
    "attention_cudnn": Prior(1.4, 0.15, 1.1, "what cuDNN and TE gain on Hopper and later"),
    "attention_unfused": Prior(0.35, 0.4, 0.4584, "products of unfused attention"),
    "score_passes": Prior(6, 0.4, 7.022, "times an unfused score matrix is moved"),
    "half_sequence": Prior(700, 0.4, 672.5, "tokens of a sequence at which fused attention does"),
    "memory_share": Prior(0.85, 0.1, 0.8218, "of the data sheet bandwidth"),
    "elementwise": Prior(1, 0.4, 1.572, "bytes moved, relative to our count"),
    "launch_python": Prior(
        3e-05, 0.4, 5.29e-05, "seconds to launch a kernel from eager Python stacks"
    ),
    "launch": Prior(1.2e-05, 0.4, 1.182e-05, "the same, leaner stacks"),
    "owner_seconds": Prior(
        8e-05, 0.5, 0.0001007, "per owner and block: exposed gather of sharded optimizers"
    ),
    "early_zero3": Prior(0.35, 0.4, 0.1014, "share of the network the first ZeRO-3 used"),
    "link_share": Prior(0.5, 0.4, 1.015, "of the link inside a machine"),
    "host_share": Prior(0.5, 0.4, 0.3286, "of that where it leads through the host"),
    "ring_seconds": Prior(8e-06, 0.5, 6.673e-06, "start of an all-reduce, per member"),
    "network_share": Prior(0.8, 0.2, 0.8522, "of the card between machines"),
    "tcp_share": Prior(0.5, 0.5, 0.3661, "the same where it is TCP"),
    "gather_exposed": Prior(0.25, 0.5, 0.4624, "of hidden weight gathering"),
    "gather_seconds": Prior(5e-06, 0.7, 3.299e-06, "start of a gather, per member"),
    "reduction_exposed": Prior(0.7, 0.4, 0.929, "of the gradient reduction, the rest overlaps"),
    "overlap_shown": Prior(0.2, 0.5, 0.17, "of a reduction that runs beside computing"),
    "boundary_share": Prior(0.7, 0.5, 2.196, "of the card, stage to stage"),
    "optimizer": Prior(1.2, 0.3, 1.274, "bytes moved, relative to 30 a parameter"),
    "host_seconds": Prior(0.01, 0.6, 0.008639, "per step"),
    "head": Prior(1, 0.2, 0.8547, "relative to our count"),
    "recompute_attention": Prior(1, 0.3, 1.117, "cost of selective recompute"),
    "recompute_some": Prior(0.5, 0.3, 0.4805, "share of forward that op-wise recompute repeats"),
    "end_stage": Prior(
        0.5, 0.5, 0.8626, "of the head that the last stage shows beside fewer blocks"
    ),
}

PEAK: dict[str, Prior] = {
    "activations": Prior(1, 0.2, 1.105, "kept activations, relative to our count"),
    "checkpoints": Prior(1, 0.3, 0.8973, "kept inputs under full recompute, relative"),
    "logit_bytes": Prior(13, 0.2, 8.638, "per logit, unfused loss"),
    "logit_bytes_fused": Prior(6, 0.5, 3.292, "per logit, fused loss"),
    "whole_device_bytes": Prior(
        3e09, 0.3, 3.119e09, "context, communication buffers as nvidia-smi shows"
    ),
    "reserved_bytes": Prior(1.2e09, 0.25, 1.273e09, "beside tensors in reserved blocks"),
    "ranks_bytes": Prior(3e09, 0.5, 4.684e09, "beside tensors, Sailor runs"),
    "allocated_bytes": Prior(5e07, 0.7, 4.992e08, "beside the terms, allocated tensors"),
    "whole_device_factor": Prior(1.12, 0.08, 1.248, "fragmentation seen by nvidia-smi"),
    "reserved_factor": Prior(1.08, 0.05, 1.169, "fragmentation of reserved blocks"),
    "ranks_factor": Prior(1.05, 0.05, 0.8531, "the same, Sailor runs"),
    "work_space": Prior(1, 0.5, 4.103, "relative to our count"),
    "deepspeed_buffers": Prior(1.5e09, 0.6, 1.658e09, "DeepSpeed buckets, bytes"),
    "gathered_blocks": Prior(3, 0.3, 2.082, "blocks whole at a time under full sharding"),
    "sailor_bytes": Prior(22, 0.15, 21.66, "per parameter, fp32 engine of the Sailor artifact"),
    "score_matrix": Prior(1, 0.3, 0.2794, "kept score matrices, relative"),
    "deepspeed_gradient_bytes": Prior(2.5, 0.3, 1.561, "per parameter"),
    "kept_of_some": Prior(0.45, 0.2, 0.3308, "kept under op-wise recompute"),
    "internevo_bytes": Prior(4, 0.4, 7.318, "per parameter beside weights"),
}

# (source, GPU) -> factor on step seconds that its runs show beside the physics: container, driver,
# kernels nobody wrote down. Unknown stacks have 1, give or take 15 %.
STACKS: dict[tuple[str, str], float] = {
    ("AI-Hypercomputer/gpu-recipes", "H200-141"): 1.133,
    ("AI-Hypercomputer/maxtext", "H100-80"): 1.007,
    ("DachengLi1/AMP real trials", "T4-16"): 1.015,
    ("InternLM/InternEvo", "A100-80"): 0.824,
    ("Korthikanti 2022 (arXiv 2205.05198)", "A100-80"): 0.917,
    ("LLaMA paper (arXiv 2302.13971)", "A100-80"): 0.900,
    ("Llama 3 paper (arXiv 2407.21783)", "H100-80"): 1.000,
    ("MT-NLG 530B (arXiv 2201.11990)", "A100-80"): 1.180,
    ("Megatron-LM SC21 (arXiv 2104.04473)", "A100-80"): 0.930,
    ("NVIDIA NeMo/Megatron-Bridge performance summary", "B200-180"): 0.844,
    ("NVIDIA NeMo/Megatron-Bridge performance summary", "GB200-186"): 0.770,
    ("NVIDIA NeMo/Megatron-Bridge performance summary", "H100-80"): 0.913,
    ("NVIDIA/Megatron-LM CI golden values", "A100-80"): 1.061,
    ("NVIDIA/Megatron-LM CI golden values", "GB200-186"): 1.523,
    ("NVIDIA/Megatron-LM CI golden values", "H100-80"): 1.126,
    ("bigscience-workshop/bigscience", "A100-80"): 1.169,
    ("bigscience-workshop/bigscience", "V100-32"): 0.852,
    ("eth-easl/sailor validation", "GH200-96"): 0.964,
    ("jzhang38/TinyLlama", "A100-40"): 0.917,
    ("mosaicml/llm-foundry", "A100-40"): 1.007,
    ("mosaicml/llm-foundry", "A100-80"): 1.006,
    ("mosaicml/llm-foundry", "H100-80"): 1.127,
    ("pytorch/torchtitan", "H100-96"): 1.061,
    ("pytorch/torchtitan", "H200-141"): 1.066,
    ("tylerromero.com nanogpt speedrun worklog", "RTX-4090"): 0.784,
    ("vTrain/multi", "A100-80"): 0.932,
}

# 99.5 % of the measured peaks stay below the prediction times this.
PEAK_MARGIN = 1.95
