"""The same durable checkpoint in a folder, in fsspec's stores, and in S3 as moto plays it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sailor.checkpoint import files
from sailor.checkpoint.files import StorePath, place
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import (
    COMPLETE,
    CheckpointFailed,
    Reader,
    complete,
    newest,
    step_directory,
    steps,
    verify,
    write_part,
)
from tests.checkpoint.test_store import BOXES, NAMES, SETTINGS, a_part
from tests.helpers.snapshots import a_verified_segment, an_arena, values_of
from tests.helpers.stores import on_s3

KINDS = ("path", "file", "memory", "s3")


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where checkpoints go. Nothing of it is left."""
    match request.param:
        case "path":
            yield str(tmp_path / "checkpoints")
        case "file":
            yield f"file://{tmp_path}/checkpoints"
        case "memory":
            name = f"memory://{uuid.uuid4().hex}"
            yield name
            files.remove_tree(place(name))
        case "s3":
            with on_s3() as bucket:
                yield f"{bucket}/run/checkpoints"


def a_checkpoint(
    address: str, tmp_path: Path, *, step: int, keep: int = 10, keep_every: int = 0
) -> None:
    root = tmp_path / f"shm-{step}"
    root.mkdir()
    segment = a_verified_segment(an_arena(root), step=step, seed=step, boxes=BOXES)
    directory = place(address)
    total = write_part(directory, step=step, name="a-0", sources=[(segment, NAMES)])
    part = a_part("a", step, {"a-0.safetensors": total})
    complete(directory, step, [part], settings=SETTINGS, keep=keep, keep_every=keep_every)


def test_what_was_written_anywhere_is_read_back_and_verifies(address: str, tmp_path: Path) -> None:
    a_checkpoint(address, tmp_path, step=40)
    found = newest(place(address))
    assert found is not None
    assert found.step == 40
    assert place(str(found.path)) == found.path, "the address is all that travels"
    assert verify(place(address), 40) == []
    reader = Reader(place(str(found.path)))
    for i, (name, shape) in enumerate(BOXES):
        np.testing.assert_array_equal(np.stack(reader.read(name)), values_of(40 + i, shape))


def test_as_many_are_kept_as_wished(address: str, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        a_checkpoint(address, tmp_path, step=step, keep=2)
    assert steps(place(address)) == [20, 30]
    assert {f.name for f in files.children(place(address))} == {"step-00000020", "step-00000030"}


def test_some_are_kept_for_good_beside_the_newest(address: str, tmp_path: Path) -> None:
    for step in range(10, 90, 10):
        a_checkpoint(address, tmp_path, step=step, keep=1, keep_every=25)
    assert steps(place(address)) == [30, 50, 80]  # at or after 25, 50 and 75
    assert all(verify(place(address), step) == [] for step in (30, 50, 80))


def test_without_its_marker_it_is_none(address: str, tmp_path: Path) -> None:
    for step in (10, 20):
        a_checkpoint(address, tmp_path, step=step)
    files.remove(step_directory(place(address), 20) / COMPLETE)
    found = newest(place(address))
    assert found is not None
    assert found.step == 10


def test_flipped_bytes_are_found(address: str, tmp_path: Path) -> None:
    a_checkpoint(address, tmp_path, step=10)
    path = step_directory(place(address), 10) / "a-0.safetensors"
    data = bytearray(files.read(path))
    data[-5] ^= 1
    files.write(path, lambda sink: sink(memoryview(bytes(data))))
    (problem,) = verify(place(address), 10)
    assert "digest" in problem
    with pytest.raises(CorruptSnapshot, match="other bytes"):
        Reader(step_directory(place(address), 10)).read(NAMES[-1])


def test_where_nothing_was_written_there_is_nothing(address: str) -> None:
    assert newest(place(address)) is None


def test_a_stores_checkpoint_is_brought_here_once(address: str, tmp_path: Path) -> None:
    a_checkpoint(address, tmp_path, step=10)
    folder = step_directory(place(address), 10)
    if not isinstance(folder, StorePath):
        pytest.skip("it is here already")
    here = files.copy_here(folder, tmp_path / "here" / folder.name)
    assert verify(here.parent, 10) == []
    before = {path: os.stat(path).st_mtime_ns for path in here.iterdir()}
    files.copy_here(folder, here)
    assert {path: os.stat(path).st_mtime_ns for path in here.iterdir()} == before


# A store that does not do what it is asked


class Faulty:
    """fsspec's memory store, of which some calls fail as a store's do: not with an OSError."""

    def __init__(self, fails: dict[str, int]) -> None:
        import fsspec

        self._store = fsspec.filesystem("memory")
        self._fails = fails

    def __getattr__(self, name: str):
        left = self._fails.get(name, 0)
        if left > 0:
            self._fails[name] = left - 1

            def fail(*_: object, **__: object) -> None:
                raise RuntimeError("503 Slow Down")

            return fail
        return getattr(self._store, name)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BACKOFF_S", 0.0)


def faulty(**fails: int) -> StorePath:
    return StorePath(store=Faulty(fails), path=f"/{uuid.uuid4().hex}")


def test_a_store_that_fails_for_a_moment_is_asked_again(tmp_path: Path, impatient: None) -> None:
    directory = faulty(open=2)
    segment = a_verified_segment(an_arena(tmp_path), boxes=BOXES)
    total = write_part(directory, step=5, name="a-0", sources=[(segment, NAMES)])
    complete(directory, 5, [a_part("a", 5, {"a-0.safetensors": total})], settings=SETTINGS, keep=1)
    assert verify(directory, 5) == []


def test_a_store_that_goes_on_failing_costs_this_checkpoint_alone(
    tmp_path: Path, impatient: None
) -> None:
    directory = faulty(open=99)
    segment = a_verified_segment(an_arena(tmp_path), boxes=BOXES)
    with pytest.raises(CheckpointFailed) as caught:
        write_part(directory, step=5, name="a-0", sources=[(segment, NAMES)])
    assert "503 Slow Down" in caught.value.render()
    assert newest(directory) is None


def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(OSError, match="503 Slow Down"):
        newest(faulty(ls=99))


def test_an_upload_that_breaks_off_leaves_nothing(impatient: None) -> None:
    directory = faulty()
    path = directory / "part"

    def half(sink: files.Sink) -> None:
        sink(memoryview(b"x" * 1000))
        raise CorruptSnapshot("changed after sealing", where="here")

    with pytest.raises(CorruptSnapshot):
        files.write(path, half)
    assert not files.exists(path)


def test_an_address_that_nothing_here_can_serve_is_refused_with_the_reason() -> None:
    with pytest.raises(OSError, match="nosuchstore"):
        place("nosuchstore://bucket/x")
