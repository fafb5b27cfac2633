"""Models as a torch distributed checkpoint (DCP), out and in: tensors are written and read singly.

The names are ours: "model.<tensor>", and "optimizer.moment1.<tensor>", "optimizer.moment2.<tensor>"
for the Adam moments. torch keeps a checkpoint's table of contents as a pickle. It is read here by
an unpickler that knows the classes of that table and no other, so that a folder from somewhere else
cannot run code; tensors are loaded with weights_only.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed.checkpoint import metadata as tables
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save

from sailor.errors import DataError
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import Box

METADATA = ".metadata"
PREFIXES = {"weight": "model.", "moment1": "optimizer.moment1.", "moment2": "optimizer.moment2."}

ReadTensor = Callable[[str, str], npt.NDArray[np.float32]]


def write_dcp(folder: Path, *, spec: ModelSpec, read: ReadTensor) -> None:
    """Write every tensor ``read(kind, name)`` gives, one file each, one in memory at a time.

    ``folder`` must not exist. Raises DataError E515 when it cannot be written.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=False, thread_count=1, overwrite=False)
    try:
        with warnings.catch_warnings():
            # It says that it runs in one process; that is what is meant.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            save({}, storage_writer=writer, planner=_Lazily(spec, read), no_dist=True)
    except CheckpointException as failure:
        error = next(cause for cause, _ in failure.failures.values())
        if not isinstance(error, OSError):
            raise error from failure  # what reading a tensor raised, or a mistake of ours
        raise DataError(
            f"cannot write {folder}", code="E515", where=str(folder), why=str(error),
            fix="export.directory=/ANOTHER/DISK/FOLDER   or   make room",
        ) from failure  # fmt: skip


class _Lazily(SavePlanner):
    """Says what there will be, and reads it when it is its turn to be written."""

    def __init__(self, spec: ModelSpec, read: ReadTensor) -> None:
        self._entries = {
            prefix + tensor.name: (kind, tensor)
            for kind, prefix in PREFIXES.items()
            for tensor in spec.tensors
        }
        self._read = read

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Nothing to prepare: there is no state dict."""

    def create_local_plan(self) -> SavePlan:
        items = []
        for name, (_, tensor) in self._entries.items():
            shape = torch.Size(tensor.shape)
            whole = tables.ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
            properties = tables.TensorProperties(dtype=torch.float32)
            items.append(
                WriteItem(
                    index=tables.MetadataIndex(name, whole.offsets),
                    type=WriteItemType.SHARD,
                    tensor_data=TensorWriteData(chunk=whole, properties=properties, size=shape),
                )
            )
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Any]:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        kind, tensor = self._entries[write_item.index.fqn]
        return torch.from_numpy(np.ascontiguousarray(self._read(kind, tensor.name)))


class DcpFolder:
    """A DCP folder that has the model's weights under our names, with or without "model."."""

    def __init__(self, path: Path, *, spec: ModelSpec) -> None:
        """Raises DataError E513 when it lacks a weight, or has one of another shape."""
        self._path = path
        self._reader = FileSystemReader(path)
        try:
            with open(path / METADATA, "rb") as file:
                self._table: tables.Metadata = _TableOfContents(file).load()
            self._reader.set_up_storage_reader(self._table, is_coordinator=True)
            found = self._table.state_dict_metadata
        except (OSError, pickle.UnpicklingError, AttributeError, EOFError, TypeError) as error:
            raise self._broken("its table of contents cannot be read", str(error)) from error
        self._names = {}
        for tensor in spec.tensors:
            name = next((n for n in (f"model.{tensor.name}", tensor.name) if n in found), None)
            if name is None:
                raise self._broken(f"{tensor.name} is not in it", f"it has {_some(found)}")
            entry = found[name]
            shape = tuple(entry.size) if isinstance(entry, tables.TensorStorageMetadata) else ()
            if shape != tensor.shape:
                raise self._broken(f"{name} has the shape {shape}", f"needed is {tensor.shape}")
            self._names[tensor.name] = name

    def read(self, box: Box) -> torch.Tensor:
        """The weights of a box, fp32. Raises DataError E513."""
        name = self._names[box.tensor]
        entry = self._table.state_dict_metadata[name]
        assert isinstance(entry, tables.TensorStorageMetadata)
        start = [box.offset if axis == box.axis else 0 for axis in range(len(box.shape))]
        into = torch.empty(box.shape, dtype=entry.properties.dtype)
        items = list(_overlaps(name, entry.chunks, start, box.shape))
        try:
            self._reader.read_data(LoadPlan(items), _Into(into))
        except (OSError, RuntimeError, pickle.UnpicklingError, KeyError) as error:
            raise self._broken(f"{name} cannot be read", str(error)) from error
        return into.float()

    def _broken(self, what: str, why: str) -> DataError:
        return DataError(
            f"{self._path}: {what}", code="E513", where=str(self._path), why=why,
            fix="start from a folder that action=export export.format=dcp wrote for this model",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Into(LoadPlanner):
    """Reads into one tensor."""

    target: torch.Tensor

    def set_up_planner(self, *arguments: Any, **named: Any) -> None:
        """Nothing to prepare."""

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise AssertionError("only tensors are asked for")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        view = self.target
        for axis, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            view = view.narrow(axis, start, length)
        return view

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It is in place."""


def _overlaps(
    name: str,
    chunks: Sequence[tables.ChunkStorageMetadata],
    start: Sequence[int],
    shape: Sequence[int],
) -> Iterator[ReadItem]:
    """What to read of each chunk so that together they fill the region."""
    for chunk in chunks:
        low = [max(a, b) for a, b in zip(start, chunk.offsets, strict=True)]
        high = [
            min(a + n, b + m)
            for a, n, b, m in zip(start, shape, chunk.offsets, chunk.sizes, strict=True)
        ]
        if all(a < b for a, b in zip(low, high, strict=True)):
            yield ReadItem(
                type=LoadItemType.TENSOR,
                dest_index=tables.MetadataIndex(name),
                dest_offsets=torch.Size(a - s for a, s in zip(low, start, strict=True)),
                storage_index=tables.MetadataIndex(name, chunk.offsets),
                storage_offsets=torch.Size(a - o for a, o in zip(low, chunk.offsets, strict=True)),
                lengths=torch.Size(b - a for a, b in zip(low, high, strict=True)),
            )


class _TableOfContents(pickle.Unpickler):
    """Unpickles what torch writes into .metadata, and refuses any other class or function."""

    _ALLOWED = {
        (kind.__module__, kind.__qualname__): kind
        for kind in (
            tables.Metadata, tables.TensorStorageMetadata, tables.BytesStorageMetadata,
            tables.TensorProperties, tables.ChunkStorageMetadata, tables.MetadataIndex,
            tables.StorageMeta, tables._MEM_FORMAT_ENCODING, _StorageInfo, torch.Size,
        )
    }  # fmt: skip

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) in self._ALLOWED:
            return self._ALLOWED[module_name, global_name]
        if module_name == "torch" and isinstance(getattr(torch, global_name, None), torch.dtype):
            return getattr(torch, global_name)
        if (module_name, global_name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if module_name == "pathlib" and global_name in ("PosixPath", "PurePosixPath"):
            return Path
        raise pickle.UnpicklingError(f"{module_name}.{global_name} has no business there")


def _some(names: Any) -> str:
    listed = sorted(map(str, names))
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
