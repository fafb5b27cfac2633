"""Copies of a worker's state into snapshot memory, beside training.

The next step computes meanwhile, and only its update has to wait, for it changes what is being
copied. From a GPU a copy runs on a stream of its own into memory the driver has locked; on a CPU
the thread makes it that on a GPU waits for its end. It takes a processor's time then, but what a
step leaves idle while it waits for its peers.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
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

    def begin(self, pairs: Sequence[Pair]) -> Copy:
        """A copy of what is there now, to be seen through."""
        if self._stream is None:
            return Copy(lambda: _copy(pairs))
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _copy(pairs)
            event: Any = torch.cuda.Event()
            event.record()
        return Copy(event.synchronize, event=event)


class Copy:
    """A copy under way, or made. Whoever waits for it waits for this process's own thread: it ends
    the process if it fails, and a training thread that waits too long is taken for hung."""

    def __init__(self, work: Callable[[], object], *, event: Any = None) -> None:
        """``work`` makes it, or on a GPU awaits ``event``, the CUDA event it ends with."""
        self._work, self._event = work, event
        self._began = time.monotonic()
        self._then: Callable[[float], object] = lambda seconds: None
        self._copied, self._told = threading.Event(), threading.Event()

    def see_through(self, then: Callable[[float], object]) -> None:
        """Have a thread make it and call ``then`` with the seconds it took, once all is copied."""
        self._then = then
        _copies().put(self)

    def hold(self) -> None:
        """Let nothing that is started from here on change what is being copied."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        else:
            self._copied.wait()

    def wait(self) -> None:
        """Return when it is whole and ``then`` was called."""
        self._told.wait()

    def make(self) -> None:
        """The thread's business."""
        self._work()
        seconds = time.monotonic() - self._began
        self._copied.set()
        self._then(seconds)
        self._told.set()


@cache
def _copies() -> queue.SimpleQueue[Copy]:
    """What this process's thread for copies is to make, one after the other."""
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def make_them() -> None:
        while True:
            copies.get().make()

    threading.Thread(target=make_them, name="snapshots", daemon=True).start()
    return copies


def _copy(pairs: Sequence[Pair]) -> None:
    for target, source in pairs:
        target.copy_(source, non_blocking=True)


def _lock(segment: Segment) -> None:
    """Have the driver lock a mapping until the segment is forgotten. Copies are slower without."""
    memory = np.frombuffer(segment.memory, dtype=np.uint8)
    runtime: Any = torch.cuda.cudart()
    status = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
    if int(status) != 0:
        log.warning("%s is not locked (CUDA error %d): snapshots are slower", segment, int(status))
        return
    weakref.finalize(segment, runtime.cudaHostUnregister, memory.ctypes.data)
