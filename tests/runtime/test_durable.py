"""The controller's side of durable checkpoints: whose part counts, and when a step is complete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sailor.checkpoint.store import step_directory, write_part
from sailor.clock import WallClock
from sailor.parallel.boxes import all_boxes
from sailor.runtime.durable import Durable
from sailor.runtime.messages import Persisted, RunSettings
from tests.helpers.builders import a_spec
from tests.helpers.settings import some_settings
from tests.helpers.snapshots import a_verified_segment, an_arena

SPEC = a_spec(hidden_size=8, num_heads=2, num_kv_heads=2, head_size=4, ffn_hidden_size=16,
              vocab_size=32, max_positions=16)  # fmt: skip
NODES = ("a", "b")


class Log:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def write(self, kind: str, **fields: Any) -> None:
        self.kinds.append(kind)


def the_settings(folder: Path) -> RunSettings:
    settings = some_settings(checkpoint_directory=str(folder / "checkpoints"))
    return msgspec.structs.replace(settings, spec=SPEC)


def the_parts(
    folder: Path, *, step: int, generation: int = 1, last: bool = False
) -> list[Persisted]:
    """Both nodes' parts of a step, written."""
    settings = the_settings(folder)
    boxes = all_boxes(SPEC, pieces=settings.pieces)
    parts = []
    for node, some in zip(NODES, (boxes[::2], boxes[1::2]), strict=True):
        memory = folder / f"memory-{node}-{step}-{generation}"
        memory.mkdir()
        shapes = tuple((box.name, box.shape) for box in some)
        arena = an_arena(memory, node=node)
        segment = a_verified_segment(arena, generation=generation, step=step, boxes=shapes)
        name = f"g{generation}-{node}-0"
        names = tuple(box.name for box in some)
        written = write_part(
            Path(settings.checkpoint_directory), step=step, name=name, sources=[(segment, names)]
        )
        parts.append(
            Persisted(
                generation=generation, node=node, step=step,
                files={f"{name}.safetensors": written}, boxes=names, last=last,
            )
        )  # fmt: skip
    return parts


def the_durable(folder: Path, log: Log) -> Durable:
    return Durable(the_settings(folder), keep=2, events=log, clock=WallClock())


def hear(durable: Durable, parts: Sequence[Persisted]) -> list[tuple[str, ...]]:
    async def all_of_them() -> list[tuple[str, ...]]:
        return [await durable.hear(part.node, part) for part in parts]

    return asyncio.run(all_of_them())


def test_nodes_are_saved_once_the_step_they_stand_at_is_complete(tmp_path: Path) -> None:
    durable = the_durable(tmp_path, Log())
    assert hear(durable, the_parts(tmp_path, step=5, last=True)) == [(), NODES]
    assert durable.newest_step == 5


def test_a_complete_step_that_nobody_stands_at_saves_nobody(tmp_path: Path) -> None:
    """A run that was stopped meanwhile, or a node that came back, must not end with it."""
    durable = the_durable(tmp_path, Log())
    parts = the_parts(tmp_path, step=5)
    assert hear(durable, [*parts, *parts]) == [(), (), (), ()]
    assert durable.newest_step == 5


def test_a_step_that_was_durable_already_saves_those_who_stand_at_it(tmp_path: Path) -> None:
    log = Log()
    durable = the_durable(tmp_path, log)
    parts = the_parts(tmp_path, step=5)
    hear(durable, parts)
    again = [msgspec.structs.replace(part, last=True) for part in parts]
    assert hear(durable, again) == [("a",), NODES]
    assert log.kinds == ["persisted"]  # and not twice


def test_what_an_earlier_controller_completed_and_could_not_write_down_is_written_down(
    tmp_path: Path,
) -> None:
    hear(the_durable(tmp_path, Log()), the_parts(tmp_path, step=5))
    log = Log()
    durable = the_durable(tmp_path, log)
    asyncio.run(durable.look())
    assert log.kinds == []
    durable.trust_what_is_there()
    assert log.kinds == ["persisted"]
    assert hear(durable, the_parts(tmp_path, step=5, generation=2, last=True)) == [("a",), NODES]
    assert log.kinds == ["persisted"]


def test_a_step_that_was_found_spoiled_is_completed_anew(tmp_path: Path) -> None:
    """The run goes back beyond it and does it again: its new files are what counts."""
    log = Log()
    durable = the_durable(tmp_path, log)
    hear(durable, the_parts(tmp_path, step=5))
    folder = step_directory(Path(the_settings(tmp_path).checkpoint_directory), 5)
    durable.spoiled.add(str(folder))
    again = the_parts(tmp_path, step=5, generation=2, last=True)
    assert hear(durable, again) == [(), NODES]
    assert log.kinds == ["persisted", "persisted"]
    best = asyncio.run(durable.best(below=None))
    assert best is not None
    assert (best.step, best.generation) == (5, 2)
