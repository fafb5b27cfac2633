"""Which sequences step s reads: a pure function of (seed, step), whoever trains. No torch.

The run walks through the sequences in a shuffled order, another one each epoch; of a mixture,
through those of each source, as often as the source's share has it (blend.py). The order is never
stored: a permutation of 0..n-1 is computed number by number, so any range of it costs its length.
Resuming needs the step alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sailor.data.blend import Blend, whole

_ROUNDS = 6
_U64 = np.uint64
_ALL = (1 << 64) - 1


def sequences_of_step(
    step: int, *, seed: int, num_sequences: int, global_batch_size: int, offset: int, count: int
) -> npt.NDArray[np.int64]:
    """Sequence numbers of samples [offset, offset + count) of step ``step`` (the first is 1)."""
    return blended_sequences_of_step(
        step, seed=seed, blend=whole(num_sequences), global_batch_size=global_batch_size,
        offset=offset, count=count,
    )  # fmt: skip


def blended_sequences_of_step(
    step: int, *, seed: int, blend: Blend, global_batch_size: int, offset: int, count: int
) -> npt.NDArray[np.int64]:
    """The same of a mixture. Of each source, all sequences are read once before one is again."""
    order = Order(
        seed=seed, blend=blend, global_batch_size=global_batch_size, offset=offset, count=count,
        steps_at_once=1,
    )  # fmt: skip
    return order.of_step(step)


class Order:
    """A replica's share of every step: samples [offset, offset + count) of each global batch.

    Drawn for many steps at once: numbers are cheap, and calls of numpy are not. ``steps_at_once``
    changes what it costs, not what it says.
    """

    def __init__(
        self, *, seed: int, blend: Blend, global_batch_size: int, offset: int, count: int,
        steps_at_once: int = 64,
    ) -> None:  # fmt: skip
        if offset < 0 or offset + count > global_batch_size:
            raise ValueError(
                f"samples [{offset}, {offset + count}) of a batch of {global_batch_size}"
            )
        self._seed, self._blend = seed, blend
        self._batch, self._steps = global_batch_size, steps_at_once
        self._share = np.arange(offset, offset + count, dtype=np.int64)
        self._first = 0  # of the steps drawn
        self._drawn: list[npt.NDArray[np.int64]] = []

    def of_step(self, step: int) -> npt.NDArray[np.int64]:
        """Sequence numbers, [count], of a step (the first is 1)."""
        if step < 1:
            raise ValueError(f"step {step}: the first is 1")
        if not 0 <= step - self._first < len(self._drawn):
            begins = np.arange(step - 1, step - 1 + self._steps, dtype=np.int64) * self._batch
            samples = begins[:, None] + self._share
            drawn = _sequences(samples.ravel(), seed=self._seed, blend=self._blend)
            self._first, self._drawn = step, list(drawn.reshape(samples.shape))
        return self._drawn[step - self._first]


def _sequences(
    samples: npt.NDArray[np.int64], *, seed: int, blend: Blend
) -> npt.NDArray[np.int64]:  # fmt: skip
    """The sequences that samples, counted from the start of the run and ascending, read."""
    out = np.empty(len(samples), dtype=np.int64)
    left = np.arange(len(samples))  # of ``out``; ``samples`` are their numbers among what is left
    rest = sum(blend.shares)
    for start, size, share, key in zip(
        blend.starts, blend.counts, blend.shares, blend.keys, strict=True
    ):
        before = _given(samples, share, rest)  # of this source, of the samples before each
        mine = _given(samples + 1, share, rest) > before
        source_seed = seed if key is None else _mix_int(seed, key)
        out[left[mine]] = start + _in_order(before[mine], seed=source_seed, size=size)
        left, samples, rest = left[~mine], (samples - before)[~mine], rest - share
    return out


def _given(samples: npt.NDArray[np.int64], share: int, rest: int) -> npt.NDArray[np.int64]:
    """samples * share // rest, in 64 bits: as blend.given has it."""
    return samples // rest * share + samples % rest * share // rest


def _in_order(turns: npt.NDArray[np.int64], *, seed: int, size: int) -> npt.NDArray[np.int64]:
    """The sequences that a source's ``turns``, ascending from 0, are: shuffled anew each epoch."""
    out = np.empty(len(turns), dtype=np.int64)
    if len(turns):
        for epoch in range(int(turns[0]) // size, int(turns[-1]) // size + 1):
            here = turns // size == epoch
            out[here] = permute(turns[here] % size, size=size, key=_mix_int(seed, epoch))
    return out


def permute(
    indices: npt.NDArray[np.int64], *, size: int, key: int
) -> npt.NDArray[np.int64]:  # fmt: skip
    """Where a keyed permutation of 0..size-1 sends each index.

    A Feistel network permutes a power of four that is at least ``size``; whatever lands outside is
    sent on until it lands inside (cycle walking; Black and Rogaway 2002). On average that is fewer
    than four passes.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [_U64(_mix_int(key, r)) for r in range(_ROUNDS)]
    values = indices.astype(_U64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], half=half, keys=keys)
        outside = values >= _U64(size)
    return values.astype(np.int64)


def _feistel(
    values: npt.NDArray[np.uint64], *, half: int, keys: list[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A bijection of the numbers below 4 ** half."""
    mask = _U64((1 << half) - 1)
    left, right = values >> _U64(half), values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << _U64(half)) | right


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014); wraps modulo 2 ** 64."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _mix_int(seed: int, number: int) -> int:
    """One key out of two numbers. In plain integers: arrays of one cost ten times as much."""
    salt = (number * 0x9E3779B97F4A7C15 + 1) & _ALL
    return _mix_one((_mix_one((seed + salt) & _ALL) + salt) & _ALL)


def _mix_one(x: int) -> int:
    """``_mix`` of one number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _ALL
    return x ^ (x >> 31)
