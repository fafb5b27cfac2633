"""Requests left in a run folder: who may leave them, and what becomes of them."""

import os

import pytest

from sailor.runtime.requests import FOLDER, Migrate, Replan, Save, Stop, ask, take

WISH = Migrate(node="node-2", why="maintenance")


def test_a_request_is_read_once(tmp_path):
    path = ask(tmp_path, WISH)
    assert path.stat().st_mode & 0o077 == 0
    assert take(tmp_path) == [WISH]
    assert not path.exists()
    assert take(tmp_path) == []


@pytest.mark.parametrize("kind", [Save, Replan, Stop])
def test_each_wish_arrives_as_what_it_was(tmp_path, kind):
    ask(tmp_path, kind(why="key"))
    assert take(tmp_path) == [kind(why="key")]


def test_a_run_without_requests_has_none(tmp_path):
    assert take(tmp_path) == []


def test_the_oldest_comes_first(tmp_path):
    for number in range(3):
        path = ask(tmp_path, Migrate(node=f"node-{number}", why=""))
        os.utime(path, (number, number))
    assert [request.node for request in take(tmp_path)] == ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_set_aside(tmp_path, mode):
    path = ask(tmp_path, WISH)
    path.chmod(mode)
    assert take(tmp_path) == []
    assert not path.exists()


def test_nothing_counts_in_a_folder_that_others_may_write(tmp_path):
    ask(tmp_path, WISH)
    (tmp_path / FOLDER).chmod(0o777)
    assert take(tmp_path) == []


def test_a_link_to_elsewhere_is_not_followed(tmp_path):
    path = ask(tmp_path, WISH)
    elsewhere = tmp_path / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert take(tmp_path) == []
    assert elsewhere.exists()


@pytest.mark.parametrize("text", [b"", b"{", b'{"ask":"down"}', b'{"ask":"migrate","node":3}'])
def test_what_is_no_request_is_set_aside(tmp_path, text):
    path = ask(tmp_path, WISH)
    path.write_bytes(text)
    assert take(tmp_path) == []
    assert not path.exists()
