"""What a GPU, or this computer's CPU posing as one, can do. Facts only; each carries its source."""

from __future__ import annotations

from dataclasses import dataclass

from sailor.units import GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuType:
    """One accelerator model. Peaks are dense (no sparsity), with fp32 accumulation.

    ``link_bytes_per_second`` is one direction between two GPUs of the same machine. The planner
    takes ``matmul_flops``, the best large matrix product somebody measured, as the ceiling where
    it is known: data sheets are 10-50 % above what silicon under a power cap delivers.
    ``has_context`` is False for the CPU, where no driver context eats into the memory.
    """

    name: str
    memory_bytes: int
    peak_flops: float  # bf16 where it has it, else fp16 tensor cores
    peak_flops_fp32: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    has_bf16: bool
    source: str
    matmul_flops: float | None = None
    has_context: bool = True

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "peak_flops", "peak_flops_fp32", "memory_bytes_per_second"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{self.name}: {name} must be positive, got {value}")


def _gpu(
    name: str, gib: int, bandwidth: float, half: float, single: float, link: float, source: str,
    *, matmul: float | None = None, bf16: bool = True,
) -> GpuType:  # fmt: skip
    """Units of data sheets: GiB, GB/s, TFLOP/s. Links without NVLink go through the host."""
    return GpuType(
        name=name,
        memory_bytes=gib * GIB,
        peak_flops=half * 1e12,
        peak_flops_fp32=single * 1e12,
        memory_bytes_per_second=bandwidth * 1e9,
        link_bytes_per_second=link * 1e9,
        has_bf16=bf16,
        source=source,
        matmul_flops=None if matmul is None else matmul * 1e12,
    )


_SHEET = "vendor data sheet"
_MAMF = "data sheet; matmul: ml-engineering MAMF table"
_HOST = "data sheet; no direct link, host PCIe taken"

# name, GiB, memory GB/s, fp16/bf16 TFLOP/s, fp32 TFLOP/s, link GB/s one way. GeForce tensor cores
# run at half rate with fp32 accumulation, which training needs: their figures are halved ones.
GPU_TYPES: dict[str, GpuType] = {
    gpu.name: gpu
    for gpu in (
        _gpu("T4-16", 16, 320, 65, 8.1, 13, _HOST + "; 70 W cap", matmul=30, bf16=False),
        _gpu("L4-24", 24, 300, 121, 30.3, 20, _HOST + "; 72 W cap", matmul=75),
        _gpu("V100-16", 16, 900, 125, 15.7, 150, _SHEET, matmul=96.7, bf16=False),
        _gpu("V100-32", 32, 900, 125, 15.7, 150, _SHEET, matmul=87.5, bf16=False),
        _gpu("A10-24", 24, 600, 125, 31.2, 20, _HOST + "; 150 W cap", matmul=75),
        _gpu("A10G-24", 24, 600, 70, 31.2, 20, _HOST),
        _gpu("A100-40", 40, 1555, 312, 19.5, 300, _MAMF, matmul=271.2),
        _gpu("A100-80", 80, 2039, 312, 19.5, 300, _MAMF, matmul=271.2),
        _gpu("A100-80-PCIe", 80, 1935, 312, 19.5, 20, _MAMF, matmul=252.9),
        _gpu("A800-80", 80, 2039, 312, 19.5, 200, _SHEET, matmul=271.2),
        _gpu("A6000-48", 48, 768, 155, 38.7, 20, _HOST),
        _gpu("L40S-48", 48, 864, 362, 91.6, 20, _HOST, matmul=250),
        _gpu("H100-80", 80, 3350, 989, 67, 450, _MAMF, matmul=794.5),
        _gpu("H100-80-PCIe", 80, 2000, 756, 51, 50, _SHEET),
        _gpu(
            "H100-96",
            96,
            2400,
            800,
            60,
            450,
            "500 W HBM2e variant of published torchtitan runs",
            matmul=600,
        ),  # fmt: skip
        # Four to a board, 150 GB/s to each of three others.
        _gpu("GH200-96", 96, 4000, 989, 67, 450, "data sheet; matmul: Alps profile", matmul=699.2),
        _gpu("H200-141", 141, 4800, 989, 67, 450, _MAMF, matmul=794.5),
        _gpu("B200-180", 180, 8000, 2250, 80, 900, _MAMF, matmul=1745),
        _gpu("GB200-186", 186, 8000, 2500, 80, 900, _MAMF, matmul=1822),
        _gpu("MI300X-192", 192, 5300, 1307, 163.4, 64, _MAMF, matmul=668.4),
        _gpu("RTX-3090", 24, 936, 71, 35.6, 12, _SHEET, matmul=71),
        _gpu("RTX-4090", 24, 1008, 165.2, 82.6, 20, _HOST),
        _gpu("RTX-2080Ti", 11, 616, 53.8, 13.4, 12, _SHEET, matmul=53, bf16=False),
        _gpu("Titan-RTX", 24, 672, 130.5, 16.3, 25, _SHEET, matmul=95, bf16=False),
    )
}
