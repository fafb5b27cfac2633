"""A worker's rehearsal of a role: one real step, on state that is thrown away, with no peer.

What it needs of the run is a recording of the role (``sailor.parallel.sandbox``); what it must not
touch is the state the worker trains with, if it has any: its digest is taken before and after.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

import torch
import xxhash

from sailor.parallel.sandbox import LeftSandbox, Recording, Replay, StaleRecording, no_network
from sailor.training.trainer import StepRefused, Trainer

log = logging.getLogger(__name__)


class CannotRehearse(Exception):
    """The recording is of no use here: the role is taken without a rehearsal."""


def rehearse(
    trainer: Trainer,
    recording: Recording,
    *,
    role: str,
    abort: threading.Event,
    real: Iterable[torch.Tensor] = (),
) -> float:
    """Run one step of a trainer that has no state yet, alone. Returns the seconds it took.

    The trainer's state is zero afterwards, and it must be connected. ``real`` is state that must
    not change. Raises CannotRehearse, or Aborted when ``abort`` is set meanwhile.
    """
    began = time.monotonic()
    guarded = [tensor for tensor in real if tensor.numel()]
    mine = {t.untyped_storage().data_ptr() for box in trainer.state.values() for t in (box.weight,)}
    assert not mine & {tensor.untyped_storage().data_ptr() for tensor in guarded}
    before = _digest(guarded)
    try:
        replay = Replay(recording, trainer.layout, trainer.rank, role=role, abort=abort)
        with no_network():
            trainer.rehearse(replay.groups)
        replay.finish()
    except (StaleRecording, LeftSandbox, StepRefused, ValueError) as error:
        raise CannotRehearse(f"{type(error).__name__}: {error}") from error
    finally:
        assert _digest(guarded) == before, "a rehearsal changed the state that is trained"
    return time.monotonic() - began


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    hasher = xxhash.xxh3_64()
    for tensor in tensors:
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        hasher.update(flat.view(torch.uint8).numpy().data)
    return hasher.hexdigest()
