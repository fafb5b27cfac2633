"""The metadata services of three clouds on 127.0.0.1, with their paths, headers and manners.

``MetadataServer`` answers as GCP, AWS and Azure do on a machine of theirs. ``POST /_ctl`` with a
JSON object of attributes changes what it says, from another process too; ``faults`` is a list of
statuses that are answered first, whatever is asked (0: no answer at all).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class MetadataServer:
    """State of one machine. Changes wake those who wait for one."""

    def __init__(self) -> None:
        self.preempted = "FALSE"
        self.maintenance = "NONE"
        self.action: dict[str, str] | None = None
        self.rebalance: dict[str, str] | None = None
        self.name = "machine-1"
        self.events: list[dict[str, Any]] = []
        self.tokens = {"t1"}
        self.next_token = "t1"
        self.faults: list[int] = []
        self.asked: list[str] = []
        self.address = ""
        self._changed = threading.Condition()
        self._etags = {"preempted": 1, "maintenance-event": 1}

    def change(self, **news: Any) -> None:
        """The cloud says something else from now on."""
        with self._changed:
            for name, value in news.items():
                setattr(self, name, value)
                if name in ("preempted", "maintenance"):
                    what = "preempted" if name == "preempted" else "maintenance-event"
                    self._etags[what] += 1
            self._changed.notify_all()

    def google(self, what: str, query: dict[str, list[str]]) -> tuple[str, str]:
        """(value, etag), at once or when it has changed."""
        last = query.get("last_etag", ["0"])[0]
        with self._changed:
            if "wait_for_change" in query:
                timeout = min(float(query["timeout_sec"][0]), 30.0)
                self._changed.wait_for(lambda: str(self._etags[what]) != last, timeout)
            value = self.preempted if what == "preempted" else self.maintenance
            return value, str(self._etags[what])


@contextmanager
def serving() -> Iterator[MetadataServer]:
    """A machine's metadata services at ``address`` (host:port) while the block runs."""
    state = MetadataServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if self.path == "/_ctl":
                state.change(**json.loads(self.rfile.read(length)))
                self._say(200, "ok")

        def _answer(self, method: str) -> None:
            parts = urlsplit(self.path)
            state.asked.append(f"{method} {parts.path}")
            if state.faults:
                status = state.faults.pop(0)
                if status:
                    self._say(status, "trouble")
                else:
                    self.close_connection = True
                return
            query = parse_qs(parts.query)
            if parts.path.startswith("/computeMetadata/v1/instance/"):
                self._google(parts.path.rpartition("/")[2], query)
            elif parts.path.startswith("/latest/"):
                self._amazon(method, parts.path)
            elif parts.path.startswith("/metadata/"):
                self._microsoft(parts.path, query)
            else:
                self._say(404, "not found")

        def _google(self, what: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("Metadata-Flavor") != "Google":
                self._say(403, "missing Metadata-Flavor")
                return
            value, etag = state.google(what, query)
            self._say(200, value, **{"Metadata-Flavor": "Google", "ETag": etag})

        def _amazon(self, method: str, path: str) -> None:
            if method == "PUT":
                state.tokens.add(state.next_token)
                self._say(200, state.next_token)
                return
            if self.headers.get("X-aws-ec2-metadata-token") not in state.tokens:
                self._say(401, "unauthorized")
                return
            said = {
                "/latest/meta-data/spot/instance-action": state.action,
                "/latest/meta-data/events/recommendations/rebalance": state.rebalance,
            }.get(path)
            if said is None:
                self._say(404, "not found")
            else:
                self._say(200, json.dumps(said))

        def _microsoft(self, path: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("Metadata") != "true" or "api-version" not in query:
                self._say(400, "bad request")
            elif path == "/metadata/instance/compute/name":
                self._say(200, state.name)
            else:
                self._say(200, json.dumps({"DocumentIncarnation": 1, "Events": state.events}))

        def _say(self, status: int, text: str, **headers: str) -> None:
            data = text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # who asked did not wait
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.address = f"127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        state.change(preempted=state.preempted, maintenance=state.maintenance)  # let waiters go
        server.shutdown()
        server.server_close()
        thread.join()
