"""A real run shows itself in a browser, from beside its training and from another process."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.helpers.compose import ROOT
from tests.helpers.running import PATIENCE_S, Place

ADDRESS = re.compile(r"^web\s+(http://127\.0\.0\.1:\d+/[\w-]+/)$", re.M)


def address_in(printed: Path, process: subprocess.Popen) -> str:
    """The page's address, once it has been said."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if said := ADDRESS.search(printed.read_text()):
            return said[1]
        assert process.poll() is None, printed.read_text()
        time.sleep(0.05)
    raise AssertionError("no address was said")


def documents(address: str) -> Iterator[dict]:
    """What a browser is sent until the page closes."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE_S)
    connection.request("GET", f"{place.path}stream")
    with connection.getresponse() as answer:
        while line := answer.readline():
            if line == b"event: end\n":
                return
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


@pytest.mark.slow
def test_a_run_is_followed_to_its_end_and_a_client_that_does_not_read_harms_nobody(place: Place):
    arguments = ("cloud.nodes=2", "train.steps=12", "ui.web=true")
    with place.start(*arguments) as running, socket.socket() as stuck:
        page = urlsplit(address := address_in(running.printed, running.process))
        stuck.connect((page.hostname, page.port))
        stuck.sendall(f"GET {page.path}stream HTTP/1.0\r\nHost: {page.netloc}\r\n\r\n".encode())
        seen = list(documents(address))
        ended = running.wait()
    assert ended.code == 0, ended.told()
    assert seen[-1]["status"] == "done"
    assert seen[-1]["step"] == ended.summary["steps"] == 12
    assert {node["node"] for node in seen[-1]["nodes"]} == {"node-1", "node-2"}
    token = page.path.strip("/")
    for path in ended.folder.rglob("*"):  # the address is a key: it is said, and kept nowhere
        assert not path.is_file() or token.encode() not in path.read_bytes(), path

    printed = place.root / f"{running.name}-page.out"
    words = ["action=web", f"run.name={running.name}", f"runs_dir={place.runs}"]
    with printed.open("wb") as out:
        watching = subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), *words],
            cwd=place.root, env=place.environment(), stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        later = documents(address_in(printed, watching))
        assert next(later)["status"] == "done"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()


def test_a_port_that_is_taken_is_said_before_anything_starts(place: Place):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        refused = place.call("train.steps=2", "ui.web=true", f"ui.port={port}")
    assert refused.code == 2, refused.told()
    assert f"error[E602] port {port} of 127.0.0.1 is in use" in refused.err
    assert "ui.port=0   takes a free one" in refused.err
    assert not (refused.folder / "events.jsonl").exists()
