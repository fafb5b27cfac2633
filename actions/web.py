"""action=web: show a run, of this process or another's, as a page in the browser. Only reads."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from actions.console import Console
from actions.run_folder import run_name
from actions.run_page import open_page, say
from actions.status import no_such_run
from sailor.config import Config


def run(config: Config, console: Console) -> int:
    """Of the run named run.name, or of the run this configuration makes, until Ctrl-C.

    Raises ConfigError: E608 there is no such run, E602 ui.port cannot be had.
    """
    root = Path(config.runs_dir).expanduser()
    path = root / run_name(config)
    if not (path / "events.jsonl").exists():
        raise no_such_run(path, root=root)
    with suppress(KeyboardInterrupt), open_page(config, path) as page:
        say(page, config, console)
        console.print("         Ctrl-C closes the page; the run is left alone")
        threading.Event().wait()
    return 0
