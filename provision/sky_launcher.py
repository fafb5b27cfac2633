"""Clusters through SkyPilot: what a launch is made of, and the talk with SkyPilot's process.

Implements provision.clusters.Launcher. Every cluster is pinned to a zone, a machine type and spot
or not; SkyPilot is not asked to choose. The run's keys travel as files that only their owner can
read: SkyPilot's own secrets end up in the arguments of processes (on Slurm for as long as the job
runs), files do not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from provision.orders import PREFIX, ClusterOrder
from provision.payload import Payload
from provision.placement import INFRAS, Placement
from provision.refusals import judge
from sailor.addresses import joined
from sailor.cluster.provisioner import NodeRequest
from sailor.errors import CloudError

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "provision.skypilot")
_ROOT = Path(__file__).resolve().parents[1]
PLACE_THERE = "~/.sailor"  # on the machines
_ANSWER_S = 300.0  # for questions that are not launches: SkyPilot's server may have to start first


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentOrder:
    """What the agents of a run are told, besides their node's own names.

    ``controller`` is the address they dial, ``identity`` the folder with the run's keys here,
    ``slots`` the workers of each machine type. ``python`` is an interpreter on the machines that
    has Sailor's requirements; empty installs them. ``mounts`` are further files: remote -> local.
    """

    controller: tuple[str, int]
    identity: Path
    slots: Mapping[str, int]
    python: str = ""
    mounts: Mapping[str, Path] = field(default_factory=dict)


class SkyProcess:
    """The process that has SkyPilot in it, started at the first question, and again if it died."""

    def __init__(self, *, log_path: Path, command: Sequence[str] = COMMAND) -> None:
        self._log_path = log_path
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        self._starting = asyncio.Lock()

    async def ask(self, do: str, **arguments: Any) -> Any:
        """Result of a command. Raises SkyFailed with the facts when SkyPilot raised, or died."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._count += 1
        number = self._count
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            command = json.dumps({"id": number, "do": do, "with": arguments})
            process.stdin.write(command.encode() + b"\n")
            with suppress(ConnectionError):  # its end answers everybody
                await process.stdin.drain()
            document = await answer
        finally:
            self._waiting.pop(number, None)
        if "error" in document:
            raise SkyFailed(document["error"])
        return document["result"]

    async def close(self) -> None:
        """End the process. SkyPilot's server, which it may have started, goes on: it is the user's,
        and other runs may need it."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()  # it holds nothing
        await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def _start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                cwd=_ROOT,
                limit=16 << 20,
                start_new_session=True,  # Ctrl-C is for the controller to understand
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            document = json.loads(line)
            answer = self._waiting.get(document["id"])
            if answer is not None and not answer.done():
                answer.set_result(document)
        code = await process.wait()
        died = {"kind": "Died", "text": f"SkyPilot's process ended with {code}", "history": []}
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result({"error": died})


class SkyFailed(Exception):
    """SkyPilot raised. ``facts`` are those of provision.skypilot.facts."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(f"{facts['kind']}: {facts['text']}")
        self.facts = facts


@dataclass(kw_only=True)
class SkyLauncher:
    """Implements Launcher. ``place`` says how a machine is asked for; raises CloudError E404.

    ``agent`` None is for ending clusters only. An idle cluster ends itself after ``idle_minutes``
    where the cloud can: the last guard against a machine that everybody forgot.
    """

    cloud: str
    run: str
    sky: SkyProcess
    place: Callable[[NodeRequest], Placement] | None = None
    agent: AgentOrder | None = None
    payload: Payload | None = None
    idle_minutes: int = 15

    def check(self, request: NodeRequest) -> str:
        """SkyPilot's name of the place. Raises CloudError E404."""
        return self._placement(request).infra

    async def launch(self, order: ClusterOrder) -> None:
        """Rent the cluster, install, start its agents. Raises LaunchRefused."""
        try:
            await self.sky.ask("launch", **self.arguments(order))
        except SkyFailed as error:
            raise judge(
                error.facts, cloud=self.cloud, machine=order.machine_type, zone=order.zone
            ) from error

    async def down(self, cluster: str) -> str:
        """End a cluster and its launches. Raises CloudError E405 when SkyPilot could not."""
        return str(await self._ask("down", f"{cluster} could not be ended", cluster=cluster))

    async def living(self) -> Sequence[str]:
        """Clusters of ours, of any run, that SkyPilot lists. Raises CloudError E405."""
        names = await self._ask("living", "SkyPilot does not say what it has rented")
        return [name for name in names if name.startswith(PREFIX)]

    async def enabled(self) -> Sequence[str]:
        """Clouds that SkyPilot may use. Raises CloudError E405."""
        return list(await self._ask("enabled", "SkyPilot does not say which clouds it may use"))

    def arguments(self, order: ClusterOrder) -> dict[str, Any]:
        """Everything SkyPilot is told about a cluster. Nothing in it is secret."""
        assert self.agent is not None
        assert self.payload is not None
        infra = INFRAS[self.cloud]
        first = NodeRequest(
            node=order.nodes[0], zone=order.zone, machine_type=order.machine_type, spot=order.spot
        )
        script = f"bash {PLACE_THERE}/payload/bootstrap.sh"
        return {
            "cluster": order.cluster,
            "num_nodes": len(order.nodes),
            "placement": asdict(self._placement(first)),
            "setup": f"{script} install",
            "run": f"{script} agent",
            "envs": {
                "SAILOR_DIGEST": self.payload.digest,
                "SAILOR_NODES": " ".join(order.nodes),
                "SAILOR_ZONE": order.zone,
                "SAILOR_MACHINE_TYPE": order.machine_type,
                "SAILOR_SLOTS": str(self.agent.slots[order.machine_type]),
                "SAILOR_CONTROLLER": joined(*self.agent.controller),
                "SAILOR_PYTHON": self.agent.python,
                "SAILOR_NOTICES": self.cloud if infra.gives_notice else "",
            },
            "mounts": {
                f"{PLACE_THERE}/payload": str(self.payload.folder),
                f"{PLACE_THERE}/identity": str(self.agent.identity.absolute()),
                **{remote: str(local) for remote, local in self.agent.mounts.items()},
            },
            "labels": {"sailor-run": label(self.run)} if infra.has_labels else None,
            "idle_minutes": self.idle_minutes if infra.ends_idle else None,
        }

    def _placement(self, request: NodeRequest) -> Placement:
        assert self.place is not None
        return self.place(request)

    async def _ask(self, do: str, what: str, **arguments: Any) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self.sky.ask(do, **arguments)
        except SkyFailed as error:
            raise CloudError(what, code="E405", why=str(error)[:500]) from error
        except TimeoutError as error:
            raise CloudError(what, code="E405", why=f"no answer for {_ANSWER_S:.0f} s") from error


def label(run: str) -> str:
    """A run's name as a label: what GCP, the strictest, allows."""
    return "".join(c if c.isalnum() else "-" for c in run.lower())[:60]
