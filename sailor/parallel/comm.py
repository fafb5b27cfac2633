"""Groups of ranks that exchange tensors, and waits that can be left at once.

This and groups.py, which builds them, are the only modules that know torch's private names for
process groups; ``groups.check_runtime`` tries each of them. There is no global world: a process may
be in many generations of groups, one after another. What they are for is the layout's business.

gloo cannot abort an operation: a wait for a dead or stopped peer lasts until the time-out. So
nobody here waits for gloo: a wait sleeps on an event that the operation's future sets, and leaves
when the abort event is set. The operation it leaves behind may still write into its tensors, so
they, and their group, rest in a graveyard until its time-out has passed. A left group is never used
again.

NCCL can abort, and has to: its operations are kernels that spin on the GPU until their peers come,
and a process that asks the GPU for a number stands still behind them. So its groups are never
waited for by the processor but in ``settle``, which looks at the abort event; the control thread
ends their kernels by ``interrupt``. torch's own watchdog, which would end the process, is off.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

SLICE_S = 0.02  # how often a wait looks at the abort event
_LAST_S = 10.0  # for the last of what is being destroyed when the interpreter ends
_POLL_S = 2e-4  # how often one looks at the GPU: a step waits for it once


class Waits(threading.local):
    """Seconds this thread has spent waiting for others, in all: what of a step is not work."""

    seconds: float = 0.0


waits = Waits()


class Aborted(Exception):
    """A wait was left: the abort event was set, its deadline passed, or a peer is gone."""


class PeerLost(Aborted):
    """The wait ended by itself: a peer broke the connection or was silent for the time-out."""


class Pending(Protocol):
    """A collective under way. Its tensor must not be touched before ``wait`` returns."""

    def wait(self) -> None:
        """Return when the collective is complete; on a GPU, when whatever is asked of it next will
        come after the collective. Raises Aborted."""


class Communicator(Protocol):
    """Some ranks in a fixed order. Every member must start the same operations in one order."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sum in place over all members. Before: each has its part; after: all have the sum."""

    def reduce(self, tensor: torch.Tensor, *, root: int) -> Pending:
        """Sum onto member ``root``. What the others have afterwards is of no meaning."""

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> Pending:
        """Member ``root``'s tensor replaces everybody's."""

    def all_gather(self, parts: torch.Tensor) -> Pending:
        """[R, ...]: before, each member has its own row; after, everybody has all of them."""

    def reduce_scatter(self, parts: torch.Tensor) -> Pending:
        """[R, ...]: after, each member's own row is the sum of all members' such rows. The other
        rows are of no meaning."""

    def settle(self) -> None:
        """Return when the device has done all it was asked for: what collectives brought can be
        read. Raises Aborted."""

    def rebind(self, abort: threading.Event) -> None:
        """Listen to another abort event: what a group reused by the next generation needs."""

    def allow(self, *, seconds: float) -> None:
        """No operation that is started from here on may take longer."""

    def interrupt(self) -> None:
        """The abort event is set: end what only the group itself can end. From any thread."""

    def close(self) -> None:
        """Never use the group again. Does not block."""


class _Done:
    """A collective that needed no one else."""

    def wait(self) -> None:
        return


DONE = _Done()


class NoGroup:
    """What a communicator does about the device and its end when there is no group behind it."""

    def settle(self) -> None:
        return

    def rebind(self, abort: threading.Event) -> None:
        return

    def allow(self, *, seconds: float) -> None:
        return

    def interrupt(self) -> None:
        return

    def close(self) -> None:
        return


class LoopbackCommunicator(NoGroup):
    """Answers like a real group, alone. What it would have received is zeros: finite, and fast.

    A world of one needs nothing else; a standby runs a whole step of its future role on these.
    """

    def __init__(self, *, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        return DONE

    def reduce(self, tensor: torch.Tensor, *, root: int) -> Pending:
        return DONE

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> Pending:
        if root != self.rank:
            tensor.zero_()
        return DONE

    def all_gather(self, parts: torch.Tensor) -> Pending:
        for rank in range(self.size):
            if rank != self.rank:
                parts[rank].zero_()
        return DONE

    def reduce_scatter(self, parts: torch.Tensor) -> Pending:
        return DONE


class _Work:
    """One operation of a process group."""

    __slots__ = ("_deadline", "_done", "_group", "_work")

    def __init__(self, work: Any, group: ProcessGroupCommunicator) -> None:
        self._work = work
        self._group = group
        self._deadline = time.monotonic() + group.timeout_s
        self._done = threading.Event()
        work.get_future().add_done_callback(self._finished)

    def _finished(self, _future: Any) -> None:
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        began = time.monotonic()
        try:
            self._wait()
        finally:
            waits.seconds += time.monotonic() - began

    def _wait(self) -> None:
        abort = self._group.abort
        while not self._done.wait(SLICE_S):
            self._group.waiting()
            if abort.is_set():
                self._group.close()
                raise Aborted("the generation was aborted")
            if time.monotonic() > self._deadline:
                self._group.close()
                raise PeerLost(f"no answer within {self._group.timeout_s:.0f} s")
        try:
            self._work.wait()  # complete: returns at once, or raises what went wrong
        except RuntimeError as error:
            self._group.close()
            raise PeerLost(str(error)) from error


class _DeviceWork:
    """One operation of an NCCL group: a kernel on a stream of its own."""

    __slots__ = ("_group", "_work")

    def __init__(self, work: Any, group: ProcessGroupCommunicator) -> None:
        self._work = work
        self._group = group

    @property
    def done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self) -> None:
        try:
            self._work.wait()  # the current stream waits, the processor does not
        except RuntimeError as error:
            self._group.close()
            raise PeerLost(str(error)) from error


