"""A run as a page in the browser: ``serve(run_folder)``, for this computer and who has its address.

Loopback only, a port of its own and a token in the address; no file but three of this folder and
the stream of documents from ``feed``. Written on the standard library's http.server: there is one
page, one reader and one kind of answer, and a web framework would bring an event loop and a dozen
packages into the process that trains.

What a browser may do with it is in the headers: nothing from elsewhere, no frame around it, no
name of ours but the loopback's own (so that no other site can reach it by renaming itself).
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sailor.observe.web.feed import Feed

log = logging.getLogger(__name__)

MOST_STREAMS = 8  # pages open at once
MOST_CONNECTIONS = 32
SLOW_S = 10.0  # for which a client may keep an answer, or we a question, waiting
_ALIVE_EVERY_S = 5.0  # a line that says nothing, so that a lost client is noticed
_HERE = Path(__file__).parent
_FILES = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RunPage:
    """A page that is being served. ``address`` is all that a browser needs; whoever has it, reads.

    ``close`` sends open pages the run's last word and frees the port. Also a context manager.
    """

    def __init__(self, feed: Feed, *, port: int = 0, slow_s: float = SLOW_S) -> None:
        """Raises OSError when the port cannot be had."""
        self.token = secrets.token_urlsafe(24)
        self._feed = feed
        self._server = _Server(("127.0.0.1", port), feed=feed, token=self.token, slow_s=slow_s)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1},
            name="sailor-web", daemon=True,
        )  # fmt: skip
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    @property
    def num_streams(self) -> int:
        """How many pages are open."""
        return self._server.num_streams

    @property
    def version(self) -> int:
        """How many documents have been made; 0 before anybody looked."""
        return self._feed.version

    def close(self) -> None:
        """Harmless when closed already."""
        self._feed.close()
        self._server.let_streams_end(seconds=2.0)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)

    def __enter__(self) -> RunPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    run_folder: Path | str,
    *,
    port: int = 0,
    is_alive: Callable[[], bool] = lambda: True,
    slow_s: float = SLOW_S,
) -> RunPage:
    """Show a run's folder, of this process or another's, going on or ended, until ``close``.

    ``port`` 0 takes a free one. ``is_alive``: whether any process has the run open; a run that is
    nobody's and has not said how it ended is called killed. A client that keeps an answer waiting
    for ``slow_s`` is dropped. Raises OSError when the port cannot be had.
    """
    feed = Feed(Path(run_folder) / "events.jsonl", is_alive=is_alive)
    try:
        return RunPage(feed, port=port, slow_s=slow_s)
    except OSError:
        feed.close()
        raise


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], *, feed: Feed, token: str, slow_s: float) -> None:
        self.feed = feed
        self.slow_s = slow_s
        self.token = token
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.num_streams = 0
        self.changed = threading.Condition()
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for a connection, while there are not too many of them."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a page's connection ended", exc_info=True)  # browsers close as they like

    def let_streams_end(self, *, seconds: float) -> None:
        """Wait until open pages have had the last document."""
        with self.changed:
            self.changed.wait_for(lambda: self.num_streams == 0, seconds)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "sailor", ""

    def setup(self) -> None:
        """Every wait for the client has an end."""
        super().setup()
        self.connection.settimeout(self.server.slow_s)

    def do_GET(self) -> None:
        """The page, its two files, or the stream."""
        if self.headers.get("Host", "") not in self._own_names():
            self._refuse(HTTPStatus.FORBIDDEN, "This page answers to 127.0.0.1 alone.")
            return
        token, slash, name = self.path.removeprefix("/").partition("?")[0].partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()) or not slash:
            self._refuse(HTTPStatus.FORBIDDEN, "This page needs the address that the run printed.")
        elif name == "stream":
            self._stream()
        elif name in _FILES:
            file, kind = _FILES[name]
            self._answer(HTTPStatus.OK, (_HERE / file).read_bytes(), kind)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here.")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the token, and the terminal belongs to the run."""

    def _own_names(self) -> tuple[str, str]:
        port = self.server.server_address[1]
        return f"127.0.0.1:{port}", f"localhost:{port}"

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(status, f"{why}\n".encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._head(status, kind, length=len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, *, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        """Documents as server-sent events, until the client or the page goes."""
        server = self.server
        if not server.streams.acquire(blocking=False):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages of this run are open.")
            return
        with server.changed:
            server.num_streams += 1
        try:
            # Little is kept for a client that does not read: its next document is the newest.
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            self._head(HTTPStatus.OK, "text/event-stream")
            if self.command != "HEAD":
                with server.feed.watched():
                    self._send_documents(server.feed)
        finally:
            with server.changed:
                server.num_streams -= 1
                server.changed.notify_all()
            server.streams.release()

    def _send_documents(self, feed: Feed) -> None:
        seen = 0
        self.wfile.write(b"retry: 1000\n\n")
        while True:
            ended = feed.ended
            version, document = feed.wait(seen, seconds=_ALIVE_EVERY_S)
            if version > seen:
                seen = version
                self.wfile.write(b"id: %d\ndata: %s\n\n" % (version, document))
            elif ended:
                self.wfile.write(b"event: end\ndata: -\n\n")
                return
            else:
                self.wfile.write(b": still here\n\n")
