"""A controller's machines: asked for, heard of, given up, released, and the proof written down."""

from __future__ import annotations

from sailor.cluster.provisioner import NodeRequest, Provisioner, Refused, Released, is_anchor
from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime.parts import Parts


class Hiring:
    """One controller's dealings with its Provisioner; ``provisioner`` is set before any."""

    provisioner: Provisioner

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.requests: dict[str, NodeRequest] = {}  # what was asked for, by name

    async def order(self, *requests: NodeRequest) -> None:
        """Ask the provisioner for more machines. Raises CloudError when it refuses one at once."""
        for request in requests:
            self.requests[request.node] = request
            self._parts.events.write(
                "node_requested",
                node=request.node,
                zone=request.zone,
                machine_type=request.machine_type,
                spot=request.spot,
                price_per_hour=request.price_per_hour,
                role="anchor" if is_anchor(request.node) else "",
            )
        await self.provisioner.request(*requests)

    def note_refused(self, news: Refused) -> None:
        """A machine that was asked for does not come."""
        self._parts.events.write(
            "node_refused",
            node=news.node,
            code=news.error.code,
            why=news.error.what,
            detail=news.error.why,
            fix=news.error.fix,
            retry_s=news.retry_s,
            lasting=news.lasting,
        )
        self._parts.anchoring.refused(news)

    def note_released(self, proof: Released) -> None:
        """A machine is gone, or could not be proven to be."""
        self._parts.events.write(
            "node_released", node=proof.node, released=proof.released, proof=proof.proof
        )

    def lose(self, node: str, cause: str, silent_s: float) -> None:
        """A machine has failed, or cannot be relied on: the run goes on without it."""
        parts = self._parts
        self.shut_out(node, cause, silent_s)
        if is_anchor(node):
            parts.anchoring.lost(node)
        else:
            parts.put(h.Lost(at=parts.now(), node=node, cause=cause, silent_s=silent_s))

    def shut_out(self, node: str, cause: str, silent_s: float) -> None:
        """Never let this start of a machine in again, and have the machine released."""
        parts = self._parts
        agent = parts.roster.remove(node)
        parts.roster.fenced[node] = cause
        parts.beside(parts.notebook.left(node))
        if agent is not None and agent.link is not None:
            agent.link.abort()
        parts.events.write("node_lost", node=node, cause=cause, silent_s=silent_s)
        if not is_anchor(node):
            parts.hazard = parts.hazard.lost()
        parts.beside(self._release(node))

    async def dismiss(self, node: str, reason: str) -> None:
        """A machine that is not needed is told so and released."""
        parts = self._parts
        await parts.roster.send(node, m.Shutdown(reason=reason))
        parts.roster.remove(node)
        parts.roster.fenced[node] = reason
        parts.beside(parts.notebook.left(node))
        parts.put(h.Lost(at=parts.now(), node=node, cause="released"))
        parts.beside(self._release(node))

    async def _release(self, node: str) -> None:
        self.note_released(await self.provisioner.release(node))
