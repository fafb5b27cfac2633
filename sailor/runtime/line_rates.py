"""How good the line from this machine to another one is: a start-up time and a rate, in a second.

Over the agents' own bulk port, so authenticated and encrypted as everything between them. What our
own code does not manage no line can show: the same exchange of a machine with itself says how much
that is, and is measured along. Bounded in time and bytes, for others may be training.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from math import inf

from sailor.checkpoint.replicate import TransferFailed, echo_seconds, opened
from sailor.runtime.identity import Identity
from sailor.runtime.messages import Line
from sailor.runtime.transport import Link

SECONDS = 1.0  # for the exchange over one line, at most; connecting has its own deadline
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)  # bytes there, and back again
_SMALL = 64  # bytes of a message that is all start-up
_SMALL_ONES = 3
_LONG = 0.15  # of the time: a size that takes that share is measured once, and no larger one


async def measure(
    peers: Mapping[str, tuple[str, int]], *, own: tuple[str, int], identity: Identity,
    seconds: float = SECONDS,
) -> tuple[Line, dict[str, Line]]:  # fmt: skip
    """The line of this machine to its own port, and to each of the peers that answered.

    One after the other: two at once would slow each other. Its own before and after, the worse
    counts: what else the machine does comes and goes. Raises TransferFailed where not even our own
    port answers.
    """
    before = await line_to(own, identity=identity, seconds=seconds)
    lines = {}
    for peer, address in peers.items():
        with suppress(TransferFailed):
            lines[peer] = await line_to(address, identity=identity, seconds=seconds)
    after = await line_to(own, identity=identity, seconds=seconds)
    return _worse(before, after), lines


async def line_to(
    address: tuple[str, int], *, identity: Identity, seconds: float = SECONDS
) -> Line:
    """What an exchange with a bulk port tells of the line to it. Raises TransferFailed.

    What goes there comes back, so that the slower direction shows in either measurement.
    """
    start_up_s, rates = inf, list[float]()
    async with opened(address, identity) as link:
        with suppress(TimeoutError):  # what was measured until then stands
            async with asyncio.timeout(seconds):
                start_up_s = min([await echo_seconds(link, _SMALL) for _ in range(_SMALL_ONES)])
                async for rate in _rates(link, start_up_s, long_s=_LONG * seconds):
                    rates.append(rate)
    if start_up_s is inf:
        raise TransferFailed(f"{address[0]}:{address[1]}: no answer in time")
    # At most that, where not even the smallest size came back.
    rate = rates[-1] if rates else 2 * SIZES[0] / seconds
    return Line(seconds_per_message=start_up_s / 2, bytes_per_second=rate)


async def _rates(link: Link, start_up_s: float, *, long_s: float) -> AsyncIterator[float]:
    """Of larger and larger messages, until one takes long. The largest says most: small ones may
    fit into a buffer on the way."""
    for size in SIZES:
        took_s = await echo_seconds(link, size)
        if took_s < long_s:
            took_s = min(took_s, await echo_seconds(link, size))
        yield 2 * size / max(took_s - start_up_s, 1e-9)
        if took_s > long_s:
            return


def _worse(one: Line, other: Line) -> Line:
    return Line(
        seconds_per_message=max(one.seconds_per_message, other.seconds_per_message),
        bytes_per_second=min(one.bytes_per_second, other.bytes_per_second),
    )
