"""What is exported is what transformers loads: the same logits, to the bit, both ways."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.weights import CheckpointWeights
from sailor.errors import DataError
from sailor.models.hf.config import config_of
from sailor.models.hf.read import HuggingFaceFolder
from sailor.models.hf.write import _converted, plan_shards, write_folder
from sailor.parallel.boxes import all_boxes
from tests.helpers.checkpoints import a_checkpoint_of
from tests.helpers.compose import ROOT
from tests.helpers.engine import a_gpt, a_llama
from tests.helpers.hf import FAMILIES, a_folder, loaded

TOKENS = torch.arange(48).view(2, 24) * 5 % 251


def an_export(tmp_path, original, *, dtype="float32", max_shard_bytes=1 << 30):
    """A Hugging Face folder -> our checkpoint -> a Hugging Face folder."""
    source = HuggingFaceFolder(original)
    step = a_checkpoint_of(
        source.spec, source.read, directory=tmp_path / "checkpoints", memory=tmp_path / "shm"
    )
    write_folder(
        tmp_path / "export", spec=source.spec, config=config_of(source.spec), dtype=dtype,
        weights=CheckpointWeights(step, spec=source.spec), max_shard_bytes=max_shard_bytes,
        files={"notes.txt": b"kept\n"},
    )  # fmt: skip
    return tmp_path / "export"


@torch.no_grad()
def logits(path):
    return loaded(path)(TOKENS).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_went_through_a_run_has_the_same_logits(tmp_path, family):
    original = a_folder(tmp_path / "original", family)
    export = an_export(tmp_path, original)
    assert torch.equal(logits(export), logits(original))
    again = HuggingFaceFolder(export)
    again.check()
    for box in all_boxes(again.spec, pieces=1):
        assert torch.equal(again.read(box), HuggingFaceFolder(original).read(box)), box.name


def test_shards_hold_what_they_may_and_their_index_says_where(tmp_path):
    original = a_folder(tmp_path / "original", "llama 3")
    export = an_export(tmp_path, original, max_shard_bytes=20_000)
    index = json.loads((export / "model.safetensors.index.json").read_text())
    files = sorted(export.glob("model-*.safetensors"))
    assert len(files) > 3
    assert {file.name for file in files} == set(index["weight_map"].values())
    sizes = [sum(s.data.nbytes for s in map(np.asarray, _tensors(file).values())) for file in files]
    largest = max(p.numel() * 4 for p in loaded(original).parameters())
    assert max(sizes) <= max(20_000, largest)
    assert sum(sizes) == index["metadata"]["total_size"]
    assert torch.equal(logits(export), logits(original))


def _tensors(file):
    with safe_open(file, framework="np") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def test_bfloat16_is_what_torch_rounds_to(tmp_path):
    values = torch.randn(10_000) * 10.0 ** torch.randint(-30, 30, (10_000,))
    values[:3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -0.0])  # ties go to the even one
    ours = torch.from_numpy(_converted(values.numpy(), "bfloat16").view(np.int16))
    assert torch.equal(ours, values.bfloat16().view(torch.int16))
    export = an_export(tmp_path, a_folder(tmp_path / "original", "llama"), dtype="bfloat16")
    original = dict(loaded(tmp_path / "original").named_parameters())
    for name, weight in loaded(export).named_parameters():
        assert torch.equal(weight, original[name].bfloat16().float()), name


def test_files_given_are_there_and_nothing_else_is_left(tmp_path):
    export = an_export(tmp_path, a_folder(tmp_path / "original", "llama"))
    assert sorted(f.name for f in export.iterdir()) == [
        "config.json", "model.safetensors", "notes.txt",
    ]  # fmt: skip
    assert [f.name for f in tmp_path.glob(".*")] == []


class _Zeros:
    def rows(self, tensor, start, stop):
        return np.zeros((stop - start, 32), dtype=np.float32)


def write_zeros(folder, spec):
    write_folder(
        folder, spec=spec, weights=_Zeros(), config={}, dtype="float32", max_shard_bytes=1 << 30,
        files={},
    )  # fmt: skip


def test_a_full_disk_leaves_no_half_a_folder(tmp_path):
    """A limit on the size of files is what a full disk is to a writer."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "export")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["E515"], done.stderr
    assert list(tmp_path.iterdir()) == []


