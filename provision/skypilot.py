"""SkyPilot's side of the fence: a process of its own that imports it and does what it is told.

    python -m provision.skypilot        one JSON object a line on standard input and output

SkyPilot takes seconds of processor time to import, prints to standard output and waits without a
deadline. A controller that must hear a heartbeat every 0.2 s does not share its interpreter with
that; ``provision/sky_launcher.py`` is the other side. This is the only module that imports sky.

Commands: launch, down, address, living, enabled. What goes wrong is answered as facts (class and
text of the exception, and of each one in SkyPilot's failover history) for
``provision/refusals.py`` to judge.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

_POLL_S = 1.0
# SkyPilot gives a server of its own a minute to start and fails then, though it goes on starting; a
# small machine that is busy has taken five. Whoever asks has a deadline of its own, a launch this.
_SERVER_S = 1200
_OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
_DEPTH = 4  # of a failover history that nests

# Nobody is told what is launched here, and no address is asked whether this is a cloud's machine.
_QUIET = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "AWS_EC2_METADATA_DISABLED": "true"}


class Sky:
    """The commands. Each may be called in a thread of its own."""

    def __init__(self, sky: Any) -> None:
        self._sky = sky  # a module without types: what it gives is checked where it is used
        self._locks: dict[str, threading.Lock] = {}
        self._ended: set[str] = set()
        self._guard = threading.Lock()

    def launch(
        self,
        cluster: str,
        num_nodes: int,
        placement: Mapping[str, Any],
        setup: str,
        run: str,
        envs: Mapping[str, str],
        mounts: Mapping[str, str],
        labels: Mapping[str, str] | None,
        idle_minutes: int | None,
    ) -> None:
        """Launch a cluster and start its job; returns when the job is queued on its machines."""
        resources = self._sky.Resources(
            infra=placement["infra"],
            instance_type=placement.get("instance_type"),
            accelerators=placement.get("accelerators"),
            cpus=placement.get("cpus"),
            memory=placement.get("memory_gib"),
            use_spot=placement["use_spot"] or None,
            labels=labels,
            autostop=None if idle_minutes is None else {"idle_minutes": idle_minutes, "down": True},
        )
        task = self._sky.Task(
            name="sailor-agent", num_nodes=num_nodes, setup=setup, run=run, envs=dict(envs)
        )
        task.set_file_mounts(dict(mounts))
        task.set_resources(resources)
        with self._lock(cluster):  # nobody ends it between our question and the answer's number
            if cluster in self._ended:
                raise RuntimeError(f"{cluster} was given up before it was asked for")
            request = self._sky.launch(task, cluster_name=cluster)
        self._finish(request)

    def down(self, cluster: str) -> str:
        """End a cluster and every launch of it; how that was checked."""
        with self._lock(cluster):
            self._ended.add(cluster)
        active = self._sky.api_status(cluster_name=cluster)
        numbers = [
            request.request_id
            for request in active
            if request.cluster_name == cluster and request.status not in _OVER
        ]
        if numbers:
            self._finish(self._sky.api_cancel(numbers, silent=True))
        with suppress(self._sky.exceptions.ClusterDoesNotExist):
            self._finish(self._sky.down(cluster))
        if cluster in self.living():
            raise RuntimeError(f"SkyPilot still lists {cluster}")
        cancelled = f", {len(numbers)} requests for it cancelled" if numbers else ""
        return f"SkyPilot has ended {cluster} and lists it no more{cancelled}"

    def address(self, cluster: str) -> str:
        """The address of a cluster's first machine, as its other machines see it."""
        none = self._sky.StatusRefreshMode.NONE
        record = self._finish(self._sky.status(cluster_names=[cluster], refresh=none))[0]
        # Only this is taken of the handle: to print one may fail.
        return str(record["handle"].internal_ips()[0])

    def living(self) -> list[str]:
        """Names of all clusters SkyPilot has on its list, as far as it knows."""
        records = self._finish(self._sky.status(refresh=self._sky.StatusRefreshMode.NONE))
        return [str(record["name"]) for record in records]

    def enabled(self) -> list[str]:
        """Clouds SkyPilot may use, in lower case; the answer of its last check."""
        return [str(cloud).lower() for cloud in self._finish(self._sky.client.sdk.enabled_clouds())]

    def _finish(self, request: Any) -> Any:
        """The value of a request, waited for in short steps: the caller's deadline is the end."""
        while True:
            found = self._sky.api_status([request])
            if not found or found[0].status in _OVER:
                return self._sky.get(request)
            time.sleep(_POLL_S)

    def _lock(self, cluster: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(cluster, threading.Lock())


def facts(error: BaseException, *, depth: int = _DEPTH) -> dict[str, Any]:
    """An exception as plain values, its failover history included."""
    history = getattr(error, "failover_history", None) or ()
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "history": [facts(tried, depth=depth - 1) for tried in history] if depth else [],
    }


def serve(commands: TextIO, answers: TextIO, *, load: Callable[[], Any]) -> None:
    """Answer until the input ends. ``load`` imports sky; a failure of it is every answer."""
    writing = threading.Lock()
    loading = threading.Lock()
    loaded: list[Sky] = []

    def sky() -> Sky:
        with loading:
            if not loaded:
                loaded.append(Sky(load()))
            return loaded[0]

    def handle(command: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"id": command["id"]}
        try:
            answer["result"] = getattr(sky(), command["do"])(**command["with"])
        except BaseException as error:  # whatever it is, somebody waits for an answer
            answer["error"] = facts(error)
        with writing, suppress(BrokenPipeError):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    for line in commands:
        # Daemons: when the other side is gone nobody waits for what SkyPilot's server goes on with.
        threading.Thread(target=handle, args=(json.loads(line),), daemon=True).start()


def _load() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    sky = importlib.import_module("sky")
    importlib.import_module("sky.client.sdk")
    server: Any = importlib.import_module("sky.server.common")
    if hasattr(server, "WAIT_APISERVER_START_TIMEOUT_SEC"):
        server.WAIT_APISERVER_START_TIMEOUT_SEC = _SERVER_S
    return sky


def main() -> None:
    """Everything that SkyPilot prints goes to standard error, which is a log file."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers, load=_load)


if __name__ == "__main__":
    main()
