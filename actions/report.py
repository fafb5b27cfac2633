"""action=report: draw summary.json and report.html of a run again, from its log alone.

Works while the run goes on, after it was killed, and with a later version of the report.
"""

from __future__ import annotations

from pathlib import Path

from actions.console import Console
from actions.run_folder import run_name
from actions.status import no_such_run
from sailor.config import Config
from sailor.observe.events import read_events
from sailor.observe.report import write_report
from sailor.observe.summary import summarise, write_summary


def run(config: Config, console: Console) -> int:
    """Of the run named run.name, or of the run this configuration makes. Raises ConfigError E608
    when there is none."""
    root = Path(config.runs_dir).expanduser()
    path = root / run_name(config)
    if not (path / "events.jsonl").exists():
        raise no_such_run(path, root=root)
    summary = summarise(read_events(path / "events.jsonl"))
    write_summary(path / "summary.json", summary)
    console.print(f"report   {write_report(path)}", soft_wrap=True)
    console.document(summary)
    return 0
