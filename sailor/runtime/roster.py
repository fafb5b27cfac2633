"""The agents a controller knows: their links, what they last said, and who has fallen silent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sailor.addresses import numeric
from sailor.parallel.layout import Member, WorkerId
from sailor.runtime.messages import Hello, Holding, Message, WorkerStatus
from sailor.runtime.transport import Link, LinkClosed

QUIET_S = 0.5  # without a heartbeat: time to ask whether the machine is there at all
ASK_EVERY_S = 1.0
ANSWERS_LONGER = 3


@dataclass(kw_only=True)
class AgentRecord:
    """One agent. ``link`` is None while it is disconnected and may still come back."""

    node: str
    pid: int
    member: Member
    slots: int
    address: tuple[str, int]
    link: Link | None
    heard_at: float
    start: str = ""
    reach_s: float | None = None  # to connect to ``address``; None where that cannot be asked
    asked_at: float = 0.0
    parted_at: float | None = None
    statuses: dict[WorkerId, WorkerStatus] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()


class Roster:
    """Agents by node name. A node once fenced never comes back under that name, and a start of an
    agent that an earlier controller has given up never at all.

    ``members``: node -> start, of those that an earlier controller had let in.
    """

    def __init__(
        self, *, members: Mapping[str, str] | None = None, given_up: Collection[str] = ()
    ) -> None:
        self.agents: dict[str, AgentRecord] = {}
        self.fenced: dict[str, str] = {}
        self.members = dict(members or {})
        self._given_up = frozenset(given_up)

    def admit(self, hello: Hello, link: Link, *, now: float) -> str:
        """Take an agent in. Returns why not, or "" and the record is there."""
        if hello.node in self.fenced:
            return f"{hello.node} was given up: {self.fenced[hello.node]}"
        if hello.start in self._given_up:
            return f"this start of {hello.node} was given up by an earlier controller"
        known = self.agents.get(hello.node)
        start = known.start if known is not None else self.members.get(hello.node, hello.start)
        if start != hello.start or (known is not None and known.pid != hello.pid):
            return f"{hello.node} is a member already, with another agent"
        if stranger := self._of_another_family(hello):
            return stranger
        self.members.pop(hello.node, None)
        workers = tuple(sorted(status.worker for status in hello.workers))
        self.agents[hello.node] = AgentRecord(
            node=hello.node,
            pid=hello.pid,
            member=Member(
                node=hello.node,
                zone=hello.zone,
                machine_type=hello.machine_type,
                workers=workers,
            ),
            slots=known.slots if known is not None else len(workers),
            address=(hello.host, hello.port),
            link=link,
            heard_at=now,
            start=hello.start,
            reach_s=known.reach_s if known is not None else None,
            statuses={status.worker: status for status in hello.workers},
            holdings=hello.holdings,
        )
        return ""

    def _of_another_family(self, hello: Hello) -> str:
        """Why a machine could never meet the others in a group: IPv4 does not reach IPv6."""
        for other in self.agents.values():
            theirs, its = numeric(other.address[0]), numeric(hello.host)
            if (
                hello.workers and other.statuses and other.node != hello.node
                and theirs is not None and its is not None and theirs.version != its.version
            ):  # fmt: skip
                return (
                    f"{hello.node} is known by an IPv{its.version} address ({its}), "
                    f"{other.node} by an IPv{theirs.version} one ({theirs}): they would not meet"
                )
        return ""

    def heard(self, node: str, *, now: float) -> None:
        """Any word from an agent is a sign of life."""
        if node in self.agents:
            self.agents[node].heard_at = now

    def parted(self, node: str, link: Link, *, now: float) -> None:
        """A link ended; the agent may reconnect for a moment."""
        agent = self.agents.get(node)
        if agent is not None and agent.link is link:
            agent.link = None
            agent.parted_at = now

    def overdue(
        self, *, now: float, reconnect_s: float, silence_s: float
    ) -> list[tuple[str, str, float]]:
        """(node, cause, seconds silent) of agents to be taken for lost."""
        found = []
        for node, agent in self.agents.items():
            silent_s = now - agent.heard_at
            if agent.link is None and agent.parted_at is not None:
                # Where its port can be asked, that it is dead is known by now: it has longer.
                patience_s = reconnect_s * (1 if agent.reach_s is None else ANSWERS_LONGER)
                if now - agent.parted_at > patience_s:
                    found.append((node, "connection closed", silent_s))
            elif silent_s > silence_s:
                found.append((node, f"silent for {silent_s:.1f} s", silent_s))
        return found

    def to_ask_after(self, *, now: float) -> list[AgentRecord]:
        """Agents that have missed a heartbeat or two and whose port can be asked, each asked at
        most once in ``ASK_EVERY_S``. They count as asked."""
        found = []
        for agent in self.agents.values():
            quiet = agent.link is not None and now - agent.heard_at > QUIET_S
            if quiet and agent.reach_s is not None and now - agent.asked_at > ASK_EVERY_S:
                agent.asked_at = now
                found.append(agent)
        return found

    def remove(self, node: str) -> AgentRecord | None:
        """Forget an agent."""
        self.members.pop(node, None)
        return self.agents.pop(node, None)

    async def send(self, node: str, message: Message) -> bool:
        """Send if the agent is connected; a failure is no error, its silence will tell."""
        agent = self.agents.get(node)
        if agent is None or agent.link is None:
            return False
        try:
            await agent.link.send(message)
        except LinkClosed:
            return False
        return True
