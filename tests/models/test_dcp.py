"""torch's own checkpoint form: torch reads what we write, and we read what torch writes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sailor.errors import DataError
from sailor.models.dcp import METADATA, DcpFolder, write_dcp
from sailor.parallel.boxes import all_boxes
from tests.helpers.compose import ROOT
from tests.helpers.engine import a_gpt

# torch says that it runs in one process; that is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SPEC = a_gpt()


def a_state(spec):
    """Tensors with known contents, by our names."""
    generator = torch.Generator().manual_seed(0)
    return {t.name: torch.randn(t.shape, generator=generator) for t in spec.tensors}


def ours(path, state, spec=SPEC):
    factors = {"weight": 1, "moment1": 2, "moment2": 3}
    write_dcp(path, spec=spec, read=lambda kind, name: (state[name] * factors[kind]).numpy())


def equal(folder, state, spec=SPEC, *, pieces=2):
    for box in all_boxes(spec, pieces=pieces):
        expected = state[box.tensor].narrow(box.axis, box.offset, box.extent)
        assert torch.equal(folder.read(box), expected), box.name


def test_torch_reads_what_we_write(tmp_path):
    state = a_state(SPEC)
    ours(tmp_path / "dcp", state)
    wanted = {f"model.{name}": torch.zeros(t.shape) for name, t in state.items()}
    moments = {f"optimizer.moment2.{name}": torch.zeros(t.shape) for name, t in state.items()}
    load({**wanted, **moments}, storage_reader=FileSystemReader(tmp_path / "dcp"), no_dist=True)
    for name, tensor in state.items():
        assert torch.equal(wanted[f"model.{name}"], tensor)
        assert torch.equal(moments[f"optimizer.moment2.{name}"], tensor * 3)


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_we_read_what_we_write_in_any_cut(tmp_path, pieces):
    state = a_state(SPEC)
    ours(tmp_path / "dcp", state)
    equal(DcpFolder(tmp_path / "dcp", spec=SPEC), state, pieces=pieces)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_we_read_what_torch_writes(tmp_path, prefix):
    state = a_state(SPEC)
    whole = {prefix + name: tensor for name, tensor in state.items()} | {"step": 7}
    save(whole, storage_writer=FileSystemWriter(tmp_path / "dcp"), no_dist=True)
    equal(DcpFolder(tmp_path / "dcp", spec=SPEC), state)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_we_read_what_several_processes_wrote_in_chunks(tmp_path):
    """Two ranks with DTensors, each with half of every tensor's rows."""

    def rank(number):
        return subprocess.run(
            [sys.executable, "-c", _RANK, str(tmp_path / "dcp"), str(number)], cwd=ROOT,
            capture_output=True, text=True, timeout=250,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(rank, range(2)):
            assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "dcp").glob("__*.distcp"))) == 2
    state = a_state(SPEC)
    for pieces in (1, 4):
        equal(DcpFolder(tmp_path / "dcp", spec=SPEC), state, pieces=pieces)


_RANK = """
import sys
from pathlib import Path
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from tests.models.test_dcp import SPEC, a_state

path, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
state = {n: distribute_tensor(t, mesh, [Shard(0)]) for n, t in a_state(SPEC).items()}
dcp.save(state, checkpoint_id=path)
dist.destroy_process_group()
"""


def refusal(path, spec=SPEC):
    with pytest.raises(DataError) as caught:
        DcpFolder(path, spec=spec)
    assert caught.value.code == "E513"
    return caught.value


def test_a_weight_that_is_missing_or_of_another_shape_is_named(tmp_path):
    state = a_state(SPEC)
    ours(tmp_path / "dcp", state)
    deeper = a_gpt(num_layers=5)
    assert "blocks.4.attention_norm.weight is not in it" in refusal(tmp_path / "dcp", deeper).what
    wider = a_gpt(ffn_hidden_size=128)
    assert "blocks.0.ffn.up.weight" in refusal(tmp_path / "dcp", wider).what


def test_a_file_that_is_gone_is_named(tmp_path):
    ours(tmp_path / "dcp", a_state(SPEC))
    folder = DcpFolder(tmp_path / "dcp", spec=SPEC)
    for file in (tmp_path / "dcp").glob("*.distcp"):
        file.unlink()
    with pytest.raises(DataError) as caught:
        folder.read(all_boxes(SPEC, pieces=1)[0])
    assert caught.value.code == "E513"


def test_a_table_of_contents_that_would_run_code_is_refused(tmp_path):
    """Loading a pickle may call anything; this one would make a folder."""
    target = tmp_path / "made by the pickle"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(target),)

    (tmp_path / METADATA).write_bytes(pickle.dumps(Trap()))
    error = refusal(tmp_path)
    assert "mkdir" in error.why
    assert not target.exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"not a pickle", pickle.dumps(7)])
def test_a_damaged_table_of_contents_is_refused(tmp_path, content):
    (tmp_path / METADATA).write_bytes(content)
    refusal(tmp_path)


def test_no_more_than_one_tensor_is_held_while_writing(tmp_path):
    """A tensor is asked for when the one before it is written."""
    alive, most = [0], [0]

    class Counted(np.ndarray):
        def __del__(self):
            alive[0] -= 1

    def read(kind, name):
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        shape = next(t.shape for t in SPEC.tensors if t.name == name)
        return np.zeros(shape, dtype=np.float32).view(Counted)

    write_dcp(tmp_path / "dcp", spec=SPEC, read=read)
    assert most[0] <= 2
