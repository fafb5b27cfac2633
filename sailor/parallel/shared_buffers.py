"""Memory of one process that others of its machine read tensors from. It has no name: when the
processes have ended, however they ended, it is gone.
"""

from __future__ import annotations

import mmap
import os
import weakref

import torch

_HEAD_BYTES = mmap.PAGESIZE  # for each member of the group, the last use that it has read
_ROUND_BYTES = 64 << 10  # buffers are a multiple of that: one serves all tensors of about a size


class MappedBuffer:
    """A buffer as a process has it mapped. ``read``: by member, the last use that it has read."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._map = mmap.mmap(descriptor, _HEAD_BYTES + num_bytes)
        self.read = memoryview(self._map)[:_HEAD_BYTES].cast("q")  # stored whole: never half a word
        self._views: dict[tuple[torch.dtype, torch.Size], torch.Tensor] = {}

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """What lies there, as a tensor of that shape and type."""
        key = (tensor.dtype, tensor.shape)
        if key not in self._views:
            flat = torch.frombuffer(
                self._map, dtype=tensor.dtype, count=tensor.numel(), offset=_HEAD_BYTES
            )
            self._views[key] = flat.view(tensor.shape)
        return self._views[key]


class SharedBuffer:
    """One that this process fills. ``use`` counts how often it was."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.use = 0
        self.descriptor = os.memfd_create("sailor-buffer", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, _HEAD_BYTES + num_bytes)
        self.mapped = MappedBuffer(self.descriptor, num_bytes)
        self._readers: tuple[int, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether everybody it was filled for has read it."""
        return all(self.mapped.read[reader] == self.use for reader in self._readers)

    def fill(self, tensor: torch.Tensor, *, readers: tuple[int, ...]) -> None:
        """Copy a tensor there for some members."""
        self.use += 1
        self._readers = readers
        self.mapped.like(tensor).copy_(tensor)


class BufferPool:
    """Buffers of one process for one group; as many as are under way at once."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[SharedBuffer]] = {}  # by size

    def free(self, num_bytes: int) -> SharedBuffer:
        """One that can be filled now."""
        size = -(-num_bytes // _ROUND_BYTES) * _ROUND_BYTES
        buffers = self._buffers.setdefault(size, [])
        for buffer in buffers:
            if buffer.is_free:
                return buffer
        buffers.append(SharedBuffer(size))
        return buffers[-1]
