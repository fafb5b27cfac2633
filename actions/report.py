"""action=report: draw summary.json, report.html and trackers of a run again, from its log alone.

Works while the run goes on, after it was killed, and with a later version of the report.
"""

from __future__ import annotations

from pathlib import Path

from actions.away import away
from actions.console import Console
from actions.run_folder import run_name
from actions.status import no_such_run
from actions.trackers import again
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
    if there := away(path):
        there.look()  # what is new there comes home, if it can be reached
    events = read_events(path / "events.jsonl")
    summary = summarise(events)
    write_summary(path / "summary.json", summary)
    with console.waiting("drawing the report"):
        page = write_report(path)
    console.print(f"report   {page}", soft_wrap=True)
    if names := again(config, path, command=str(summary["command"] or ""), events=events):
        console.print(f"trackers {', '.join(names)}")
    console.document(summary)
    return 0
