"""Watches a cloud's metadata service, from the machine itself, for word that it will be taken.

One watcher a cloud, all alike: they yield what they see, each thing once, and never end by
themselves. An answer that fails or makes no sense is waited out, ever longer. A notice is best
effort everywhere: a machine that vanishes without one is the heartbeat's business.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sailor.runtime.metadata import Answer, NoAnswer, ask

log = logging.getLogger(__name__)

_ANSWER_S = 5.0
_CHANGE_S = 60.0  # how long Google's service is asked to hold a question
_POLL_S = 5.0  # what AWS advises; Azure's notice is 30 s, so it is asked more often
_AZURE_POLL_S = 1.0
_FIRST_ANSWER_S = 130.0  # Azure's first one may take two minutes: it switches the service on
_BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
_TOKEN_S = 21600
# No answer, or one that is not what the cloud's pages promise.
_TROUBLE = (NoAnswer, ValueError, KeyError, TypeError, AttributeError)
_GCP_SECONDS = 30.0  # between the flag and the end, best effort
_GCP_MAINTENANCE_SECONDS = 3600.0  # GPU machines are told an hour before


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a cloud said. ``seconds`` until the end, None where it only advised to be ready."""

    source: str
    seconds: float | None


Sleep = Callable[[float], Awaitable[None]]


def watch(
    cloud: str,
    *,
    environment: Mapping[str, str] = os.environ,
    sleep: Sleep = asyncio.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[Seen]:
    """The watcher of a cloud: gcp, aws or azure. Raises ValueError for another.

    The environment may name another address, by the variables that the clouds' own tools heed.
    """
    match cloud:
        case "gcp":
            host = environment.get("GCE_METADATA_HOST", "metadata.google.internal")
            return _merged(
                _gcp(f"http://{host}", "preempted", _preempted, sleep),
                _gcp(f"http://{host}", "maintenance-event", _maintenance, sleep),
            )
        case "aws":
            base = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
            return _aws(base.rstrip("/"), sleep, now)
        case "azure":
            base = environment.get("AZURE_METADATA_ENDPOINT", "http://169.254.169.254")
            return _azure(base.rstrip("/"), sleep, now)
    raise ValueError(f"nobody watches for notices of {cloud!r}")


CLOUDS = ("gcp", "aws", "azure")


class _Patience:
    """How long to wait after a failure: longer each time in a row; told once."""

    def __init__(self, who: str, sleep: Sleep) -> None:
        self._who = who
        self._sleep = sleep
        self._failures = 0

    async def failed(self, why: object) -> None:
        level = logging.WARNING if self._failures == 0 else logging.DEBUG
        log.log(level, "%s does not answer, notices may be missed: %s", self._who, why)
        await self._sleep(_BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)])
        self._failures += 1

    def answered(self) -> None:
        self._failures = 0


async def _gcp(
    base: str, what: str, read: Callable[[str], Seen | None], sleep: Sleep
) -> AsyncIterator[Seen]:
    """Google's service answers when the value has changed from the one with the last ETag."""
    patience = _Patience(f"Google's {what}", sleep)
    etag, told = "0", False
    while True:
        query = f"wait_for_change=true&last_etag={etag}&timeout_sec={_CHANGE_S:.0f}"
        try:
            answer = await ask(
                f"{base}/computeMetadata/v1/instance/{what}?{query}",
                headers={"Metadata-Flavor": "Google"},
                deadline_s=_CHANGE_S + _ANSWER_S,
            )
            if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
                raise NoAnswer(f"status {answer.status}")
        except NoAnswer as error:
            await patience.failed(error)
            continue
        patience.answered()
        etag = answer.headers.get("etag", "0")
        seen = read(answer.body.strip())
        if seen is None:
            told = False  # a maintenance that was called off may be called again
        elif not told:
            told = True
            yield seen


def _preempted(value: str) -> Seen | None:
    return Seen(source="gcp preempted", seconds=_GCP_SECONDS) if value == "TRUE" else None


def _maintenance(value: str) -> Seen | None:
    if value != "TERMINATE_ON_HOST_MAINTENANCE":
        return None
    return Seen(source="gcp maintenance", seconds=_GCP_MAINTENANCE_SECONDS)


