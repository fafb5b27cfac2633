"""Two nodes' snapshot memories with a bulk port each, without agents around them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from sailor.checkpoint.replicate import BULK_DECODER, serve_bulk
from sailor.checkpoint.segment import Segment
from sailor.runtime.identity import Identity, create_identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.transport import listen
from tests.helpers.snapshots import BOXES, a_worker, an_arena, write


class Node:
    """A keeper behind a bulk port."""

    def __init__(self, root: Path, name: str, identity: Identity, *, budget: int) -> None:
        self.arena = an_arena(root, node=name, budget_bytes=budget)
        self.keeper = Keeper(self.arena, node=name, grant=lambda *_: None)
        self.identity = identity
        self.address = ("", 0)

    async def hold(self, *, step: int = 5, seed: int = 0, boxes=BOXES) -> Segment:
        segment = await self.keeper.room(writer=a_worker("a"), boxes=boxes)
        write(segment, generation=1, step=step, seed=seed)
        segment.seal()
        self.keeper.keep(segment)
        return segment


@contextlib.asynccontextmanager
async def two_nodes(tmp_path: Path, *, budget: int = 64 << 20) -> AsyncIterator[tuple[Node, Node]]:
    identity = create_identity(tmp_path / "identity", run="test")
    nodes = [Node(tmp_path, name, identity, budget=budget) for name in ("a", "b")]
    servers = []
    for node in nodes:
        server = await listen(
            "127.0.0.1", 0, identity=identity, decoder=BULK_DECODER,
            on_link=lambda link, keeper=node.keeper: serve_bulk(link, keeper),
        )  # fmt: skip
        node.address = server.address
        servers.append(server)
    try:
        yield nodes[0], nodes[1]
    finally:
        for server in servers:
            await server.close()
