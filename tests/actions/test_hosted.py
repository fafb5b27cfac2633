"""What a run is given to take along, and how its configuration fits the machine it comes to."""

from __future__ import annotations

import json
from pathlib import Path

from actions.away import ROOM, Away, Place, away
from actions.hosted import command_of, keep, settled
from actions.origin import tokens_digest
from actions.prepare import prepare_tokens
from actions.run_folder import config_digest, refuse_another
from actions.sending import sent, stage
from actions.sources import tokenizer_of
from actions.target import saved_config
from sailor.config import ControllerPlace
from sailor.config_keys import plain
from sailor.runtime.door import is_shown
from tests.helpers.compose import a_config

BEGUN = (
    '{"seq":1,"t":0.0,"time":"2027-01-15T08:00:00.000Z","run":"otter","generation":0,'
    '"kind":"run_started"}\n'
)
COMMAND = "python run.py run=otter cloud.controller=cluster"


def a_run(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "runs" / "otter"
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put(config, folder: Path, *, into: Path, tokens: Path | None = None) -> None:
    """What sending does before anything is rented."""
    stage(sent(config, run=folder.name, tokens=tokens), folder, into=into, command=COMMAND)


def test_a_run_is_sent_with_what_it_has_and_without_its_keys(tmp_path):
    folder = a_run(
        tmp_path, **{"events.jsonl": BEGUN, "plan.json": "{}", "machines.jsonl": "rented",
                     ".identity__run.key": "SECRET", "checkpoints__step-1__part": "weights"}
    )  # fmt: skip
    house = folder / ROOM / "house"
    config = a_config("run=otter", "cloud.controller=cluster", "ui.web=true", "output=json")
    put(config, folder, into=house)
    there = house / "runs" / "otter"
    found = {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
    assert found == {"events.jsonl", "plan.json", "checkpoints/step-1/part", "config.yaml"}
    came = saved_config(house)
    assert command_of(house / "config.yaml") == COMMAND
    assert came.cloud.controller is ControllerPlace.cluster, "so it counts what that costs"
    assert (came.ui.web, came.output.value, came.run.name) == (False, "text", "otter")
    assert config_digest(came) == config_digest(config), "it is the same run there"


def test_a_log_that_is_longer_there_is_not_overwritten(tmp_path):
    """The command that looked was killed: what came home last is old."""
    folder = a_run(tmp_path, **{"events.jsonl": "one\n"})
    house = folder / ROOM / "house"
    config = a_config("run=otter")
    put(config, folder, into=house)
    log = house / "runs" / "otter" / "events.jsonl"
    log.write_text("one\ntwo\n")
    put(config, folder, into=house)
    assert log.read_text() == "one\ntwo\n"
    (folder / "events.jsonl").write_text("one\ntwo\nthree\n")
    put(config, folder, into=house)
    assert log.read_text() == "one\ntwo\nthree\n"


def test_text_that_is_not_there_comes_as_the_very_tokens_made_here(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("a text that only this computer has\n" * 200)
    config = a_config(
        "run=otter", "data=text", f"data.path={text}", f"data.cache={tmp_path / 'cache'}",
        "tokenizer=bpe", "model.vocab_size=300",
    )  # fmt: skip
    made, words = prepare_tokens(config), tokenizer_of(config)
    folder = a_run(tmp_path)
    for name, content in words.files().items():
        (folder / "tokenizer").mkdir(exist_ok=True)
        (folder / "tokenizer" / name).write_bytes(content)
    house = tmp_path / "house"
    put(config, folder, into=house)
    (house / "tokens").symlink_to(made.path)  # as SkyPilot copies them
    for path in (text / "a.txt",):
        path.unlink()  # another computer has no such file
    came = settled(saved_config(house), house=house, address="10.0.0.7")
    assert (came.runtime.host, came.runtime.address) == ("10.0.0.7", "10.0.0.7")
    assert came.runs_dir == str(house / "runs")
    there = prepare_tokens(came)
    assert tokens_digest(there) == tokens_digest(made)
    assert tokenizer_of(came).name == words.name == there.tokenizer


def test_tokens_that_both_see_are_named_and_read_where_they_are(tmp_path):
    config = a_config("run=otter", "cloud=slurm", "cloud.shared_files=true")
    house, tokens = tmp_path / "house", tmp_path / "tokens"
    put(config, a_run(tmp_path), into=house, tokens=tokens)
    came = settled(saved_config(house), house=house, address="")
    assert came.data.prepared == str(tokens)
    assert came.runtime.address == config.runtime.address


def test_a_run_that_goes_on_there_is_of_the_same_configuration_though_its_tokenizer_is_a_file_now(
    tmp_path,
):
    """It was refused once: E603, tokenizer.name: bytes there, file here."""
    config = a_config("run=otter", f"data.cache={tmp_path / 'cache'}")
    folder = a_run(tmp_path, **{"events.jsonl": BEGUN, "tokenizer__tokenizer.json": "{}"})
    house = tmp_path / "house"
    put(config, folder, into=house, tokens=tmp_path / "tokens")
    came = settled(saved_config(house), house=house, address="")
    assert came.tokenizer.name == "file"
    keep(came, house=house, command=COMMAND)
    refuse_another(house / "runs" / "otter", came)  # raises where it is another one


def test_nothing_is_known_of_where_a_run_lives_that_lives_here(tmp_path):
    folder = a_run(tmp_path, **{"events.jsonl": ""})
    assert away(folder) is None
    (folder / ROOM).mkdir()
    Away(path=folder).note(Place(cloud="gcp", port=23456))
    there = away(folder)
    assert there is not None
    assert there.place == Place(cloud="gcp", port=23456)
    assert there.may_live(), "on a cloud that is so until the contrary is proven"
    assert there.look() is None


def test_what_a_configuration_says_survives_the_way_there(tmp_path):
    config = a_config("run=otter", "train.steps=7", "cloud.trace.length=3h", "budget.total_usd=5")
    put(config, a_run(tmp_path), into=tmp_path / "house")
    assert json.dumps(plain(saved_config(tmp_path / "house"))) == json.dumps(
        plain(sent(config, run="otter", tokens=None))
    )
    assert not is_shown(ROOM)
