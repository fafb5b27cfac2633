"""Says what the CUDA device at hand is: ``python -m sailor.measure.device`` prints one JSON object.

A process of its own, because asking loads torch and takes the device's context.
"""

from __future__ import annotations

import json
import sys

import torch


def main() -> None:
    """Name and memory of the first device, and how many there are."""
    properties = torch.cuda.get_device_properties(0)
    answer = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "count": torch.cuda.device_count(),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
