"""A worker's part in one generation: its trainer, its groups and the segments it may write.

What moves state in and out of the trainer is here: taking boxes from where the controller said,
and copying them into snapshot memory. When to do either is the worker's business.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sailor.checkpoint.files import place
from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.checkpoint.store import Reader
from sailor.parallel.boxes import Box
from sailor.parallel.comm import Communicator
from sailor.parallel.layout import Layout
from sailor.parallel.state import BoxTensors
from sailor.runtime.messages import RunSettings, StepRecord
from sailor.runtime.side_copy import Copy, SideCopy
from sailor.runtime.watchdog import KNOWN_STEPS, exchange_timeout_s
from sailor.runtime.worker_link import LocalSource, Written
from sailor.training.trainer import Trainer

log = logging.getLogger(__name__)

KEPT_RECORDS = 64


class SpoiledSource(Exception):
    """What was to be read is not what was written: another copy is needed."""

    def __init__(self, source: LocalSource, why: CorruptSnapshot) -> None:
        super().__init__(str(why))
        self.path = source.path


ReadBox = Callable[[Box], tuple[torch.Tensor, ...]]


@dataclass(kw_only=True, eq=False)
class Seat:
    """One rank of one generation. ``step`` is the last one applied, -1 while it has no state."""

    generation: int
    settings: RunSettings
    layout: Layout
    rank: int
    trainer: Trainer
    groups: Mapping[str, Communicator]
    segments: Mapping[str, Segment]
    side_copy: SideCopy
    abort: threading.Event  # leave whatever is under way
    lender: Seat | None = None  # whose groups some of these are, until this seat sits down
    heir_of: Seat | None = None  # whose trainer and segments these are, until this seat sits down
    stop: threading.Event = field(default_factory=threading.Event)  # vote for a stop
    grants: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    records: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=KEPT_RECORDS))
    step: int = -1
    snapshot_step: int = -1  # newest step copied into a segment
    last_step: int = -1  # after which all agreed to stand still
    copying: Copy | None = None  # the newest one, which may be under way
    skipped: int = 0  # snapshots not taken because some rank had no room
    losses_per_s: float = 0.0  # of the layout's machines, as the controller expects
    every: int = 1  # steps between snapshots
    since: int = 0  # steps since one was due
    start_s: float = 0.0  # that beginning the newest copy held this rank up
    snapshot_s: float = 0.0  # that a snapshot held it up in all, its update included
    step_s: float = 0.0  # that the newest step took
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=KNOWN_STEPS))

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes whose state this rank keeps."""
        return self.layout.kept[self.rank]

    def sit_down(self, *, moved: int) -> None:
        """The state is in place, ``moved`` bytes of it new: use it, over these groups, those taken
        over included."""
        inherits = self.heir_of is not None
        if self.heir_of is not None:
            self.segments = self.heir_of.segments  # a spare one may have come meanwhile
            self.trainer.move_to(self.layout, self.rank)
            self.heir_of = None
        if moved or not inherits:
            self.trainer.loaded()
        for group in self.groups.values():
            group.rebind(self.abort)
        self.trainer.connect(self.groups)
        self.lender = None

    def took(self, seconds: float) -> None:
        """A step is done. Groups built when nobody knew how long one takes learn how long to wait
        for a peer at the other end of a line that went silent."""
        self.step_s = seconds
        self.steps_s.append(seconds)
        if len(self.steps_s) == KNOWN_STEPS:
            for group in self.groups.values():
                group.allow(seconds=exchange_timeout_s(self.steps_s))

    def settle(self) -> None:
        """No copy of its state is under way any more, and the agent knows of the newest."""
        copying, self.copying = self.copying, None
        if copying is not None:
            copying.wait()

    def interrupt(self) -> None:
        """Let whoever waits for one of the groups leave at once. From any thread."""
        self.abort.set()
        for group in self.groups.values():
            group.interrupt()

    def leave(self, *, keep: Mapping[str, Communicator] | None = None) -> None:
        """Give up the groups for good, but those lent or in ``keep``; does not block."""
        self.abort.set()
        lent = self.lender.groups if self.lender is not None else {}
        spared = {id(group) for group in (*lent.values(), *(keep or {}).values())}
        for group in self.groups.values():
            if id(group) not in spared:
                group.close()


