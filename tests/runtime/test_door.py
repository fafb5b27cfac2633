"""The door of a run that lives elsewhere, over real sockets: what it gives, takes, and refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sailor.runtime.door import PIECE_BYTES, Door, Listed, Piece, Read, Seen
from sailor.runtime.identity import Identity, create_identity
from sailor.runtime.requests import Save, take
from sailor.runtime.visit import NobodyHome, Visit, dial


@dataclass
class Somebody:
    """A lodger that notes what it is told."""

    told: list[str] = field(default_factory=list)

    def seen(self) -> Seen:
        return Seen(run="otter", exit_code=None, starts=1, told="", stem="sailor-otter-abc123")

    def stop(self) -> None:
        self.told.append("stop")

    def leave(self) -> None:
        self.told.append("leave")


class Liar(Door):
    """One that has our key and means us harm."""

    def answer(self, message):
        if isinstance(message, Read):
            return Piece(data=b"owned" if message.offset == 0 else b"", size=5)
        return Listed(files={"../escaped": (5, 1), "/tmp/escaped": (5, 1), ".identity/x": (5, 1),
                             "orders.jsonl": (5, 1), "a/../../escaped": (5, 1)})  # fmt: skip


@contextmanager
def opened(door: Door, identity: Identity) -> Iterator[tuple[str, int]]:
    """Its address, served by a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(
            door.open("127.0.0.1", 0, identity=identity), loop
        ).result(10)
        yield server.address

        async def shut() -> None:
            await server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(shut(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A run folder on its machine."""
    folder = tmp_path / "there"
    for name, text in {
        "events.jsonl": "one\n", "summary.json": "{}", "checkpoints/step-1/part": "weights",
        ".identity/run.key": "SECRET", "orders.jsonl": "rented", "journal.json": "{}",
        "requests/x.json": "{}", "config.yaml": "a: 1",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Identity:
    return create_identity(tmp_path / "key", run="door")


def test_results_come_home_and_what_is_the_machines_own_stays(there, key, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with (
        opened(Door(folder=there, lodger=Somebody()), key) as at,
        Visit(dial(at), identity=key) as visit,
    ):
        assert visit.look().run == "otter"
        assert visit.bring(home) == 2  # beside the log
        assert visit.bring(home) == 0, "what is the same is not fetched again"
        found = {str(p.relative_to(home)) for p in home.rglob("*") if p.is_file()}
        assert found == {"events.jsonl", "summary.json", "checkpoints/step-1/part"}
        (there / "summary.json").write_text('{"more": 1}')
        assert visit.bring(home) == 1
        assert (home / "summary.json").read_text() == '{"more": 1}'


def test_of_the_log_only_what_is_new_is_fetched(there, key, tmp_path):
    with (
        opened(Door(folder=there, lodger=Somebody()), key) as at,
        Visit(dial(at), identity=key) as visit,
    ):
        visit.follow(tmp_path)
        (tmp_path / "events.jsonl").write_text("ONE\n")  # as long as what was fetched
        with (there / "events.jsonl").open("a") as log:
            log.write("x" * (2 * PIECE_BYTES) + "\n")
        visit.follow(tmp_path)
        visit.follow(tmp_path)
    assert (tmp_path / "events.jsonl").read_text() == "ONE\n" + "x" * (2 * PIECE_BYTES) + "\n"


@pytest.mark.parametrize(
    "name",
    [".identity/run.key", "../there/.identity/run.key", "checkpoints/../.identity/run.key",
     "/etc/hostname", "orders.jsonl", "requests/x.json", "link", "", "nothing", "checkpoints"],
)  # fmt: skip
def test_keys_and_places_outside_the_run_are_not_had(there, key, name):
    (there / "link").symlink_to("/etc/hostname")
    answer = Door(folder=there, lodger=Somebody()).answer(Read(name=name, offset=0))
    assert not isinstance(answer, Piece), answer


def test_wishes_reach_the_run_as_its_owners_and_its_process_is_told_to_stop(there, key):
    (there / "requests" / "x.json").unlink()
    (there / "requests").chmod(0o700)
    lodger = Somebody()
    with (
        opened(Door(folder=there, lodger=lodger), key) as at,
        Visit(dial(at), identity=key) as visit,
    ):
        visit.wish(Save(why="key s"))
        visit.stop()
        visit.leave()
    assert take(there) == [Save(why="key s")]
    assert lodger.told == ["stop", "leave"]


def test_nobody_is_let_in_without_the_doors_own_key(there, key, tmp_path):
    """The run's key, which every machine that trains has, is another one."""
    other = create_identity(tmp_path / "other", run="otter")
    with opened(Door(folder=there, lodger=Somebody()), key) as at:
        with pytest.raises(NobodyHome), Visit(dial(at), identity=other) as visit:
            visit.look()
        with Visit(dial(at), identity=key) as visit:
            assert visit.look().run == "otter"
    with pytest.raises(NobodyHome):
        Visit(dial(at), identity=key)


def test_whatever_a_door_claims_to_have_nothing_is_written_outside_the_folder(key, tmp_path):
    home = tmp_path / "deep" / "home"
    home.mkdir(parents=True)
    with (
        opened(Liar(folder=tmp_path, lodger=Somebody()), key) as at,
        Visit(dial(at), identity=key) as visit,
    ):
        assert visit.bring(home) == 0
    assert {path.name for path in home.iterdir()} == {"events.jsonl"}
    assert not list(tmp_path.rglob("escaped"))
