"""What the runtime asks of a Linux process: to die with its parent, to be named, to be counted."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends, however it ends. Exits at once if it already has.

    The kernel watches the parent's *thread* that started us: it must be one that lives as long as
    its process, the main thread.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """What ps and top show; the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def num_threads() -> int:
    """Threads of this process, those of native libraries included."""
    return len(os.listdir("/proc/self/task"))


def describe_exit(status: int) -> str:
    """'killed by SIGKILL' or 'exit status 1', of what os.waitstatus_to_exitcode gives."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def see_one_gpu(slot: int) -> None:
    """Let CUDA know the GPU of a slot and no other: every thread then computes on that one.

    Slots count what was visible so far. Before CUDA is initialised; without GPUs it does nothing.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    listed = [entry for entry in visible.split(",") if entry]
    if slot < len(listed):
        os.environ["CUDA_VISIBLE_DEVICES"] = listed[slot]
    elif not listed:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(slot)
