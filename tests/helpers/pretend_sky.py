"""SkyPilot's client library as far as we call it, in memory: shapes of 0.14, no cloud behind it.

Only what provision/skypilot.py touches. The real thing is met in tests/slurm; here one can make it
refuse, hang and remember.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any


class ClusterDoesNotExist(ValueError):
    pass


class RequestCancelled(Exception):
    pass


class ResourcesUnavailableError(Exception):
    def __init__(self, message: str, failover_history: list[Exception] | None = None) -> None:
        super().__init__(message)
        self.failover_history = failover_history or []


@dataclass
class Task:
    name: str
    num_nodes: int
    setup: str
    run: str
    envs: dict[str, str]
    mounts: dict[str, str] = field(default_factory=dict)
    resources: Any = None

    def set_file_mounts(self, mounts: dict[str, str]) -> None:
        self.mounts = mounts

    def set_resources(self, resources: Any) -> None:
        self.resources = resources


@dataclass
class PretendSky:
    """``refuse``: cluster -> what its launch raises. ``hold``: launches end only when it is set."""

    refuse: dict[str, Exception] = field(default_factory=dict)
    hold: threading.Event | None = None
    launched: list[tuple[str, Task]] = field(default_factory=list)
    clusters: set[str] = field(default_factory=set)
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)

    exceptions = SimpleNamespace(
        ClusterDoesNotExist=ClusterDoesNotExist, RequestCancelled=RequestCancelled
    )
    Task = Task

    class StatusRefreshMode(Enum):
        NONE = "NONE"

    @staticmethod
    def Resources(**wanted: Any) -> dict[str, Any]:
        return wanted

    @property
    def client(self) -> Any:
        return SimpleNamespace(
            sdk=SimpleNamespace(enabled_clouds=lambda: self._done("enabled", ["Slurm", "GCP"]))
        )

    def launch(self, task: Task, *, cluster_name: str) -> str:
        self.launched.append((cluster_name, task))
        self.clusters.add(cluster_name)
        return self._request("sky.launch", cluster=cluster_name)

    def down(self, cluster: str) -> str:
        known = cluster in self.clusters
        self.clusters.discard(cluster)
        error = None if known else ClusterDoesNotExist(cluster)
        return self._done("sky.down", None, error=error)

    def status(self, *, refresh: Any, cluster_names: list[str] | None = None) -> str:
        handle = SimpleNamespace(internal_ips=lambda: ["10.0.0.7"])
        names = sorted(self.clusters if cluster_names is None else set(cluster_names))
        return self._done("sky.status", [{"name": name, "handle": handle} for name in names])

    def api_cancel(self, numbers: list[str], *, silent: bool) -> str:
        for number in numbers:
            self.requests[number]["cancelled"] = True
        return self._done("cancel", numbers)

    def api_status(
        self, numbers: list[str] | None = None, *, cluster_name: str | None = None
    ) -> list[Any]:
        return [
            SimpleNamespace(request_id=number, cluster_name=r["cluster"], status=self._state(r))
            for number, r in self.requests.items()
            if (numbers is None or number in numbers)
            and (cluster_name is None or r["cluster"] == cluster_name)
        ]

    def get(self, number: str) -> Any:
        request = self.requests[number]
        if request["cancelled"]:
            raise RequestCancelled(number)
        error = request["error"] or self.refuse.get(request["cluster"])
        if error is not None:
            raise error
        return request["value"]

    def _state(self, request: dict[str, Any]) -> str:
        if request["cancelled"]:
            return "CANCELLED"
        waits = request["name"] == "sky.launch" and self.hold is not None
        if waits and not self.hold.is_set():
            return "RUNNING"
        return "FAILED" if request["cluster"] in self.refuse else "SUCCEEDED"

    def _request(self, name: str, **more: Any) -> str:
        number = f"r{len(self.requests)}"
        request = {"name": name, "cluster": None, "value": None, "error": None, "cancelled": False}
        self.requests[number] = {**request, **more}
        return number

    def _done(self, name: str, value: Any, *, error: Exception | None = None) -> str:
        return self._request(name, value=value, error=error)
