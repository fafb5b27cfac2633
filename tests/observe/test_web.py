"""The page of a run: who gets it, what it is sent, and that nobody who looks can hold up a run."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sailor.observe.events import Event
from sailor.observe.tail import Tail
from sailor.observe.web import server
from sailor.observe.web.facts import Story, facts
from sailor.observe.web.server import MOST_STREAMS, RunPage, serve
from tests.observe.run_story import Story as Told
from tests.observe.run_story import demo

PATIENCE_S = 60.0  # on a computer under load; nothing asserted depends on it


def write(folder: Path, events: list[Event]) -> None:
    """Append to the folder's log, as the run does."""
    with (folder / "events.jsonl").open("ab") as file:
        for event in events:
            file.write(event.to_json() + b"\n")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[RunPage]:
    with serve(tmp_path) as served:
        yield served


def get(
    page: RunPage, path: str, *, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE_S)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def documents(page: RunPage) -> Iterator[dict]:
    """What a browser is sent, document by document, until the page says that it was the last."""
    with get(page, f"/{page.token}/stream") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        while line := answer.readline():
            if line == b"event: end\n":
                return
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def drawn(story: Told, *, now: float | None = None, alive: bool = True) -> dict:
    told = Story()
    for event in story.events:
        told.apply(event)
    return facts(told, now=told.history.now if now is None else now, alive=alive)


def test_a_wrong_token_is_refused_and_told_nothing(page: RunPage) -> None:
    for path in (
        "/",
        "/stream",
        "/wrong/",
        "/wrong/stream",
        f"/{page.token[:-1]}/",
        f"/{page.token}",
    ):
        with get(page, path) as answer:
            body = answer.read()
            assert answer.status == 403, path
        assert page.token.encode() not in body


def test_another_name_than_the_loopbacks_is_refused(page: RunPage) -> None:
    """A site that has its own name point at 127.0.0.1 must not read the page."""
    with get(page, f"/{page.token}/", Host=f"evil.example:{page.port}") as answer:
        assert answer.status == 403


def test_it_listens_on_the_loopback_and_only_reads(page: RunPage) -> None:
    assert page.address.startswith(f"http://127.0.0.1:{page.port}/")
    for method in ("POST", "PUT", "DELETE"):
        with get(page, f"/{page.token}/", method=method) as answer:
            assert answer.status == 501
    with get(page, f"/{page.token}/../../events.jsonl") as answer:
        assert answer.status == 404


def test_two_pages_have_different_tokens_and_ports(tmp_path: Path) -> None:
    with serve(tmp_path) as one, serve(tmp_path) as other:
        assert len({one.token, other.token}) == 2
        assert one.port != other.port
        assert len(one.token) >= 32  # 24 random bytes


def test_the_page_and_its_files_ask_for_nothing_from_elsewhere(page: RunPage) -> None:
    for name in ("", "page.css", "page.js"):
        with get(page, f"/{page.token}/{name}") as answer:
            text = answer.read().decode()
            policy = answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        outside = re.findall(r"https?://[^\s\"']+|url\(|@import|//cdn", text)
        assert set(outside) <= {"http://www.w3.org/2000/svg"}, name  # a name, not an address
        assert "innerHTML" not in text


def test_a_late_open_gets_the_past_and_then_what_comes(tmp_path: Path, page: RunPage) -> None:
    events = demo().events
    write(tmp_path, events[:40])
    sent = documents(page)
    first = next(sent)
    assert first["run"] == "swift-otter"
    assert first["step"] > 0
    write(tmp_path, events[40:])
    while (document := next(sent))["status"] == "running":
        pass
    assert document["status"] == "done"
    assert document["step"] == 20
    assert [one["layout"] for one in document["layouts"]] == [
        "pp1 x dp4 x tp1", "pp1 x dp3 x tp1", "pp1 x dp2 x tp1", "pp1 x dp3 x tp1",
    ]  # fmt: skip


def test_an_open_page_ends_with_the_last_word(tmp_path: Path) -> None:
    """What is written just before a run's process closes its page is still seen."""
    events = demo().events
    write(tmp_path, events[:-1])
    page = serve(tmp_path)
    sent = documents(page)
    assert next(sent)["status"] == "running"
    write(tmp_path, events[-1:])
    closing = threading.Thread(target=page.close)
    closing.start()
    assert list(sent)[-1]["status"] == "done"
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    with socket.socket() as probe, pytest.raises(OSError, match="refused"):
        probe.connect(("127.0.0.1", page.port))