def start_snapshot(seat: Seat, *, wait_s: float, told: Callable[[Written], object]) -> bool:
    """Begin to copy the seat's boxes, as they are after its step, into a granted segment.

    Waits at most ``wait_s`` for a grant; False when there was none. ``told`` is called, in another
    thread, when the copy is whole.
    """
    began = time.monotonic()
    try:
        path = seat.grants.get(timeout=wait_s) if wait_s > 0 else seat.grants.get_nowait()
    except queue.Empty:
        return False
    segment, step = seat.segments[path], seat.step
    standing, skipped = step == seat.last_step, seat.skipped
    segment.begin(generation=seat.generation, step=step)
    pairs = [
        (torch.from_numpy(array), tensor)
        for box, tensors in seat.trainer.state.items()
        for array, tensor in zip(segment.arrays(box.name), _kinds(tensors), strict=True)
    ]

    seat.copying = seat.side_copy.begin(pairs)
    seat.trainer.hold_update(seat.copying.hold)
    seat.snapshot_step = step
    seat.start_s = stall_s = time.monotonic() - began

    def tell(copy_s: float) -> None:
        segment.finish()
        told(
            Written(
                generation=seat.generation, step=step, segment=path, stall_s=stall_s,
                copy_s=copy_s, skipped=skipped, standing=standing,
            )
        )  # fmt: skip

    seat.copying.see_through(tell)
    return True


def take_boxes(new: Seat, sources: Sequence[LocalSource], *, step: int, old: Seat | None) -> int:
    """Fill every box of a new seat from its source. Returns the bytes moved.

    Everything that comes from memory or disk is checked against the digest it was sealed with. A
    seat that goes on with the old one's trainer leaves what it holds live where it is; what it must
    take from elsewhere, the old state is overwritten with. Raises SpoiledSource, or ValueError when
    sources and boxes do not match.
    """
    inherits = old is not None and new.trainer is old.trainer
    if old is not None:
        old.settle()  # what is being copied must not be overwritten
    stays = any(source.tier == "live" for source in sources)
    if stays and (old is None or old.step != step):
        at = "nothing" if old is None else f"step {old.step}"
        raise ValueError(f"asked to keep step {step} but holds {at}")
    elsewhere = [source for source in sources if source.tier != "live"]
    if inherits and stays and not elsewhere:
        return 0
    wanted = {box.name: box for box in new.boxes}
    moved = 0
    for source in elsewhere:
        boxes = [wanted.pop(name) for name in source.boxes if name in wanted]
        if len(boxes) != len(source.boxes):
            raise ValueError(f"a {source.tier} source names boxes of somebody else")
        if inherits and old is not None:
            old.step = -1  # half old, half new until all is done: nobody may take it for a state
        if source.tier == "init":
            new.trainer.initialise(boxes)
            continue
        try:
            with _reading(source, step=step) as read:
                for box in boxes:
                    moved += _write(new.trainer.state[box], read(box))
        except CorruptSnapshot as error:
            raise SpoiledSource(source, error) from error
    if stays and old is not None and not inherits:
        for box in [box for box in wanted.values() if box in old.trainer.state]:
            moved += _write(new.trainer.state[box], _kinds(old.trainer.state[box]))
            del wanted[box.name]
    if wanted and not (stays and inherits):
        raise ValueError(f"no source for {len(wanted)} boxes, {min(wanted)} for one")
    return moved


def _write(tensors: BoxTensors, values: tuple[torch.Tensor, ...]) -> int:
    for target, value in zip(_kinds(tensors), values, strict=True):
        target.copy_(value)
    return sum(target.numel() * target.element_size() for target in _kinds(tensors))


@contextmanager
def _reading(source: LocalSource, *, step: int) -> Iterator[ReadBox]:
    match source.tier:
        case "segment":
            segment = Segment.attach(Path(source.path))
            segment.check_seal()
            if segment.snapshot.step != step:
                raise CorruptSnapshot(f"not of step {step}", where=str(segment))

            def from_segment(box: Box) -> tuple[torch.Tensor, ...]:
                segment.check(box.name)
                return tuple(torch.from_numpy(array) for array in segment.arrays(box.name))

            yield from_segment
        case "disk":
            try:
                reader = Reader(place(source.path))
            except OSError as error:
                raise CorruptSnapshot(f"cannot be reached: {error}", where=source.path) from error
            if reader.manifest.step != step:
                raise CorruptSnapshot(f"not of step {step}", where=source.path)
            yield lambda box: tuple(torch.from_numpy(array) for array in reader.read(box.name))
        case tier:
            raise ValueError(f"unknown tier {tier!r}")


def _kinds(tensors: BoxTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tensors.weight, tensors.moment1, tensors.moment2
