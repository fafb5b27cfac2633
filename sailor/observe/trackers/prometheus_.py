"""A Prometheus text endpoint on loopback, for as long as the run goes on.

A scraper shows the token in ``trackers/prometheus.token`` (``authorization: credentials_file``), as
other people may have accounts on this computer. ``trackers/prometheus.url`` says where it listens.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from sailor.observe.trackers.points import Point
from sailor.observe.trackers.tracker import Place

HOST = "127.0.0.1"
_SERVER_ENDS_S = 5.0


class PrometheusTracker:
    """One gauge per series: what was told last."""

    def __init__(self, place: Place) -> None:
        self._run = place.run
        self._gauges: dict[str, Gauge] = {}
        self._registry = CollectorRegistry()
        self._step = Gauge("sailor_step", "newest step", ("run",), registry=self._registry)
        folder = place.folder / "trackers"
        folder.mkdir(parents=True, exist_ok=True)
        token = secrets.token_urlsafe(32)
        _write_private(folder / "prometheus.token", token)
        self._server = make_server(
            HOST, place.prometheus_port, _only_with(token, make_wsgi_app(self._registry)),
            server_class=_Server, handler_class=_Quiet,
        )  # fmt: skip
        self._url = folder / "prometheus.url"
        self._url.write_text(f"http://{HOST}:{self._server.server_port}/metrics\n")
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="prometheus", daemon=True
        )
        self._thread.start()

    def point(self, point: Point) -> None:
        """Set the gauges."""
        self._step.labels(run=self._run).set(point.step)
        for series, value in point.values.items():
            gauge = self._gauges.get(series)
            if gauge is None:
                gauge = self._gauges[series] = Gauge(
                    f"sailor_{series.replace('/', '_')}", series, ("run",), registry=self._registry
                )
            gauge.labels(run=self._run).set(value)

    def rewind(self, step: int, *, wall: float) -> None:
        """Gauges may go down."""
        self._step.labels(run=self._run).set(step)

    def close(self, *, status: str) -> None:
        """Stop listening. The address is no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SERVER_ENDS_S)
        self._url.unlink(missing_ok=True)


def open_tracker(place: Place) -> PrometheusTracker:
    """The tracker of a run. Raises OSError when the port is taken."""
    return PrometheusTracker(place)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10  # s: a connection that says nothing is dropped

    def log_message(self, format: str, *arguments: Any) -> None:
        """Scrapes are not worth a line."""


def _only_with(token: str, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The application for those who show the token; 401 for others."""
    expected = f"Bearer {token}".encode()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        shown = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        if not hmac.compare_digest(shown, expected):
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
            return [b""]
        return app(environ, start_response)

    return guarded


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
