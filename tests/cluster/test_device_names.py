"""Names as torch reports them, and what the catalogue calls such a GPU."""

from __future__ import annotations

import pytest

from sailor.cluster.device_names import gpu_type_of
from sailor.cluster.gpu import GPU_TYPES
from sailor.units import GIB


@pytest.mark.parametrize(
    ("reported", "gib", "name"),
    [
        ("Tesla T4", 14.6, "T4-16"),
        ("NVIDIA L4", 22.0, "L4-24"),
        ("Tesla V100-SXM2-16GB", 15.8, "V100-16"),
        ("Tesla V100-SXM2-32GB", 31.7, "V100-32"),
        ("NVIDIA A10", 22.2, "A10-24"),
        ("NVIDIA A10G", 22.0, "A10G-24"),
        ("A100-SXM4-40GB", 39.6, "A100-40"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-80"),
        ("NVIDIA A100 80GB PCIe", 79.2, "A100-80-PCIe"),
        ("NVIDIA A800-SXM4-80GB", 79.3, "A800-80"),
        ("NVIDIA RTX A6000", 47.5, "A6000-48"),
        ("NVIDIA L40S", 44.4, "L40S-48"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100-80"),
        ("NVIDIA H100 PCIe", 79.1, "H100-80-PCIe"),
        ("NVIDIA H100", 94.6, "H100-96"),
        ("NVIDIA GH200 480GB", 94.5, "GH200-96"),
        ("NVIDIA GH200 120GB", 95.0, "GH200-96"),
        ("NVIDIA H200", 139.8, "H200-141"),
        ("NVIDIA B200", 178.4, "B200-180"),
        ("NVIDIA GB200", 184.0, "GB200-186"),
        ("AMD Instinct MI300X", 191.7, "MI300X-192"),
        ("GeForce RTX 3090", 23.7, "RTX-3090"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX-4090"),
        ("NVIDIA GeForce RTX 2080 Ti", 10.8, "RTX-2080Ti"),
        ("NVIDIA TITAN RTX", 23.6, "Titan-RTX"),
    ],
)
def test_a_device_is_called_what_the_catalogue_calls_it(reported, gib, name):
    assert gpu_type_of(reported, memory_bytes=gib * GIB) is GPU_TYPES[name]


@pytest.mark.parametrize(
    ("reported", "gib"),
    [
        ("NVIDIA H100 NVL", 93.1),  # another board
        ("NVIDIA A100-PCIE-40GB", 39.4),  # no NVLink, and in no list of prices
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19.6),  # a slice
        ("NVIDIA H100 80GB HBM3", 39.5),  # the whole name, half of the memory
        ("NVIDIA GH200 144G HBM3e", 141.0),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7),
        ("NVIDIA RTX 6000 Ada Generation", 47.4),
        ("Tesla K80", 11.4),
        ("", 16.0),
    ],
)
def test_a_device_that_is_another_is_not_taken_for_its_namesake(reported, gib):
    assert gpu_type_of(reported, memory_bytes=gib * GIB) is None
