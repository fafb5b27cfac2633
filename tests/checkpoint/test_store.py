"""Durable checkpoints: complete or not at all, verified, readable by anybody, pruned."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import (
    CheckpointFailed,
    Reader,
    complete,
    kept,
    newest,
    read_box,
    step_directory,
    steps,
    verify,
    write_part,
)
from sailor.parallel.boxes import all_boxes
from sailor.runtime.messages import Persisted
from tests.helpers.builders import a_spec
from tests.helpers.settings import some_settings
from tests.helpers.snapshots import a_verified_segment, an_arena, values_of

SETTINGS = msgspec.structs.replace(
    some_settings(), spec=a_spec(num_layers=1, hidden_size=8, head_size=2, ffn_hidden_size=8)
)
BOXES = tuple((box.name, box.shape) for box in all_boxes(SETTINGS.spec, pieces=1))
NAMES = [name for name, _ in BOXES]


def a_part(node: str, step: int, files: dict[str, str], *, generation: int = 1) -> Persisted:
    return Persisted(generation=generation, node=node, step=step, files=files, boxes=())


def a_checkpoint(tmp_path: Path, step: int, *, keep: int = 10, seed: int = 0) -> Path:
    """Two writers, as two nodes would."""
    root = tmp_path / f"shm-{step}"
    root.mkdir()
    directory = tmp_path / "checkpoints"
    segment = a_verified_segment(an_arena(root), step=step, seed=seed, boxes=BOXES)
    parts = []
    for node, names in (("a", NAMES[:2]), ("b", NAMES[2:])):
        name = f"{node}-0.safetensors"
        total = write_part(directory, step=step, name=f"{node}-0", sources=[(segment, names)])
        parts.append(a_part(node, step, {name: total}))
    size = complete(directory, step, parts, settings=SETTINGS, keep=keep)
    assert size > sum(3 * 4 * np.prod(shape) for _, shape in BOXES)
    return directory


def test_what_was_written_is_read_back_and_verifies(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 40, seed=3)
    found = newest(directory)
    assert found is not None
    assert (found.step, found.generation) == (40, 1)
    assert sorted(found.boxes) == sorted(NAMES)
    assert verify(directory, 40) == []
    reader = Reader(found.path)
    assert (reader.manifest.model, reader.manifest.seed) == (SETTINGS.spec.name, 1)
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
    segment = a_verified_segment(an_arena(tmp_path), boxes=BOXES)
    total = write_part(directory, step=5, name="a-0", sources=[(segment, NAMES[:1])])
    part = a_part("a", 5, {"a-0.safetensors": total})
    with pytest.raises(CheckpointFailed, match=f"lacks {len(NAMES) - 1} boxes"):
        complete(directory, 5, [part], settings=SETTINGS, keep=1)
    assert newest(directory) is None
    with pytest.raises(CorruptSnapshot):
        read_box(step_directory(directory, 5), NAMES[0])


def test_a_reported_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    part = a_part("a", 5, {"a-0.safetensors": "0"})
    with pytest.raises(CorruptSnapshot, match="No such file"):
        complete(tmp_path, 5, [part], settings=SETTINGS, keep=1)


def test_of_two_files_with_a_box_the_later_generations_counts(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    parts = []
    for generation, node, names in ((1, "a", NAMES), (2, "b", NAMES[:3])):
        root = tmp_path / node
        root.mkdir()
        segment = a_verified_segment(an_arena(root), seed=generation * 100, boxes=BOXES)
        total = write_part(directory, step=5, name=f"{node}-0", sources=[(segment, names)])
        files = {f"{node}-0.safetensors": total}
        parts.append(a_part(node, 5, files, generation=generation))
    complete(directory, 5, parts[::-1], settings=SETTINGS, keep=1)
    reader = Reader(step_directory(directory, 5))
    for i, seed in ((0, 200), (3, 100)):
        name, shape = BOXES[i]
        np.testing.assert_array_equal(np.stack(reader.read(name)), values_of(seed + i, shape))


def test_a_checkpoint_with_a_damaged_manifest_is_passed_over(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1)
    a_checkpoint(tmp_path, 2)
    (step_directory(directory, 2) / "manifest.json").write_text("{}")
    found = newest(directory)
    assert found is not None
    assert found.step == 1


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
    read_box(step_directory(directory, 1), NAMES[0])
    with pytest.raises(CorruptSnapshot, match="other bytes"):
        read_box(step_directory(directory, 1), NAMES[-1])


def test_a_truncated_file_and_a_changed_manifest_are_refused(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1)
    folder = step_directory(directory, 1)
    os.truncate(folder / "b-0.safetensors", 300)
    assert len(verify(directory, 1)) == 1
    with pytest.raises(CorruptSnapshot):
        read_box(step_directory(directory, 1), NAMES[2])
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(CorruptSnapshot, match="not the one completed"):
        read_box(step_directory(directory, 1), NAMES[0])


def test_a_full_disk_leaves_older_checkpoints_and_no_half_file(tmp_path: Path) -> None:
    directory = a_checkpoint(tmp_path, 1)
    segment = a_verified_segment(an_arena(tmp_path), step=2, boxes=BOXES)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
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
    assert steps(directory) == [1]
    assert verify(directory, 1) == []


def test_a_segment_corrupted_after_sealing_is_not_persisted(tmp_path: Path) -> None:
    segment = a_verified_segment(an_arena(tmp_path), boxes=BOXES)
    segment.raw(NAMES[0])[0] ^= 1
    with pytest.raises(CorruptSnapshot, match="changed after sealing"):
        write_part(tmp_path / "c", step=2, name="a-0", sources=[(segment, NAMES)])
    assert list(step_directory(tmp_path / "c", 2).iterdir()) == []


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 5), st.integers(0, 60))
@settings(deadline=None)
def test_what_is_kept_for_good_stays_whatever_comes_later(
    durable: set[int], keep: int, every: int
) -> None:
    there: list[int] = []
    for step in sorted(durable):
        there = sorted(kept([*there, step], keep=keep, every=every))
    newest_ones = sorted(durable)[-keep:]
    good = {
        min(step for step in durable if step // every == multiple)
        for multiple in {step // every for step in durable} - {0}
    } if every else set()  # fmt: skip
    assert there == sorted({*newest_ones, *good})
