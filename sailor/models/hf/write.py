"""A model as a Hugging Face folder, shard by shard, some rows at a time. No torch.

Whatever has our tensors can be written: it is asked for runs of rows. A shard is streamed to disk
as it is made, so memory holds a few megabytes, or one block's matrix where GPT-2 wants it
transposed. A folder is complete or absent: it gets its name last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sailor.errors import DataError
from sailor.models.hf.config import CONFIG
from sailor.models.hf.read import INDEX, SINGLE
from sailor.models.hf.tensors import TheirTensor, their_tensors
from sailor.models.spec import ModelSpec
from sailor.units import gib

FLOAT32, BFLOAT16 = "float32", "bfloat16"
_CODES = {FLOAT32: ("F32", 4), BFLOAT16: ("BF16", 2)}
_CHUNK_BYTES = 1 << 20
_HEADER_LENGTH = struct.Struct("<Q")


class Rows(Protocol):
    """Where weights come from."""

    def rows(self, tensor: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows [start, stop) along the first axis of one of our tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file: its tensors and its bytes without the header."""

    file: str
    tensors: tuple[TheirTensor, ...]
    num_bytes: int


def write_folder(
    folder: Path, *, spec: ModelSpec, weights: Rows, config: Mapping[str, Any], dtype: str,
    max_shard_bytes: int, files: Mapping[str, bytes],
) -> tuple[Shard, ...]:  # fmt: skip
    """Write weights, ``config`` as config.json, and ``files`` (name -> content) beside them.

    ``folder`` must not exist. Raises DataError E515 when it cannot be written or would not fit on
    its disk; nothing is left of it then.
    """
    shards = plan_shards(spec, dtype=dtype, max_shard_bytes=max_shard_bytes)
    total = sum(shard.num_bytes for shard in shards)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    named = {"dtype": dtype, "torch_dtype": dtype}
    texts = {name: content for name, content in files.items()}
    texts[CONFIG] = _json({**config, **named})
    if len(shards) > 1:
        texts[INDEX] = _json(_index(shards, total))
    try:
        partial.mkdir(parents=True)
        free = shutil.disk_usage(partial).free
        if free < total:
            raise OSError(errno.ENOSPC, f"{gib(total)} are needed, {gib(free)} are free")
        for shard in shards:
            _write_shard(partial / shard.file, shard, weights, dtype)
        for name, content in texts.items():
            (partial / name).write_bytes(content)
        os.rename(partial, folder)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}", code="E515", where=str(folder), why=str(error),
            fix="export.directory=/ANOTHER/DISK/FOLDER   or   make room",
        ) from error  # fmt: skip
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial, ignore_errors=True)
    return shards


def plan_shards(spec: ModelSpec, *, dtype: str, max_shard_bytes: int) -> tuple[Shard, ...]:
    """Tensors in order, in as few files as hold at most ``max_shard_bytes`` each.

    A tensor larger than that has a file of its own.
    """
    groups: list[list[TheirTensor]] = [[]]
    held = 0
    for tensor in their_tensors(spec):
        size = _num_bytes(tensor, dtype)
        if groups[-1] and held + size > max_shard_bytes:
            groups.append([])
            held = 0
        groups[-1].append(tensor)
        held += size
    count = len(groups)
    return tuple(
        Shard(
            file=SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors",
            tensors=tuple(group),
            num_bytes=sum(_num_bytes(tensor, dtype) for tensor in group),
        )
        for number, group in enumerate(groups, start=1)
    )


def _num_bytes(tensor: TheirTensor, dtype: str) -> int:
    return int(np.prod(tensor.shape)) * _CODES[dtype][1]


def _index(shards: Sequence[Shard], total: int) -> dict[str, Any]:
    return {
        "metadata": {"total_size": total},
        "weight_map": {tensor.name: s.file for s in shards for tensor in s.tensors},
    }


def _write_shard(path: Path, shard: Shard, weights: Rows, dtype: str) -> None:
    """The safetensors format: length of the header, header (JSON), tensors one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in shard.tensors:
        end = offset + _num_bytes(tensor, dtype)
        header[tensor.name] = {
            "dtype": _CODES[dtype][0],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(_HEADER_LENGTH.pack(len(encoded)) + encoded)
        for tensor in shard.tensors:
            for rows in _in_file_order(tensor, weights):
                file.write(_converted(rows, dtype).data.cast("B"))
        file.flush()
        os.fsync(file.fileno())


def _in_file_order(tensor: TheirTensor, weights: Rows) -> Iterator[npt.NDArray[np.float32]]:
    """The tensor's numbers from first to last, some rows at a time."""
    if tensor.transposed:
        found = [weights.rows(part.tensor.name, 0, part.rows) for part in tensor.parts]
        joined = found[0] if len(found) == 1 else np.concatenate(found)  # a copy is a matrix more
        for rows in _runs(joined.shape[1], numel_per_row=joined.shape[0]):
            yield joined[:, rows.start : rows.stop].T
        return
    for part in tensor.parts:
        numel_per_row = part.tensor.numel // part.tensor.shape[0]
        for rows in _runs(part.rows, numel_per_row=numel_per_row):
            yield weights.rows(part.tensor.name, rows.start, rows.stop)


def _runs(count: int, *, numel_per_row: int) -> Iterator[range]:
    """0..count in runs of about a chunk's size in fp32."""
    step = max(1, _CHUNK_BYTES // (4 * numel_per_row))
    for start in range(0, count, step):
        yield range(start, min(start + step, count))


def _converted(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """In the file's type, in one piece. bfloat16 is the upper half of float32, rounded to even."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == FLOAT32:
        return values
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    return rounded.astype(np.uint16)


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
