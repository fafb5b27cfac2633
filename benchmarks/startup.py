"""How long a user waits before the first word: CPU seconds of --help and of action=plan.

``python -m benchmarks.startup [--json] [--quick]``. CPU seconds of a child process, user and system
together, so that a busy machine does not count; the least of several runs after a first one, which
leaves compiled modules behind, as every start of a user but the first finds them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.document import machine, show

ROOT = Path(__file__).resolve().parent.parent

COMMANDS = {
    "help_cpu_s": ("--help",),
    "plan_cpu_s": ("action=plan", "model=gpt_1b", "cloud=gcp", "budget.total_usd=300"),
    "plan_local_cpu_s": ("action=plan",),
    "plan_llama3_8b_aws_cpu_s": ("action=plan", "model=llama3_8b", "cloud=aws"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="two runs of each instead of five")
    options = parser.parse_args()
    runs = 2 if options.quick else 5
    with tempfile.TemporaryDirectory() as compiled:
        all_runs = {
            name: [cpu_seconds(*words, compiled=compiled) for _ in range(runs + 1)][1:]
            for name, words in COMMANDS.items()
        }
    show(
        {
            "benchmark": "startup",
            "figures": {name: min(times) for name, times in all_runs.items()},
            "detail": {
                "runs": all_runs,
                "commands": {n: " ".join(("python run.py", *w)) for n, w in COMMANDS.items()},
            },
            "machine": machine(),
        },
        as_json=options.json,
    )


def cpu_seconds(*words: str, compiled: str) -> float:
    """User and system seconds of one call, in a folder of its own. Raises if it fails.

    ``compiled``: folder for compiled modules, whatever this environment says about them.
    """
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *words],
            cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
