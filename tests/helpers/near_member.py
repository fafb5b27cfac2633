"""A member of a group of two on one machine, as a process of its own.

``python -m tests.helpers.near_member STORE``: rank 1 of two. Adds up once with rank 0, then says so
and waits to be killed.
"""

from __future__ import annotations

import sys
import threading
import time

import torch
import torch.distributed as dist

from sailor.parallel.groups import build_groups
from tests.helpers.builders import a_layout, a_plan
from tests.helpers.groups import world

NUMBERS = 100_000  # of the tensor that is added up
LIFE_S = 60.0


def main() -> None:
    """See the module's docstring."""
    groups = build_groups(
        a_layout(a_plan([], []), slots=2), 1, generation=1, store=dist.FileStore(sys.argv[1], -1),
        abort=threading.Event(), timeout_s=LIFE_S, host="127.0.0.1",
    )  # fmt: skip
    world(groups).all_reduce(torch.ones(NUMBERS)).wait()
    sys.stdout.write("added up\n")
    sys.stdout.flush()
    time.sleep(LIFE_S)


if __name__ == "__main__":
    main()