_FULL = """
import resource, signal, sys
from pathlib import Path
from sailor.errors import DataError
from tests.helpers.engine import a_gpt
import numpy as np
from sailor.models.hf.write import write_folder

class Zeros:
    def rows(self, tensor, start, stop):
        return np.zeros((stop - start, 32), dtype=np.float32)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    write_folder(Path(sys.argv[1]), spec=a_gpt(), weights=Zeros(), config={}, dtype="float32",
                 max_shard_bytes=1 << 30, files={})
except DataError as error:
    print(error.code)
"""


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError) as caught:
        write_zeros(tmp_path / "file" / "export", a_gpt())
    assert caught.value.code == "E515"


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    source = HuggingFaceFolder(a_folder(tmp_path / "original", "llama"))
    step = a_checkpoint_of(
        source.spec, source.read, directory=tmp_path / "checkpoints", memory=tmp_path / "shm"
    )
    with pytest.raises(CorruptSnapshot, match="not of a model like gpt_test"):
        CheckpointWeights(step, spec=a_gpt())


# A shard of 16 MiB: everything an export allocates must fit in 24.
_SHARD_BYTES = 16 << 20
_LARGE = a_llama(vocab_size=16384, hidden_size=256, num_heads=8, num_kv_heads=8, head_size=32)


def test_shards_are_planned_before_a_byte_is_written():
    shards = plan_shards(_LARGE, dtype="float32", max_shard_bytes=_SHARD_BYTES)
    assert [shard.file for shard in shards][0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert max(shard.num_bytes for shard in shards) == _SHARD_BYTES


def test_export_allocates_less_than_one_and_a_half_shards(tmp_path):
    """The limit is the kernel's: allocations beyond it fail."""
    rng = np.random.default_rng(0)
    step = a_checkpoint_of(
        _LARGE, lambda box: rng.standard_normal(box.shape, dtype=np.float32),
        directory=tmp_path / "checkpoints", memory=tmp_path / "shm",
    )  # fmt: skip
    for dtype in ("float32", "bfloat16"):
        largest = max(
            shard.num_bytes
            for shard in plan_shards(_LARGE, dtype=dtype, max_shard_bytes=_SHARD_BYTES)
        )
        for allowed, outcome in ((1.5 * largest, "written"), (0.05 * largest, "no memory")):
            done = subprocess.run(
                [sys.executable, "-c", _WITHIN, str(step), str(tmp_path / dtype / outcome),
                 dtype, str(int(allowed)), str(_SHARD_BYTES)],
                cwd=ROOT, capture_output=True, text=True,
            )  # fmt: skip
            assert done.stdout.strip() == outcome, done.stderr


_WITHIN = """
import resource, sys
from pathlib import Path
from sailor.checkpoint.weights import CheckpointWeights
from sailor.models.hf.write import write_folder
from tests.helpers.engine import a_llama

step, to, dtype, allowed, shard_bytes = sys.argv[1:]
spec = a_llama(vocab_size=16384, hidden_size=256, num_heads=8, num_kv_heads=8, head_size=32)
weights = CheckpointWeights(Path(step), spec=spec)
Path(to).parent.mkdir(exist_ok=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
held = int(status["VmData"].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (held + int(allowed), resource.RLIM_INFINITY))
try:
    write_folder(Path(to), spec=spec, weights=weights, config={}, dtype=dtype,
                 max_shard_bytes=int(shard_bytes), files={})
    print("written")
except MemoryError:
    print("no memory")
"""
