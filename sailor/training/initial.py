"""The weights before step 1: a function of (seed, tensor name) alone, or those of a folder.

A folder is read box by box: nobody holds more of the model than it trains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import xxhash

from sailor.models.hf.read import HuggingFaceFolder
from sailor.models.spec import LogicalTensor, ModelSpec
from sailor.parallel.boxes import Box

ReadWeight = Callable[[Box], torch.Tensor]


def initial_weights(spec: ModelSpec, *, seed: int, folder: str) -> ReadWeight:
    """Reads boxes of step 0, best in order of tensors.

    From ``folder``, a Hugging Face model or a torch distributed checkpoint; "" is the seed.
    Raises DataError E511 to E513, as the reader does, when the folder is not what it should be.
    """
    if folder and (Path(folder) / ".metadata").exists():
        from sailor.models.dcp import DcpFolder  # torch's part of it takes a second to load

        return DcpFolder(Path(folder), spec=spec).read
    if folder:
        return HuggingFaceFolder(Path(folder), spec=spec).read
    return _Seeded(spec, seed=seed).read


class _Seeded:
    """Random weights. One whole tensor is kept at a time, for the next box may be of it too."""

    def __init__(self, spec: ModelSpec, *, seed: int) -> None:
        self._logical = {tensor.name: tensor for tensor in spec.tensors}
        self._seed = seed
        self._name = ""
        self._whole = torch.empty(0)

    def read(self, box: Box) -> torch.Tensor:
        if box.tensor != self._name:
            self._whole = initial_weight(self._logical[box.tensor], seed=self._seed)
            self._name = box.tensor
        return self._whole.narrow(box.axis, box.offset, box.extent)


def initial_weight(tensor: LogicalTensor, *, seed: int) -> torch.Tensor:
    """The whole tensor as it is before step 1, on the CPU, whatever layout asks for it."""
    if tensor.init_std == 0.0:
        return torch.zeros(tensor.shape)
    if tensor.init_std == -1.0:
        return torch.ones(tensor.shape)
    generator = torch.Generator().manual_seed(
        xxhash.xxh3_64_intdigest(f"{seed}/{tensor.name}".encode())
    )
    return torch.empty(tensor.shape).normal_(0.0, tensor.init_std, generator=generator)