def test_who_does_not_read_is_dropped_and_holds_up_nobody(tmp_path: Path) -> None:
    events = demo().events
    write(tmp_path, events[:40])
    with serve(tmp_path, slow_s=0.5) as page, socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stuck.connect(("127.0.0.1", page.port))
        request = f"GET /{page.token}/stream HTTP/1.0\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
        stuck.sendall(request.encode())
        long = Told()  # documents too large for what the kernel keeps for a client
        long.start().nodes(*(f"node-{i}-{'x' * 200}" for i in range(200)))
        both = False
        for document in documents(page):  # another client, which reads
            assert document["num_nodes"] >= 4
            both |= page.num_streams == 2
            if both and page.num_streams == 1:
                break  # the stuck one is gone, and this one reads on
            write(tmp_path, long.events)


def test_too_many_pages_are_refused(tmp_path: Path, page: RunPage) -> None:
    write(tmp_path, demo().events)
    open_ones = [documents(page) for _ in range(MOST_STREAMS)]
    for one in open_ones:
        next(one)
    with get(page, f"/{page.token}/stream") as answer:
        assert answer.status == 503
    for one in open_ones:
        one.close()


def test_nothing_is_read_while_nobody_looks(tmp_path: Path, page: RunPage) -> None:
    write(tmp_path, demo().events)
    time.sleep(0.6)  # more than two looks of the thread, were it to look
    assert page.version == 0
    next(documents(page))
    assert page.version >= 1


def test_the_port_that_is_asked_for_is_taken_and_given_back(tmp_path: Path) -> None:
    with serve(tmp_path) as page:
        port = page.port
        with pytest.raises(OSError, match="in use"):
            serve(tmp_path, port=port)
    with serve(tmp_path, port=port) as again:
        assert again.port == port


def test_the_document_says_what_the_live_view_says() -> None:
    document = drawn(demo())
    tiles = dict(document["tiles"])
    assert tiles["loss"] == "4.000"
    assert tiles["held-out"] == "4.200"
    assert tiles["goodput"] == "71.7%"
    assert tiles["MFU"] == "n/a"
    assert document["durable"]["step"] == 20
    assert sum(part["share"] for part in document["time"]) == pytest.approx(1.0)
    assert [[seat[0] for seat in one["seats"]] for one in document["layouts"]][-1] == [
        "node-1/0.1", "node-4/0.1", "node-5/0.1",
    ]  # fmt: skip
    nodes = {one["node"]: one for one in document["nodes"]}
    assert nodes["node-3"]["state"] == "lost"
    assert "! node-3 lost without notice" in " ".join(f"{s} {w}" for _, s, w in document["lines"])
    json.dumps(document)  # plain values


def test_money_is_shown_against_its_budget() -> None:
    story = Told().start(budget_usd=12.5).nodes("node-1", price_per_hour=3600.0)
    story.generation(1, "node-1").steps(1, 4, generation=1)
    assert dict(drawn(story)["tiles"])["spent"] == "$5.00 of $12.5"


def test_a_run_that_is_nobodys_and_never_ended_was_killed() -> None:
    story = Told().start().nodes("node-1").generation(1, "node-1").steps(1, 4, generation=1)
    assert drawn(story)["status"] == "running"
    document = drawn(story, alive=False)
    assert document["status"] == "killed"
    assert not document["moving"]


def test_before_anything_has_happened_there_is_a_page_too() -> None:
    document = drawn(Told())
    assert document["step"] == 0
    assert document["layouts"] == []


def test_a_long_run_is_sent_in_few_words() -> None:
    story = Told().start(total_steps=4000)
    story.nodes(*(f"node-{i}" for i in range(500)))
    for i in range(200):
        story.generation(i + 1, "node-1", "node-2", step=i * 20)
        story.steps(i * 20 + 1, i * 20 + 20, generation=i + 1)
        story.pause(i + 1, "node-2 lost: x", planned=False)
    assert len(json.dumps(drawn(story))) < 200_000


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    line = demo().events[0].to_json()
    tail = Tail(tmp_path / "events.jsonl")
    assert tail.read() == []
    (tmp_path / "events.jsonl").write_bytes(line[:20])
    assert tail.read() == []
    (tmp_path / "events.jsonl").write_bytes(line + b"\nnot an event\n" + line + b"\n" + line[:9])
    assert [event.kind for event in tail.read()] == ["run_started", "run_started"]
    assert tail.read() == []


def test_every_style_the_server_sends_is_in_the_page() -> None:
    css = (Path(server.__file__).parent / "page.css").read_text()
    for part in drawn(demo())["time"]:
        assert f".{part['style']} " in css


def test_what_is_left_is_told_with_its_odds() -> None:
    """Ten seconds of steps, as even as they come; nothing was in their way so far."""
    story = Told().start().nodes("node-1").generation(1, "node-1").steps(1, 10, generation=1)
    assert drawn(story)["doing"] == "about 10.0 s left, nine chances in ten 10.0 s"
