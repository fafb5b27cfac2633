"""Mixtures as a user says them: sources by name, and what comes of a slip."""

import pytest

from actions.prepare import prepare_tokens
from sailor.data.tokens import load_manifest
from sailor.errors import ConfigError, DataError
from tests.helpers.compose import a_config

WEB = ("data=mixture", "data.mixture.web.path=/web", "data.mixture.web.weight=3")


def test_sources_are_named_on_the_command_line():
    mixture = a_config(*WEB, "data.mixture.code.name=stdlib").data.mixture
    assert {name: (s.name, s.path, s.weight) for name, s in mixture.items()} == {
        "web": ("text", "/web", 3.0), "code": ("stdlib", None, 1.0),
    }  # fmt: skip
    assert a_config("data=mixture", "data.mixture={web:{path:/web,weight:3}}").data.mixture == {
        "web": mixture["web"]
    }


@pytest.mark.parametrize(
    ("slip", "fix"),
    [
        ("data.mixture.web.weight=-2", "data.mixture.web.weight=2"),
        ("data.mixture.web.weight=70%", "data.mixture.web.weight=0.7"),
        ("data.mixture.web.weight=nan", "data.mixture.web.weight=1.0"),
        ("data.mixture.web.weight=0", "~data.mixture.web"),
        ("data.mixture.web.wieght=2", "data.mixture.web.weight=2"),
        ("data.mixture.web.name=txt", "data.mixture.web.name=text"),
        ("data.mixture.web=0.7", "data.mixture.web.weight=0.7"),
        ("data.mixture.web=/other", "data.mixture.web.path=/other"),
        ("data.mixture.code.weight=1", "data.mixture.code.path=PATH"),
        ("data=stdlib", "data=mixture"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_that_works(slip, fix):
    with pytest.raises(ConfigError) as raised:
        a_config(*WEB, slip)
    assert raised.value.exit_code == 2
    assert fix in raised.value.fix
    assert "++" not in raised.value.fix


def test_a_mixture_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="names no source"):
        a_config("data=mixture")


def test_a_source_that_is_not_there_is_named_by_its_own_key(tmp_path):
    config = a_config("data=mixture", f"data.mixture.web.path={tmp_path / 'nowhere'}")
    with pytest.raises(DataError) as raised:
        prepare_tokens(config)
    assert raised.value.where == "data.mixture.web.path"
    assert "data.mixture.web.path=PATH" in raised.value.fix


def test_tokens_in_a_store_are_refused_with_the_reason():
    with pytest.raises(DataError, match="folders of this computer") as raised:
        prepare_tokens(a_config("data=tokens", "data.path=s3://bucket/tokens"))
    assert raised.value.code == "E501"


def test_each_source_is_prepared_once_and_mixed(tmp_path):
    for name in ("web", "code"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i}\n" for i in range(900)))
    words = (
        "data=mixture", f"data.cache={tmp_path / 'cache'}", "data.mixture.web.weight=3",
        *(f"data.mixture.{name}.path={tmp_path / name}.txt" for name in ("web", "code")),
    )  # fmt: skip
    config = a_config(*words)
    manifest = prepare_tokens(config)
    assert [part.name for part in manifest.parts] == ["code", "web"]
    assert prepare_tokens(config) == manifest
    assert len(list((tmp_path / "cache").glob("*/manifest.json"))) == 3
    assert load_manifest(tmp_path / "cache" / manifest.path.rpartition("/")[2]) == manifest
