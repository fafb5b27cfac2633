"""Bringing the boxes a worker needs into its own node's memory, where it can read them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from sailor.checkpoint.lines import Lines
from sailor.checkpoint.replicate import fetch
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.runtime.ahead import Ahead
from sailor.runtime.identity import Identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.messages import Source
from sailor.runtime.worker_link import LocalSource


class CannotTake(Exception):
    """A worker cannot get its boxes from where it was told to. ``path`` or ``spoiled``: the source
    whose bytes are not what was written, as its worker or as the controller calls it."""

    def __init__(self, why: str, *, path: str = "", spoiled: tuple[Source, ...] = ()) -> None:
        super().__init__(why)
        self.path = path
        self.spoiled = spoiled


async def localise(
    sources: Sequence[Source],
    *,
    node: str,
    peers: Mapping[str, tuple[str, int]],
    keeper: Keeper,
    identity: Identity,
    ahead: Ahead,
    held: ExitStack,
    lines: Lines,
) -> tuple[LocalSource, ...]:
    """Every source as one that a worker of ``node`` can read: fetched from others where needed,
    over one of ``lines`` if there is one to there, unless that has been done ``ahead``.

    What it reads stays as it is until ``held`` is closed. Raises CannotTake, TransferFailed,
    OutOfSnapshotMemory.
    """

    async def one(source: Source) -> LocalSource:
        if source.snapshot is None:
            return LocalSource(tier=source.tier, boxes=source.boxes, path=source.path)
        if source.node == node:
            try:
                segment = held.enter_context(keeper.pinned(source.snapshot))
            except KeyError as error:
                raise CannotTake(f"{error} is not held here") from error
        else:
            address = peers.get(source.node)
            if address is None:
                raise CannotTake(f"no address of {source.node}")
            try:
                early = await ahead.take(source, held=held)
                segment = early or await fetch(
                    address, source.snapshot, source.boxes, identity=identity, shelf=keeper,
                    line=lines.take(address),
                )  # fmt: skip
            except CorruptSnapshot as error:
                raise CannotTake(str(error), spoiled=(source,)) from error
            if early is None:
                held.callback(keeper.discard, segment)
        return LocalSource(tier="segment", boxes=source.boxes, path=str(segment.path))

    # All to their end, so that nothing is added to ``held`` after a failure has closed it.
    outcomes = await asyncio.gather(*map(one, sources), return_exceptions=True)
    local = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        local.append(outcome)
    return tuple(local)
