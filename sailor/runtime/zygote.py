"""The process that has imported torch and does nothing else but fork workers.

Importing costs seconds, forking milliseconds: a worker that died is back before its peers have left
their collectives. It is single-threaded and never runs a tensor operation, for a child of a process
with a thread pool hangs in its first parallel operation.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import select
import signal
import socket
import sys
import traceback

from sailor.log import Stamp, configure_log
from sailor.runtime.messages import decoder, encode
from sailor.runtime.process import die_with_parent, name_process, num_threads
from sailor.runtime.worker_link import ZYGOTE_PACKET_BYTES, Exited, Fork, Forked, Imported

log = logging.getLogger(__name__)


def main() -> None:
    """Serve fork requests on the inherited packet socket until the agent closes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--node", required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    configure_log(Stamp(who=f"{arguments.node}/zygote"))
    name_process("zygote")
    # The agent decides what a signal to the whole group means.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import sailor.runtime.worker  # noqa: F401  # all imports a worker needs, once

    gc.collect()
    gc.freeze()  # a child's first collection would touch, and so copy, every page
    if num_threads() != 1:
        raise RuntimeError(f"the zygote has {num_threads()} threads; forking would be unsafe")
    serve(socket.socket(fileno=arguments.fd))


def serve(agent: socket.socket) -> None:
    """Fork on request, reap and report, until the agent is gone."""
    requests = decoder(Fork)
    wake_read, wake_write = socket.socketpair()
    for end in (wake_read, wake_write):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    agent.send(encode(Imported()))
    while True:
        readable, _, _ = select.select([agent, wake_read], [], [])
        if wake_read in readable:
            wake_read.recv(4096)
            _reap(agent)
        if agent in readable:
            packet, descriptors, _, _ = socket.recv_fds(agent, ZYGOTE_PACKET_BYTES, 1)
            if not packet:
                return
            request: Fork = requests.decode(packet)
            myself = os.getpid()
            pid = os.fork()
            if pid == 0:
                for end in (agent, wake_read, wake_write):
                    end.close()
                _become_worker(request, descriptors[0], parent=myself)
            os.close(descriptors[0])
            agent.send(encode(Forked(worker=request.worker, pid=pid)))


def _reap(agent: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        agent.send(encode(Exited(pid=pid, status=os.waitstatus_to_exitcode(status))))


def _become_worker(request: Fork, descriptor: int, *, parent: int) -> None:
    """In the child: never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from sailor.runtime.worker import run_worker

        end = socket.socket(fileno=descriptor)
        run_worker(request.worker, end, progress=request.progress, parent=parent)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)  # no destructor may wait for a group of the dead


if __name__ == "__main__":
    main()
