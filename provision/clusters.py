"""A provisioner over anything that rents equal machines as named clusters.

Turns orders for machines into clusters of one zone, machine type and kind, keeps a few launches in
flight, and lets nothing be rented that is not written down. Which cloud, and how a cluster is asked
for, is the launcher's business (``provision/skypilot.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from provision.orders import ClusterOrder, OrderBook
from sailor.cluster.provisioner import News, NodeRequest, Refused, Released, Started
from sailor.errors import CloudError

log = logging.getLogger(__name__)

_DOWN_PAUSES_S = (2.0, 10.0, 30.0)  # between attempts to end a cluster


class LaunchRefused(Exception):
    """A cluster was not had. ``error`` is for people; the rest as in provisioner.Refused."""

    def __init__(
        self, error: CloudError, *, retry_s: float | None = None, lasting: bool = False
    ) -> None:
        super().__init__(error.what)
        self.error = error
        self.retry_s = retry_s
        self.lasting = lasting


class Launcher(Protocol):
    """What is asked of a cloud. Every call may take minutes and may be cancelled."""

    def check(self, request: NodeRequest) -> str:
        """Where a machine would be asked for, in the launcher's words.

        Raises CloudError for one that it can never give.
        """
        ...

    async def launch(self, order: ClusterOrder) -> None:
        """Rent it and start its agents. Raises LaunchRefused; something may be left then."""
        ...

    async def down(self, cluster: str) -> str:
        """End a cluster, or its launch, or nothing at all; how that was checked.

        Raises CloudError when it could not be proven.
        """
        ...

    async def living(self) -> Sequence[str]:
        """Names of all clusters there are, of any run. Raises CloudError."""
        ...


@dataclass(kw_only=True, slots=True)
class _Cluster:
    """A cluster of this process. ``wanted``: its nodes that nobody has released yet."""

    order: ClusterOrder
    wanted: set[str]
    launching: asyncio.Task[None] | None = None
    ending: asyncio.Task[tuple[Released, ...]] | None = None


@dataclass(kw_only=True)
class ClusterProvisioner:
    """Implements sailor.cluster.provisioner.Provisioner. Needs a running event loop.

    ``folder`` is the run's. At most ``nodes_per_cluster`` machines are rented as one, and
    ``launches_in_flight`` clusters asked for at once: SkyPilot's server falls over its own feet
    when many are. A launch that takes over ``launch_s``, or an end over ``down_s``, is given up.
    ``sleep`` waits; tests give one that does not.
    """

    folder: Path
    launcher: Launcher
    nodes_per_cluster: int = 4
    launches_in_flight: int = 3
    launch_s: float = 1800.0
    down_s: float = 600.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _clusters: dict[str, _Cluster] = field(default_factory=dict, init=False)
    _of_node: dict[str, _Cluster] = field(default_factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._book = OrderBook(self.folder)
        self._gate = asyncio.Semaphore(self.launches_in_flight)
        self._news: asyncio.Queue[News | None] = asyncio.Queue()

    async def request(self, *requests: NodeRequest) -> None:
        """Write the orders down and begin to launch them. A second request does nothing.

        Raises CloudError for machines the launcher can never give.
        """
        fresh = [request for request in requests if request.node not in self._of_node]
        if fresh and self._closed:
            raise CloudError(f"{fresh[0].node} comes too late: the run ends", code="E405")
        infra = {request.node: self.launcher.check(request) for request in fresh}
        for group in _alike(fresh, most=self.nodes_per_cluster):
            first = group[0]
            order = ClusterOrder(
                cluster=self._book.next_name(),
                nodes=tuple(request.node for request in group),
                zone=first.zone,
                machine_type=first.machine_type,
                spot=first.spot,
                infra=infra[first.node],
            )
            self._book.wish(order)
            cluster = _Cluster(order=order, wanted=set(order.nodes))
            self._clusters[order.cluster] = cluster
            for node in order.nodes:
                self._of_node[node] = cluster
            cluster.launching = asyncio.create_task(self._launch(cluster))

    def adopt(self, *nodes: str) -> tuple[str, ...]:
        """Take over clusters of an earlier process that ran when it ended, by any of their nodes.

        Whether they run still their agents will tell: asking a cloud takes longer than that.
        """
        taken = []
        for order in self._book.remaining():
            wanted = set(order.nodes) & set(nodes)
            if not wanted or order.cluster in self._clusters:
                continue
            cluster = _Cluster(order=order, wanted=wanted)
            self._clusters[order.cluster] = cluster
            self._of_node.update(dict.fromkeys(order.nodes, cluster))
            taken += sorted(wanted)
        return tuple(taken)

    async def release(self, node: str) -> Released:
        """Give a machine back. One of several in a cluster stays rented until all are given back,
        and says so; its end comes as news."""
        cluster = self._of_node.get(node)
        if cluster is None:
            return Released(node=node, released=True, proof="never asked for here")
        cluster.wanted.discard(node)
        if cluster.wanted and cluster.ending is None:
            others = ", ".join(sorted(cluster.wanted))
            proof = f"rented in one with {others}: {cluster.order.cluster} goes when they do"
            return Released(node=node, released=False, proof=proof)
        first_to_end = cluster.ending is None
        proofs = await asyncio.shield(self._end(cluster))
        if first_to_end:
            for other in proofs:
                if other.node != node:
                    self._news.put_nowait(other)
        return next(proof for proof in proofs if proof.node == node)

    def clusters_of(self, nodes: Collection[str]) -> frozenset[str]:
        """The clusters that these nodes are rented as."""
        return frozenset(self._of_node[n].order.cluster for n in nodes if n in self._of_node)

    async def notices(self) -> AsyncIterator[News]:
        """Machines that run, orders that were refused, siblings that went; until ``close``."""
        while (news := await self._news.get()) is not None:
            yield news

    async def close(self) -> tuple[Released, ...]:
        """End every cluster of the run: this process's, an earlier one's, and any of its name."""
        self._closed = True
        own = await asyncio.gather(*(self._end(cluster) for cluster in self._clusters.values()))
        self._news.put_nowait(None)
        left = await end_leftovers(
            self.folder, launcher=self.launcher, besides=self._clusters, down_s=self.down_s,
            sleep=self.sleep,
        )  # fmt: skip
        return (*(proof for proofs in own for proof in proofs), *left)

    async def _launch(self, cluster: _Cluster) -> None:
        """One launch, from its turn to its news."""
        order = cluster.order
        async with self._gate:
            try:
                async with asyncio.timeout(self.launch_s):
                    await self.launcher.launch(order)
            except LaunchRefused as error:
                refusal = error
            except TimeoutError:
                refusal = _too_slow(order, self.launch_s)
            except Exception as error:  # what a cloud's library throws is no reason to end the run
                log.exception("launching %s", order.cluster)
                refusal = _unforeseen(order, error)
            else:
                self._book.up(order.cluster)
                for node in order.nodes:
                    self._news.put_nowait(Started(node=node))
                return
        cluster.launching = None  # from here on an end need not cancel it
        await asyncio.shield(self._end(cluster))
        for node in order.nodes:
            self._of_node.pop(node, None)  # the name may be asked for again
            self._news.put_nowait(
                Refused(
                    node=node,
                    error=refusal.error,
                    retry_s=refusal.retry_s,
                    lasting=refusal.lasting,
                )
            )

    def _end(self, cluster: _Cluster) -> asyncio.Task[tuple[Released, ...]]:
        if cluster.ending is None:
            cluster.ending = asyncio.create_task(self._end_once(cluster))
        return cluster.ending

    async def _end_once(self, cluster: _Cluster) -> tuple[Released, ...]:
        if cluster.launching is not None:
            cluster.launching.cancel()
            await asyncio.gather(cluster.launching, return_exceptions=True)
        return await _end_cluster(
            cluster.order, book=self._book, launcher=self.launcher, down_s=self.down_s,
            sleep=self.sleep,
        )  # fmt: skip


async def end_leftovers(
    folder: Path,
    *,
    launcher: Launcher,
    besides: Collection[str] = (),
    down_s: float = 600.0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[Released, ...]:
    """End the clusters of a run, ``besides`` those that the caller looks after.

    Those on the written list, and those that carry the run's name and are on no list: that takes a
    torn file, but a machine that costs money is worth the look. A run that never rented anything
    does not wake SkyPilot. Does not raise: what could not be ended is in the answer.
    """
    book = OrderBook(folder)
    if not book.path.exists():
        return ()
    orders = [order for order in book.remaining() if order.cluster not in besides]
    try:
        known = {*besides, *(order.cluster for order in orders)}
        for name in await launcher.living():
            if book.owns(name) and name not in known:
                orders.append(_found(name))
    except CloudError as error:
        if orders:
            log.warning("cannot ask which clusters live: %s", error.what)
    endings = await asyncio.gather(
        *(
            _end_cluster(order, book=book, launcher=launcher, down_s=down_s, sleep=sleep)
            for order in orders
        )
    )
    return tuple(proof for proofs in endings for proof in proofs)


async def _end_cluster(
    order: ClusterOrder,
    *,
    book: OrderBook,
    launcher: Launcher,
    down_s: float,
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[Released, ...]:
    """End one cluster, trying again when the cloud does not answer; one proof a node."""
    why = ""
    for pause in (0.0, *_DOWN_PAUSES_S):
        if pause:
            await sleep(pause)
        try:
            async with asyncio.timeout(down_s):
                proof = await launcher.down(order.cluster)
        except CloudError as error:
            why = error.what
        except TimeoutError:
            why = f"no answer for {down_s:.0f} s"
        else:
            book.gone(order.cluster, proof=proof)
            return tuple(Released(node=node, released=True, proof=proof) for node in order.nodes)
        log.warning("%s is not proven gone: %s", order.cluster, why)
    proof = f"cluster {order.cluster} may still be rented: {why}"
    return tuple(Released(node=node, released=False, proof=proof) for node in order.nodes)


def _alike(requests: Iterable[NodeRequest], *, most: int) -> list[list[NodeRequest]]:
    """Requests that can be rented as one, in groups of at most ``most``, in order."""
    groups: dict[tuple[str, str, bool], list[NodeRequest]] = {}
    for request in requests:
        groups.setdefault((request.zone, request.machine_type, request.spot), []).append(request)
    return [
        group[begin : begin + most]
        for group in groups.values()
        for begin in range(0, len(group), most)
    ]


def _found(cluster: str) -> ClusterOrder:
    """A cluster of ours that is on no list: its name stands for its nodes."""
    return ClusterOrder(cluster=cluster, nodes=(cluster,), zone="", machine_type="", spot=False)


def _too_slow(order: ClusterOrder, launch_s: float) -> LaunchRefused:
    return LaunchRefused(
        CloudError(
            f"{order.machine_type} in {order.zone} did not come up in {launch_s / 60:.0f} min",
            code="E405",
            why="the launch was given up and whatever it had rented given back",
        )
    )


def _unforeseen(order: ClusterOrder, error: Exception) -> LaunchRefused:
    return LaunchRefused(
        CloudError(
            f"{order.machine_type} in {order.zone} could not be launched",
            code="E405",
            why=f"{type(error).__name__}: {error}",
        )
    )