async def _aws(base: str, sleep: Sleep, now: Callable[[], datetime]) -> AsyncIterator[Seen]:
    """404 until there is something to say. A token opens the questions, and wears out."""
    patience = _Patience("AWS", sleep)
    token = ""
    told: set[str] = set()
    while True:
        try:
            if not token:
                token = await _aws_token(base)
            for path, read in (
                ("spot/instance-action", _spot_action),
                ("events/recommendations/rebalance", _rebalance),
            ):
                answer = await ask(
                    f"{base}/latest/meta-data/{path}",
                    headers={"X-aws-ec2-metadata-token": token},
                    deadline_s=_ANSWER_S,
                )
                if answer.status == 401:
                    token = ""
                    break
                if answer.status == 200 and answer.body not in told:
                    seen = read(answer.body, now())
                    told.add(answer.body)
                    yield seen
                elif answer.status not in (200, 404):
                    raise NoAnswer(f"status {answer.status}")
        except _TROUBLE as error:
            await patience.failed(error)
            continue
        patience.answered()
        if token:
            await sleep(_POLL_S)


async def _aws_token(base: str) -> str:
    answer = await ask(
        f"{base}/latest/api/token",
        method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)},
        deadline_s=_ANSWER_S,
    )
    if answer.status != 200 or not answer.body.strip():
        raise NoAnswer(f"no token: status {answer.status}")
    return answer.body.strip()


def _spot_action(body: str, now: datetime) -> Seen:
    document = json.loads(body)
    end = datetime.fromisoformat(str(document["time"]))
    return Seen(source=f"aws {document['action']}", seconds=max(0.0, (end - now).total_seconds()))


def _rebalance(body: str, now: datetime) -> Seen:
    json.loads(body)["noticeTime"]
    return Seen(source="aws rebalance recommendation", seconds=None)


async def _azure(base: str, sleep: Sleep, now: Callable[[], datetime]) -> AsyncIterator[Seen]:
    """The document lists events of all machines of a scale set: ours are those with our name."""
    patience = _Patience("Azure", sleep)
    deadline_s, name = _FIRST_ANSWER_S, ""
    told: set[str] = set()
    while True:
        try:
            if not name:
                name = (await _azure_ask(base, "instance/compute/name", deadline_s)).body.strip()
            answer = await _azure_ask(base, "scheduledevents", deadline_s)
            events = json.loads(answer.body)["Events"]
            deadline_s = _ANSWER_S
            for event in events:
                mine = name in event.get("Resources", ())
                if mine and event["EventType"] == "Preempt" and event["EventId"] not in told:
                    told.add(event["EventId"])
                    yield Seen(source="azure preempt", seconds=_seconds_until(event, now()))
        except _TROUBLE as error:
            await patience.failed(error)
            continue
        patience.answered()
        await sleep(_AZURE_POLL_S)


async def _azure_ask(base: str, what: str, deadline_s: float) -> Answer:
    query = {"scheduledevents": "api-version=2020-07-01"}.get(
        what, "api-version=2021-02-01&format=text"
    )
    answer = await ask(
        f"{base}/metadata/{what}?{query}", headers={"Metadata": "true"}, deadline_s=deadline_s
    )
    if answer.status != 200:
        raise NoAnswer(f"status {answer.status}")
    return answer


def _seconds_until(event: Mapping[str, object], now: datetime) -> float:
    """NotBefore is empty once an event has begun."""
    text = str(event.get("NotBefore") or "")
    if not text:
        return 0.0
    return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())


async def _merged(*streams: AsyncIterator[Seen]) -> AsyncIterator[Seen]:
    queue: asyncio.Queue[Seen] = asyncio.Queue()

    async def pass_on(stream: AsyncIterator[Seen]) -> None:
        async for seen in stream:
            queue.put_nowait(seen)

    tasks = [asyncio.ensure_future(pass_on(stream)) for stream in streams]
    try:
        while True:
            yield await queue.get()
    finally:
        for task in tasks:
            task.cancel()
