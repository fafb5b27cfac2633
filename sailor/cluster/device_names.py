"""Which entry of the catalogue a GPU is, by the name its driver gives. Facts only, no torch.

A profile that was measured on a GPU is of use to every plan on that type: so it must be called
what the catalogue calls it. Boards that are sold by the same word but differ (PCIe and SXM, NVL,
laptops, slices of a GPU) are other types; what is in no list here is in no list of prices either.
"""

from __future__ import annotations

from sailor.cluster.gpu import GPU_TYPES, GpuType

# A driver keeps some memory back, error correction up to an eighth; nobody reports more than 5 %
# above what the sheet says.
_LEAST_MEMORY, _MOST_MEMORY = 0.85, 1.05
# Older drivers leave the maker out, and Tesla or GeForce come and go with the series.
_MAKERS = ("nvidia", "amd", "tesla", "geforce", "instinct")

# The name, without makers, lower case -> the catalogue's; memory has to agree.
_NAMES: dict[str, str] = {
    "t4": "T4-16",
    "l4": "L4-24",
    "v100-sxm2-16gb": "V100-16",
    "v100-sxm2-32gb": "V100-32",
    "v100-sxm3-32gb": "V100-32",
    "a10": "A10-24",
    "a10g": "A10G-24",
    "a100-sxm4-40gb": "A100-40",
    "a100-sxm4-80gb": "A100-80",
    "a100-sxm-80gb": "A100-80",
    "a100 80gb pcie": "A100-80-PCIe",
    "a800-sxm4-80gb": "A800-80",
    "rtx a6000": "A6000-48",
    "l40s": "L40S-48",
    "h100 80gb hbm3": "H100-80",
    "h100": "H100-96",
    "h100 pcie": "H100-80-PCIe",
    "gh200 480gb": "GH200-96",  # the word counts the memory of the host
    "gh200 120gb": "GH200-96",
    "h200": "H200-141",
    "b200": "B200-180",
    "gb200": "GB200-186",
    "mi300x": "MI300X-192",
    "rtx 3090": "RTX-3090",
    "rtx 4090": "RTX-4090",
    "rtx 2080 ti": "RTX-2080Ti",
    "titan rtx": "Titan-RTX",
}


def gpu_type_of(device_name: str, *, memory_bytes: float) -> GpuType | None:
    """The catalogue's entry for a device as ``torch.cuda.get_device_properties`` describes it; None
    when it is none of them."""
    words = [word for word in device_name.lower().split() if word not in _MAKERS]
    gpu = GPU_TYPES.get(_NAMES.get(" ".join(words), ""))
    if gpu is None:
        return None
    share = memory_bytes / gpu.memory_bytes
    return gpu if _LEAST_MEMORY <= share <= _MOST_MEMORY else None
