"""Copies of a worker's state into snapshot memory, beside training where the device can.

On a CPU a copy is made when it is asked for. From a GPU it runs on a stream of its own into memory
the driver has locked: the next step computes meanwhile, and only its update has to wait, for it
changes what is being copied.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from sailor.checkpoint.segment import Segment

log = logging.getLogger(__name__)

Pair = tuple[torch.Tensor, torch.Tensor]  # to, from


class SideCopy:
    """Makes copies from one device."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream()

    def lock(self, segments: Iterable[Segment]) -> None:
        """Lock segments' memory, so that copies into it run by themselves."""
        if self._stream is not None:
            for segment in segments:
                _lock(segment)

    def start(self, pairs: Sequence[Pair]) -> Any:
        """Copy what is there now. None when it is done, else the CUDA event that it ends with."""
        if self._stream is None:
            for target, source in pairs:
                target.copy_(source)
            return None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            event: Any = torch.cuda.Event()
            event.record()
        return event


def _lock(segment: Segment) -> None:
    """Have the driver lock a mapping until the segment is forgotten. Copies are slower without."""
    memory = np.frombuffer(segment.memory, dtype=np.uint8)
    runtime: Any = torch.cuda.cudart()
    status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
    if int(status) != 0:
        log.warning("%s is not locked (CUDA error %d): snapshots are slower", segment, int(status))
        return
    weakref.finalize(segment, runtime.cudaHostUnregister, memory.ctypes.data)
