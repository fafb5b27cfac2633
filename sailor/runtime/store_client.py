"""The key-value store in which new groups find each other, reached through the worker's agent.

torch sees an ordinary Store; every call travels over the authenticated control connection to the
controller. Nothing is hosted by a worker, so nothing dies with one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from sailor.runtime.messages import Message, StoreGet, StoreSet, StoreValues

_DEFAULT_WAIT_S = 30.0
_SLICE_S = 0.05
_ANSWER_MARGIN_S = 2.0  # the controller keeps the deadline; this is for its answer to arrive


class StoreRequests:
    """Requests under way of one worker, answered by its control thread. For all its stores."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: dict[int, tuple[threading.Event, list[bytes]]] = {}

    def put(self, key: str, value: bytes, *, generation: int) -> None:
        """Publish a value."""
        self._send(StoreSet(generation=generation, key=key, value=value))

    def get(
        self, keys: tuple[str, ...], *, generation: int, seconds: float, abort: threading.Event
    ) -> tuple[bytes, ...]:
        """Values of all keys once they are there. Raises DistStoreError in time, or on abort."""
        answered = threading.Event()
        values: list[bytes] = []
        with self._lock:
            self._count += 1
            request = self._count
            self._waiting[request] = (answered, values)
        try:
            self._send(StoreGet(generation=generation, request=request, keys=keys, seconds=seconds))
            deadline = time.monotonic() + seconds + _ANSWER_MARGIN_S
            while not answered.wait(_SLICE_S):
                if abort.is_set():
                    raise DistStoreError("the generation was dropped")
                if time.monotonic() > deadline:
                    raise DistStoreError(f"no answer about {keys} for {seconds:.0f} s")
        finally:
            with self._lock:
                del self._waiting[request]
        if len(values) != len(keys):
            raise DistStoreError(f"not all of {keys} appeared within {seconds:.0f} s")
        return tuple(values)

    def deliver(self, answer: StoreValues) -> None:
        """An answer came."""
        with self._lock:
            waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting[1].extend(answer.values)
            waiting[0].set()


class RemoteStore(Store):
    """What ``build_groups`` is given. Only what group set-up calls: set, get, wait."""

    def __init__(self, requests: StoreRequests, *, generation: int, abort: threading.Event) -> None:
        super().__init__()
        self._requests = requests
        self._generation = generation
        self._abort = abort
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Publish ``value`` (bytes or text)."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._requests.put(key, data, generation=self._generation)

    def get(self, key: str) -> bytes:
        """The value, waiting for it."""
        if key not in self._known:
            self._fetch((key,), _DEFAULT_WAIT_S)
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all keys are there."""
        seconds = timeout.total_seconds() if timeout is not None else _DEFAULT_WAIT_S
        missing = tuple(key for key in keys if key not in self._known)
        if missing:
            self._fetch(missing, seconds)

    def _fetch(self, keys: tuple[str, ...], seconds: float) -> None:
        values = self._requests.get(
            keys, generation=self._generation, seconds=seconds, abort=self._abort
        )
        self._known.update(zip(keys, values, strict=True))