class ProcessGroupCommunicator:
    """A gloo or NCCL process group behind the Communicator interface."""

    def __init__(
        self,
        group: Any,
        *,
        rank: int,
        size: int,
        abort: threading.Event,
        timeout_s: float,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.abort = abort
        self.timeout_s = self._built_for_s = timeout_s
        self.waiting = waiting  # called again and again while a wait lasts
        self._group = group
        self._lock = threading.Lock()  # a group may be closed by another thread than waits
        self._on_device = not isinstance(group, dist.ProcessGroupGloo)
        self._under_way: deque[tuple[_Work | _DeviceWork, Any]] = deque()
        self._roots: dict[int, tuple[Any, Any]] = {}  # of broadcasts and reductions

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        return self._started(lambda: self._group.allreduce([tensor]), tensor)

    def reduce(self, tensor: torch.Tensor, *, root: int) -> Pending:
        _, options = self._root(root)
        return self._started(lambda: self._group.reduce([tensor], options), tensor)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> Pending:
        options, _ = self._root(root)
        return self._started(lambda: self._group.broadcast([tensor], options), tensor)

    def all_gather(self, parts: torch.Tensor) -> Pending:
        own = parts[self.rank].clone()  # gloo wants it apart from where it gathers
        return self._started(
            lambda: self._group._allgather_base(parts.view(-1), own.view(-1)), (parts, own)
        )

    def reduce_scatter(self, parts: torch.Tensor) -> Pending:
        """gloo's own cannot be waited for with a way out, so there everybody gets every sum."""
        if not self._on_device:
            return self.all_reduce(parts)
        own = parts[self.rank]
        return self._started(
            lambda: self._group._reduce_scatter_base(own.view(-1), parts.view(-1)), parts
        )

    def _root(self, root: int) -> tuple[Any, Any]:
        if root not in self._roots:
            broadcast, reduce = dist.BroadcastOptions(), dist.ReduceOptions()
            broadcast.rootRank = reduce.rootRank = root
            self._roots[root] = broadcast, reduce
        return self._roots[root]

    def settle(self) -> None:
        if not self._on_device:
            return
        event: Any = torch.cuda.Event()
        event.record()
        deadline = time.monotonic() + self.timeout_s
        while not event.query() and not self.abort.is_set():
            if time.monotonic() > deadline:
                self.close()
                raise PeerLost(f"no answer within {self.timeout_s:.0f} s")
            time.sleep(_POLL_S)
        # Kernels that were ended count as done, with anything in their tensors.
        if self.abort.is_set() or isinstance(self._group, _Closed):
            self.close()
            raise Aborted("the generation was aborted")

    def rebind(self, abort: threading.Event) -> None:
        self.abort = abort

    def allow(self, *, seconds: float) -> None:
        self.timeout_s = min(seconds, self._built_for_s)

    def interrupt(self) -> None:
        if self._on_device:
            self.close()

    def close(self) -> None:
        """Bury the group with whatever it is still doing."""
        with self._lock:
            group, self._group = self._group, _Closed()
            under_way = tuple(self._under_way)
            self._under_way.clear()
        if isinstance(group, _Closed):
            return
        if self._on_device:  # an abort waits for the kernels to see it
            threading.Thread(
                target=end_kernels, args=(group, under_way), name="nccl abort", daemon=True
            ).start()
        else:
            stuck = any(not work.done for work, _ in under_way)
            _graveyard.bury((group, under_way), seconds=self._built_for_s if stuck else 0.0)

    def _started(self, start: Callable[[], Any], tensors: Any) -> Pending:
        """Start an operation, and remember it and its tensors while it may touch them."""
        try:
            work = start()
            pending = _DeviceWork(work, self) if self._on_device else _Work(work, self)
        except RuntimeError as error:
            self.close()
            raise PeerLost(str(error)) from error
        with self._lock:
            while self._under_way and self._under_way[0][0].done:
                self._under_way.popleft()
            self._under_way.append((pending, tensors))
        return pending


def end_kernels(group: Any, under_way: Any) -> None:
    """End the kernels of an NCCL group. Their tensors live until then."""
    group.abort()
    del under_way


class _Closed:
    """Stands where a group was."""

    def __getattr__(self, name: str) -> Any:
        raise Aborted("this group was left and cannot be used again")


class _Graveyard:
    """Keeps abandoned groups and their tensors until no thread can write into them any more.

    Destroying a group with an operation stuck in it blocks until its time-out, so a daemon thread
    does it. The interpreter would do it too on its way out: a worker leaves with ``os._exit``. Any
    other process must not end in the middle of it: ``close`` comes first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buried: list[tuple[float, Any]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def bury(self, remains: Any, *, seconds: float) -> None:
        with self._lock:
            self._buried.append((time.monotonic() + seconds, remains))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._tend, name="graveyard", daemon=True)
                self._thread.start()

    def _tend(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._buried:
                    self._thread = None
                    return
                self._buried.sort(key=lambda entry: entry[0])
                due, remains = self._buried[0]
                wait = due - time.monotonic()
                if wait <= 0:
                    self._buried.pop(0)
            if wait > 0:
                time.sleep(min(wait, 0.5))
            del remains  # outside the lock: may block

    def close(self) -> None:
        """Return when nothing is being destroyed any more; what still lies here goes with the
        interpreter."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join(_LAST_S)


_graveyard = _Graveyard()
atexit.register(_graveyard.close)
