"""Durable checkpoints: complete or not at all, verified, readable by anybody, pruned."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import (
    CheckpointFailed,
    Part,
    Reader,
    complete,
    newest,
    read_box,
    step_directory,
    steps,
    verify,
    write_part,
)
from tests.helpers.snapshots import BOXES, a_verified_segment, an_arena, values_of

NAMES = [name for name, _ in BOXES]


def a_checkpoint(tmp_path: Path, step: int, *, keep: int = 10, seed: int = 0) -> Path:
    """Two writers, as two nodes would."""
    root = tmp_path / f"shm-{step}"
    root.mkdir()
    directory = tmp_path / "checkpoints"
    segment = a_verified_segment(an_arena(root), step=step, seed=seed)
    parts = []
    for node, names in (("a", NAMES[:2]), ("b", NAMES[2:])):
        name = f"{node}-0.safetensors"
        total = write_part(directory, step=step, name=f"{node}-0", sources=[(segment, names)])
        parts.append(Part(node=node, files={name: total}))
    complete(directory, step, parts, boxes=NAMES, keep=keep, facts={"model": "tiny"})
    return directory


def test_what_was_written_is_read_back_and_verifies(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 40, seed=3)
    assert newest(directory) == 40
    assert verify(directory, 40) == []
    reader = Reader(directory, 40)
    assert reader.manifest.facts == {"model": "tiny"}
    for i, (name, shape) in enumerate(BOXES):
        np.testing.assert_array_equal(np.stack(reader.read(name)), values_of(3 + i, shape))


def test_the_safetensors_library_reads_the_same_values(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1, seed=8)
    with safe_open(str(step_directory(directory, 1) / "a-0.safetensors"), framework="numpy") as f:
        for i, (name, shape) in enumerate(BOXES[:2]):
            for k, kind in enumerate(("weight", "moment1", "moment2")):
                np.testing.assert_array_equal(
                    f.get_tensor(f"{kind}/{name}"), values_of(8 + i, shape)[k]
                )


def test_a_box_nobody_wrote_keeps_the_checkpoint_incomplete(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    segment = a_verified_segment(an_arena(tmp_path))
    total = write_part(directory, step=5, name="a-0", sources=[(segment, NAMES[:1])])
    part = Part(node="a", files={"a-0.safetensors": total})
    with pytest.raises(CheckpointFailed, match="lacks 2 boxes"):
        complete(directory, 5, [part], boxes=NAMES, keep=1)
    assert newest(directory) is None
    with pytest.raises(CorruptSnapshot):
        read_box(directory, 5, NAMES[0])


def test_a_reported_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    part = Part(node="a", files={"a-0.safetensors": "0"})
    with pytest.raises(CheckpointFailed, match="not there"):
        complete(tmp_path, 5, [part], boxes=NAMES, keep=1)


def test_the_newest_are_kept_and_leftovers_of_failed_ones_removed(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    (step_directory(directory, 2)).mkdir(parents=True)  # somebody died while writing it
    for step in (1, 3, 4):
        a_checkpoint(tmp_path, step)
    a_checkpoint(tmp_path, 6, keep=2)
    assert steps(directory) == [4, 6]
    assert sorted(p.name for p in directory.iterdir()) == ["step-00000004", "step-00000006"]


def test_a_checkpoint_under_way_is_not_pruned_by_an_older_one(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    step_directory(directory, 9).mkdir(parents=True)
    a_checkpoint(tmp_path, 8, keep=1)
    assert step_directory(directory, 9).exists()


@pytest.mark.parametrize("offset", [-1, -200, 12])
def test_a_flipped_byte_is_found_by_verify(tmp_path: Path, offset: int) -> None:
    directory = a_checkpoint(tmp_path, 1)
    path = step_directory(directory, 1) / "a-0.safetensors"
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
    (problem,) = verify(directory, 1)
    assert "a-0.safetensors" in problem


def test_a_flipped_byte_in_a_box_is_refused_when_read(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1)
    path = step_directory(directory, 1) / "b-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    read_box(directory, 1, NAMES[0])
    with pytest.raises(CorruptSnapshot, match="other bytes"):
        read_box(directory, 1, NAMES[2])


def test_a_truncated_file_and_a_changed_manifest_are_refused(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1)
    folder = step_directory(directory, 1)
    os.truncate(folder / "b-0.safetensors", 300)
    assert len(verify(directory, 1)) == 1
    with pytest.raises(CorruptSnapshot):
        read_box(directory, 1, NAMES[2])
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(CorruptSnapshot, match="not the one completed"):
        read_box(directory, 1, NAMES[0])


def test_a_full_disk_leaves_older_checkpoints_and_no_half_file(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1)
    segment = a_verified_segment(an_arena(tmp_path), step=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the write fails part way
    try:
        with pytest.raises(CheckpointFailed, match="step 2") as raised:
            write_part(directory, step=2, name="a-0", sources=[(segment, NAMES)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert "File too large" in raised.value.why
    assert list(step_directory(directory, 2).iterdir()) == []
    assert newest(directory) == 1
    assert verify(directory, 1) == []


def test_a_segment_corrupted_after_sealing_is_not_persisted(tmp_path: Path) -> None:
    segment = a_verified_segment(an_arena(tmp_path))
    segment.raw(NAMES[0])[0] ^= 1
    with pytest.raises(CorruptSnapshot, match="changed after sealing"):
        write_part(tmp_path / "c", step=2, name="a-0", sources=[(segment, NAMES)])
    assert list(step_directory(tmp_path / "c", 2).iterdir()) == []
