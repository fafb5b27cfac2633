"""Weights out of a Hugging Face folder: headers are looked at whole, contents box by box.

Files are mapped into memory and only what is asked for is copied, so that no process ever holds a
model it does not train. Contents come as torch tensors (numpy knows no bfloat16), but torch is not
imported until they do.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from sailor.errors import DataError
from sailor.models.hf.config import CONFIG, read_config, spec_of
from sailor.models.hf.tensors import Part, TheirTensor, their_tensors
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import Box

if TYPE_CHECKING:
    import torch

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
# Buffers that old versions saved: masks and frequencies, which follow from the config.
_NO_WEIGHTS = re.compile(r"\.attn\.(masked_)?bias$|rotary_emb\.inv_freq$")


class HuggingFaceFolder:
    """A folder as save_pretrained writes it, or a download leaves it."""

    def __init__(self, path: Path, *, spec: ModelSpec | None = None) -> None:
        """Reads config.json alone; a ``spec`` may be known to be the same model.

        Raises DataError E511, E512.
        """
        self.path = path
        self.config = read_config(path)
        self.spec = spec or spec_of(self.config, name=path.resolve().name, where=str(path / CONFIG))
        self._open: dict[tuple[str, str], Any] = {}

    def check(self) -> None:
        """Every weight is there, in its shape and in floating point. Reads headers only.

        Raises DataError E513.
        """
        for theirs in self._tensors:
            found = self._slice(theirs, framework="np")
            shape, kind = tuple(found.get_shape()), found.get_dtype()
            file = self.path / self._files[self._name_of(theirs)]
            if shape != theirs.shape:
                raise self._broken(
                    f"{theirs.name} has the shape {shape}", file=file,
                    why=f"config.json says {theirs.shape}",
                    fix="the weights belong to another config.json: get the folder again",
                )  # fmt: skip
            if kind not in _FLOATS:
                raise self._broken(
                    f"{theirs.name} is of type {kind}", file=file,
                    why="quantised weights cannot be trained on",
                    fix="start from the model in bfloat16, float16 or float32",
                )  # fmt: skip
        known = {self._name_of(theirs) for theirs in self._tensors} | {"lm_head.weight"}
        strangers = [n for n in self._files if n not in known and not _NO_WEIGHTS.search(n)]
        if strangers:
            raise self._broken(
                f"{len(strangers)} tensors have no place in the model, {strangers[0]} for one",
                file=self.path / self._files[strangers[0]],
                why=f"{self.config['model_type']} as in config.json is built without it",
                fix="start from a model without it, or correct config.json",
            )  # fmt: skip

    def read(self, box: Box) -> torch.Tensor:
        """The weights of a box, fp32. Rows that pad a vocabulary are zero.

        Raises DataError E513 and KeyError for a tensor the model has not.
        """
        theirs, part = self._places[box.tensor]
        rows = range(box.offset, box.offset + box.extent) if box.axis == 0 else range(part.rows)
        there = range(min(rows.start, part.rows), min(rows.stop, part.rows))
        where = [slice(part.start + there.start, part.start + there.stop)]
        if len(box.shape) == 2:
            start = box.offset if box.axis == 1 else 0
            where.append(slice(start, start + box.shape[1]))
        file = self.path / self._files[self._name_of(theirs)]
        try:
            found = self._slice(theirs, framework="pt")
            value: torch.Tensor = found[tuple(where[::-1] if theirs.transposed else where)]
        except (SafetensorError, OSError) as error:
            raise self._unreadable(file, error) from error
        value = (value.T if theirs.transposed else value).float()
        if len(there) == len(rows):
            return value
        padded: torch.Tensor = value.new_zeros(box.shape)
        padded[: len(there)] = value
        return padded

    @cached_property
    def _tensors(self) -> tuple[TheirTensor, ...]:
        return their_tensors(self.spec)

    @cached_property
    def _places(self) -> dict[str, tuple[TheirTensor, Part]]:
        return {part.tensor.name: (t, part) for t in self._tensors for part in t.parts}

    @cached_property
    def _files(self) -> dict[str, str]:
        """Tensor name -> file."""
        index = self.path / INDEX
        if index.exists():
            try:
                weight_map = json.loads(index.read_text())["weight_map"]
                return {str(name): str(file) for name, file in weight_map.items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._unreadable(index, error) from error
        if (self.path / SINGLE).exists():
            return dict.fromkeys(self._file(SINGLE, framework="np").keys(), SINGLE)
        others = sorted(p.name for p in self.path.iterdir() if p.suffix in (".bin", ".safetensors"))
        raise self._broken(
            f"{self.path} has no weights", file=self.path / SINGLE,
            why=f"neither {SINGLE} nor {INDEX} is there, but "
            + (", ".join(others[:4]) or "nothing like them"),
            fix="load and save it once with transformers: AutoModelForCausalLM."
            "from_pretrained(OLD).save_pretrained(NEW)",
        )  # fmt: skip

    def _name_of(self, theirs: TheirTensor) -> str:
        """Its name in the files: the bare model saves itself without the first word."""
        name, bare = theirs.name, theirs.name.partition(".")[2]
        if name not in self._files and bare in self._files and not name.startswith("lm_head"):
            return bare
        return name

    def _slice(self, theirs: TheirTensor, *, framework: str) -> Any:
        """The lazy slice of one tensor. Raises DataError E513."""
        name = self._name_of(theirs)
        file = self._files.get(name)
        if file is None:
            raise self._broken(
                f"{theirs.name} is in no file", file=self.path,
                why=f"a model of type {self.config['model_type']} with this config.json has it",
                fix="get the folder again; it is not complete",
            )  # fmt: skip
        try:
            return self._file(file, framework=framework).get_slice(name)
        except SafetensorError as error:
            raise self._unreadable(self.path / file, error) from error

    def _file(self, file: str, *, framework: str) -> Any:
        if (file, framework) not in self._open:
            path = self.path / file
            try:
                self._open[file, framework] = safe_open(path, framework=framework)
            except (SafetensorError, OSError) as error:
                raise self._unreadable(path, error) from error
        return self._open[file, framework]

    def _unreadable(self, path: Path, error: Exception) -> DataError:
        missing = not path.exists()
        return self._broken(
            f"{path.name} is missing" if missing else f"{path.name} cannot be read", file=path,
            why=f"{INDEX} names it" if missing else str(error),
            fix="get that file again: it was not written or downloaded to its end",
        )  # fmt: skip

    def _broken(self, what: str, *, file: Path, why: str, fix: str) -> DataError:
        return DataError(what, code="E513", where=str(file), why=why, fix=fix)
