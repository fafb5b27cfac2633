"""Stands in for an agent in tests of the local provisioner: a parent with a child, and memory.

Takes the agent's arguments. Says on its log what it was given, makes its snapshot folder, and obeys
SIGTERM unless ``--stubborn``. With ``--stray`` its child leaves the process group. Ends by itself
after a minute, so that a failed test leaves nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("node", "zone", "machine-type", "slots", "controller", "identity", "host", "log"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--memory-bytes")
parser.add_argument("--memory-folder")
parser.add_argument("--stubborn", action="store_true")
parser.add_argument("--stray", action="store_true")
arguments = parser.parse_args()

if arguments.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=arguments.stray
)
if not arguments.stubborn:

    def leave(*_: object) -> None:
        child.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
if arguments.memory_folder:
    run = os.environ["SAILOR_MACHINE"].partition("/")[0]
    folder = Path(arguments.memory_folder) / f"sailor-{run}-{arguments.node}-{os.getpid()}"
    folder.mkdir()
    (folder / "segment").write_bytes(b"weights")
told = json.dumps({**vars(arguments), "pid": os.getpid(), "child": child.pid})
sys.stdout.write(told + "\n")
sys.stdout.flush()
time.sleep(60)
