"""One action in this process, and the most memory it held beyond what it held before. Linux.

``python -m benchmarks.data_peak action=export ...`` prints export, before_bytes and peak_bytes.
Resident memory counts pages of mapped files as well. What the action imports is imported before.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from actions.console import Console
from actions.export import run as export
from benchmarks.configuration import configured
from sailor.config import Output

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def main() -> None:
    """Export, counted from when all is imported and configured."""
    config = configured(*sys.argv[1:])
    console = Console(output=Output.json)
    _CLEAR.write_text("5")  # the peak begins anew (proc(5))
    before = _kib("VmRSS")
    with contextlib.redirect_stdout(io.StringIO()):
        code = export(config, console)
    peak = _kib("VmHWM")
    if code:
        raise SystemExit(code)
    document: dict[str, Any] = {
        "export": console.documents[-1], "before_bytes": before << 10,
        "peak_bytes": (peak - before) << 10,
    }  # fmt: skip
    sys.stdout.write(json.dumps(document))


def _kib(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
