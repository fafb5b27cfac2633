"""Google's Compute API on 127.0.0.1, as far as provision/gcp.py asks: right, refusing, or broken.

``trouble`` maps a part of a path to (status, body), which is then the answer to everything there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


def refusal(status: int, reason: str, message: str) -> tuple[int, str]:
    """An error as the API writes it."""
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return status, json.dumps({"error": error})


@dataclass(kw_only=True)
class ComputeApi:
    """``machines``: zone -> machine types. ``quotas``: metric -> (limit, usage). ``preempted``:
    (zone, machine type) -> (end of an interval, share of stops that were preemptions)."""

    machines: dict[str, list[str]] = field(default_factory=dict)
    quotas: dict[str, tuple[float, float]] = field(default_factory=dict)
    obtainability: dict[str, float] = field(default_factory=dict)
    preempted: dict[tuple[str, str], list[tuple[str, float]]] = field(default_factory=dict)
    trouble: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def answer(self, path: str, body: dict) -> tuple[int, str]:
        self.asked.append(path)
        for part, answer in self.trouble.items():
            if part in path:
                return answer
        if path.endswith("/aggregated/machineTypes"):
            items = {
                f"zones/{zone}": {"machineTypes": [{"name": name} for name in names]}
                for zone, names in self.machines.items()
            }
            return 200, json.dumps({"items": items})
        if path.endswith("/advice/capacity"):
            (selection,) = body["instanceFlexibilityPolicy"]["instanceSelections"].values()
            assert body["instanceProperties"]["scheduling"]["provisioningModel"] == "SPOT"
            share = self.obtainability.get(selection["machineTypes"][0])
            scores = [] if share is None else [{"scores": {"obtainability": share}}]
            return 200, json.dumps({"recommendations": scores})
        if path.endswith("/advice/capacityHistory"):
            assert body["types"] == ["PREEMPTION"]
            asked = body["instanceProperties"]
            zone = body["locationPolicy"]["location"].removeprefix("zones/")
            records = self.preempted.get((zone, asked["machineType"]), [])
            history = [
                {"interval": {"endTime": end}, "preemptionRate": share} for end, share in records
            ]
            return 200, json.dumps({"preemptionHistory": history})
        if "/regions/" in path:
            quotas = [
                {"metric": metric, "limit": limit, "usage": usage}
                for metric, (limit, usage) in self.quotas.items()
            ]
            return 200, json.dumps({"name": path.rpartition("/")[2], "quotas": quotas})
        return refusal(404, "notFound", f"no {path}")


@contextmanager
def serving(api: ComputeApi) -> Iterator[ComputeApi]:
    """The API at ``api.endpoint`` while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer(json.loads(self.rfile.read(length)))

        def _answer(self, body: dict) -> None:
            status, text = api.answer(self.path.partition("?")[0], body)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    api.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
