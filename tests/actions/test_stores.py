"""Checkpoints in a store: checked there, exported from there, and a store nobody reaches."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from actions import check, export
from actions.preflight import check_checkpoints
from actions.prepare import prepare_tokens
from sailor.checkpoint import files
from sailor.checkpoint.files import Folder, place
from sailor.errors import DataError
from tests.actions.test_export import TINY, act
from tests.helpers.compose import a_config
from tests.helpers.run_folders import a_run_folder
from tests.helpers.stores import on_s3


@pytest.fixture(params=("file", "memory", "s3"))
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a checkpoint can lie, as one writes it on the command line."""
    match request.param:
        case "file":
            yield f"file://{tmp_path}/store"
        case "memory":
            yield (name := f"memory://{uuid.uuid4().hex}")
            files.remove_tree(place(name))
        case "s3":
            with on_s3() as bucket:
                yield f"{bucket}/runs"


@pytest.fixture
def stored(address: str, tmp_path: Path) -> tuple[list[str], Folder]:
    """The words that name a run here, and a checkpoint of it in the store."""
    said = a_run_folder(tmp_path, *TINY)
    here = tmp_path / "runs" / "it" / "checkpoints" / "step-00000005"
    there = place(address) / here.name
    for path in here.iterdir():
        files.write(there / path.name, lambda sink, p=path: sink(memoryview(p.read_bytes())))
    return said, there


def test_a_checkpoint_in_a_store_is_checked_where_it_is(stored: tuple[list[str], Folder]) -> None:
    _, there = stored
    found = act(check, f"checkpoint={there}")
    assert (found["step"], found["files"]) == (5, 2)
    part = next(f for f in files.children(there) if f.name.endswith(".safetensors"))
    content = bytearray(files.read(part))
    content[-1] ^= 1
    files.write(part, lambda sink: sink(memoryview(bytes(content))))
    with pytest.raises(DataError) as caught:
        act(check, f"checkpoint={there}")
    assert (caught.value.code, caught.value.exit_code) == ("E516", 5)
    assert part.name in caught.value.why


def test_a_checkpoint_in_a_store_is_exported(stored: tuple[list[str], Folder]) -> None:
    said, there = stored
    document = act(export, *said, f"checkpoint={there}")
    assert (Path(document["directory"]) / "model.safetensors").is_file()


def test_a_store_that_is_there_may_be_trained_into(address: str) -> None:
    check_checkpoints(a_config(f"checkpoint.directory={address}/new"))


def test_a_store_that_cannot_be_reached_ends_a_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("s3fs", reason="pip install 'sailor-train[s3]'")
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {  # nobody listens there
        "endpoint_url": "http://127.0.0.1:9", "key": "x", "secret": "x",
        "config_kwargs": {"connect_timeout": 1, "retries": {"max_attempts": 0}},
    })  # fmt: skip
    words = ("data=text", "data.path=s3://bucket/text")
    for ask, code in (
        (lambda: check_checkpoints(a_config("checkpoint.directory=s3://bucket/run")), "E611"),
        (lambda: act(check, "checkpoint=s3://bucket/run/step-00000005"), "E516"),
        (lambda: prepare_tokens(a_config(*words)), "E502"),
    ):
        with pytest.raises(DataError) as caught:
            ask()
        assert (caught.value.code, caught.value.exit_code) == (code, 5)
