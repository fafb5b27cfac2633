"""Asking after a node that is silent: does its computer answer, does its agent's port?

A kernel completes a connection to a listening port however busy or stopped the process is, and
refuses one to a port nobody listens on. So a connection that is refused tells of a dead agent at
once, one that is made tells of a living machine, and none at all, several times over, of a machine
that is gone or cut off. It says nothing about a port that never could be reached: such a node is
judged by its heartbeats alone.
"""

from __future__ import annotations

import asyncio
import time
from enum import Enum

ATTEMPTS = 4  # a lost packet must not pass for a lost machine
APART_S = 0.04


class Answer(Enum):
    """What a port had to say."""

    open = "open"
    refused = "refused"
    nothing = "nothing"


async def ask(address: tuple[str, int], *, seconds: float) -> Answer:
    """The first answer to several attempts to connect, ``nothing`` after so many seconds."""
    attempts = [
        asyncio.ensure_future(_connect(address, after_s=APART_S * i)) for i in range(ATTEMPTS)
    ]
    try:
        async with asyncio.timeout(seconds):
            for attempt in asyncio.as_completed(attempts):
                answer = await attempt
                if answer is not Answer.nothing:
                    return answer
    except TimeoutError:
        pass
    finally:
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
    return Answer.nothing


async def reach_seconds(address: tuple[str, int], *, seconds: float) -> float | None:
    """How long a connection takes, None when there is none: whether asking will tell anything."""
    began = time.monotonic()
    answer = await ask(address, seconds=seconds)
    return time.monotonic() - began if answer is Answer.open else None


async def _connect(address: tuple[str, int], *, after_s: float) -> Answer:
    await asyncio.sleep(after_s)
    try:
        _, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return Answer.refused
    except OSError:
        return Answer.nothing
    writer.transport.abort()
    return Answer.open
