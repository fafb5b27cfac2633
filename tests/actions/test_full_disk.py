"""A disk that is really full: a small tmpfs, which takes root to mount."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actions import export
from actions.prepare import prepare_tokens
from sailor.errors import DataError
from tests.actions.test_export import TINY, act
from tests.helpers.compose import a_config
from tests.helpers.mounts import small_disk
from tests.helpers.run_folders import a_run_folder


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    with small_disk(tmp_path / "small", size="64k") as folder:
        yield folder


def test_preparing_on_a_full_disk_is_one_error_and_goes_on_elsewhere(small: Path, tmp_path: Path):
    (tmp_path / "text.txt").write_text("".join(f"line {i}\n" for i in range(30_000)))
    words = ("data=text", f"data.path={tmp_path / 'text.txt'}")
    with pytest.raises(DataError, match="cannot be written") as raised:
        prepare_tokens(a_config(*words, f"data.cache={small / 'cache'}"))
    assert (raised.value.code, raised.value.exit_code) == ("E518", 5)
    assert "No space left on device" in raised.value.why
    assert str(small) in raised.value.where
    assert "data.cache=" in raised.value.fix
    assert not list(small.rglob("manifest.json")), "nothing that could pass for whole"
    assert prepare_tokens(a_config(*words, f"data.cache={tmp_path / 'cache'}")).num_documents > 1


def test_megatrons_files_on_a_full_disk_are_one_error(small: Path, tmp_path: Path):
    from actions import prepare

    (tmp_path / "text.txt").write_text("".join(f"line {i}\n" for i in range(30_000)))
    words = ("data=text", f"data.path={tmp_path / 'text.txt'}", f"data.cache={tmp_path / 'cache'}")
    with pytest.raises(DataError, match="cannot be written") as raised:
        act(prepare, *words, f"data.megatron={small / 'out'}")
    assert raised.value.code == "E518"
    assert not list(small.glob("*.idx")), "a file of tokens without its index is none"


@pytest.mark.parametrize("kind", ["hf", "dcp"])
def test_exporting_to_a_full_disk_leaves_nothing(small: Path, tmp_path: Path, kind: str):
    said = a_run_folder(tmp_path, *TINY)
    with pytest.raises(DataError, match="cannot write") as raised:
        act(export, *said, f"export.format={kind}", f"export.directory={small / 'out'}")
    assert (raised.value.code, raised.value.exit_code) == ("E515", 5)
    assert "export.directory=" in raised.value.fix
    assert list(small.iterdir()) == []
