"""Segments and the arena: what is refused, what survives, what is reused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sailor.checkpoint.arena import OutOfSnapshotMemory, open_arena, sweep
from sailor.checkpoint.segment import (
    CorruptSnapshot,
    Manifest,
    Segment,
    SegmentState,
    file_bytes,
    place,
)
from tests.helpers.snapshots import BOXES, a_verified_segment, a_worker, an_arena, values_of, write


def test_a_verified_segment_is_read_back_by_another_mapping(tmp_path: Path) -> None:
    segment = a_verified_segment(an_arena(tmp_path), generation=3, step=7, seed=11)
    other = Segment.attach(segment.path)
    other.check_seal()
    assert other.snapshot.generation == 3
    assert other.snapshot.step == 7
    assert other.snapshot.worker == a_worker()
    for i, (name, shape) in enumerate(BOXES):
        other.check(name)
        np.testing.assert_array_equal(np.stack(other.arrays(name)), values_of(11 + i, shape))


@pytest.mark.parametrize("box", [name for name, _ in BOXES])
def test_one_flipped_bit_is_found_and_named(tmp_path: Path, box: str) -> None:
    segment = a_verified_segment(an_arena(tmp_path))
    segment.raw(box)[5] ^= 1
    other = Segment.attach(segment.path)
    other.check_seal()
    with pytest.raises(CorruptSnapshot, match="box .*other bytes") as raised:
        other.check(box)
    assert box in str(raised.value)
    for name, _ in BOXES:
        if name != box:
            other.check(name)


def test_a_segment_that_is_being_written_is_never_restored_from(tmp_path: Path) -> None:
    segment = a_verified_segment(an_arena(tmp_path))
    segment.begin(generation=1, step=6)  # and then its worker is killed
    with pytest.raises(CorruptSnapshot, match="writing"):
        Segment.attach(segment.path).check_seal()
    with pytest.raises(CorruptSnapshot, match="writing"):
        segment.seal()


def test_a_changed_step_or_manifest_breaks_the_seal(tmp_path: Path) -> None:
    for offset in (20, 26, 70, 120):  # generation, step, and two places of the manifest
        root = tmp_path / str(offset)
        root.mkdir()
        segment = a_verified_segment(an_arena(root))
        data = bytearray(segment.path.read_bytes())
        data[offset] ^= 0x01
        segment.path.write_bytes(data)
        with pytest.raises(CorruptSnapshot):
            Segment.attach(segment.path).check_seal()


@pytest.mark.parametrize("size", [0, 40, 100, 4196])
def test_a_cut_file_is_refused(tmp_path: Path, size: int) -> None:
    segment = a_verified_segment(an_arena(tmp_path))
    short = tmp_path / "short"
    short.write_bytes(segment.path.read_bytes()[:size])
    with pytest.raises(CorruptSnapshot):
        Segment.attach(short).check_seal()


def test_a_link_in_place_of_a_segment_is_refused(tmp_path: Path) -> None:
    segment = a_verified_segment(an_arena(tmp_path))
    link = tmp_path / "link"
    link.symlink_to(segment.path)
    with pytest.raises(CorruptSnapshot, match="cannot map"):
        Segment.attach(link)


def test_files_are_private_to_their_user(tmp_path: Path) -> None:
    arena = an_arena(tmp_path)
    segment = a_verified_segment(arena)
    assert arena.directory.stat().st_mode & 0o777 == 0o700
    assert segment.path.stat().st_mode & 0o777 == 0o600


def test_a_freed_segment_is_reused_for_other_boxes_and_starts_free(tmp_path: Path) -> None:
    arena = an_arena(tmp_path)
    segment = a_verified_segment(arena)
    arena.free(segment)
    again = arena.segment(writer=a_worker(slot=1), boxes=BOXES[:2])
    assert again.path == segment.path
    assert again.state is SegmentState.free
    assert again.snapshot.worker.slot == 1
    write(again, generation=2, step=1)
    again.seal()
    Segment.attach(again.path).check_seal()


def test_memory_that_was_reserved_serves_as_many_segments_at_once_and_none_is_made_anew(
    tmp_path: Path,
) -> None:
    arena = an_arena(tmp_path)
    size = file_bytes(Manifest(writer=a_worker(), boxes=place(BOXES)))
    arena.reserve([size, size])
    assert arena.used_bytes == 0
    there = set(arena.directory.glob("segment-*"))
    assert len(there) == 2
    segments = [arena.segment(writer=a_worker(), boxes=BOXES) for _ in range(2)]
    assert {segment.path for segment in segments} == there
    arena.reserve([size])  # both are in use: this one is new
    assert len(set(arena.directory.glob("segment-*")) - there) == 1
    arena.destroy()


def test_what_cannot_be_reserved_leaves_the_rest_ready(tmp_path: Path) -> None:
    arena = an_arena(tmp_path, budget_bytes=64 << 10)
    with pytest.raises(OutOfSnapshotMemory):
        arena.reserve([16 << 10, 128 << 10])
    arena.reserve([16 << 10])
    assert arena.used_bytes == 0
    arena.destroy()


def test_the_budget_is_kept_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    arena = an_arena(tmp_path, budget_bytes=20_500)
    first = a_verified_segment(arena)
    a_verified_segment(arena)
    with pytest.raises(OutOfSnapshotMemory) as raised:
        a_verified_segment(arena)
    assert "/dev/shm" in raised.value.fix
    used = arena.used_bytes
    arena.free(first)
    assert arena.used_bytes < used
    large = (("large", (512,)),)  # does not fit beside the pooled one, which has to go
    a_verified_segment(arena, boxes=large)
    assert not first.path.exists()


def test_destroy_leaves_nothing(tmp_path: Path) -> None:
    arena = an_arena(tmp_path)
    segment = a_verified_segment(arena)
    arena.destroy()
    assert not arena.directory.exists()
    arena.free(segment)  # by a transfer that ends a moment later
    assert arena.used_bytes == 0


def test_sweep_removes_only_folders_whose_agent_is_gone(tmp_path: Path) -> None:
    mine = an_arena(tmp_path)
    script = (
        "import os, sys; from pathlib import Path; from sailor.checkpoint.arena import open_arena;"
        "open_arena(run='test', node='b', budget_bytes=1, root=Path(sys.argv[1]));"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=30)
    stranger = tmp_path / "sailor-test-without-owner-1"
    stranger.mkdir()
    removed = sweep("test", root=tmp_path)
    assert [name.rsplit("-", 1)[0] for name in removed] == ["sailor-test-b"]
    assert mine.directory.exists()
    assert stranger.exists()
    assert sweep("test", root=tmp_path) == []


def test_a_reused_pid_does_not_count_as_the_agent(tmp_path: Path) -> None:
    arena = an_arena(tmp_path)
    (arena.directory / "owner").write_text(f"{os.getpid()} 1")  # same pid, another start
    assert sweep("test", root=tmp_path) == [arena.directory.name]


def test_names_that_would_leave_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file name"):
        open_arena(run="../x", node="a", budget_bytes=1, root=tmp_path)
