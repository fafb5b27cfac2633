"""action=watch: look at a run of another process, as it goes on or as it went. Changes nothing.

    python run.py action=watch run=NAME             the live view, or plain lines where none can be
    python run.py action=watch                      of the one run that goes on
    python run.py action=watch run=NAME ui=json     every event from the first on, one a line

Reads the run's event log, wherever the run lives. Ends when the run does; Ctrl-C or q end the view
alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from actions.console import Console
from actions.following import Follower, follower, goes_on
from actions.homecoming import come_home
from actions.run_folder import said_of
from actions.status import no_such_run
from sailor.config import Config, Output, UiMode
from sailor.errors import ConfigError
from sailor.observe import words
from sailor.observe.events import Event
from sailor.observe.history import RunHistory, replay
from sailor.observe.keys import Key
from sailor.observe.live import View, view_of
from sailor.observe.panel import clock
from sailor.observe.summary import summarise

LEFT = 75  # the run goes on and nobody looks: the same command looks again
_LOOK_S = 0.25
_OWNER_S = 2.0  # how often it is asked whether the run lives, while nothing is heard of it
_LATEST = 6  # notable lines of the past shown when a view is opened


def run(config: Config, console: Console) -> int:
    """Show it until it ends or the view is closed. Raises ConfigError E608."""
    path = _path(config)
    attend(config, console, path)
    return 0


def attend(
    config: Config, console: Console, path: Path, *, keys: Mapping[str, Key] | None = None,
    farewell: Sequence[str] = (),
) -> int:  # fmt: skip
    """Show the run of a folder until it ends or nobody looks any more; its exit code, or LEFT.

    ``keys`` is what the view's keys ask of the run, q to close it where there are none. A run that
    lives elsewhere is brought home when it has ended. Raises CloudError E410 when it cannot be
    reached for a while.
    """
    try:
        return _attend(config, console, path, keys=keys, farewell=farewell)
    except KeyboardInterrupt:  # before there was a view, or while results were brought home
        console.print(f"the run is as it was; {said_of(path, 'watch')}   watches it again")
        return LEFT


def _attend(
    config: Config, console: Console, path: Path, *, keys: Mapping[str, Key] | None,
    farewell: Sequence[str],
) -> int:  # fmt: skip
    watch = _Watch(path=path, follow=follower(path))
    watch.take()
    mode = "quiet" if config.output is Output.json else config.ui.mode.value
    if mode not in ("quiet", UiMode.json.value):
        for line in _so_far(watch.past):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    close = {"q": Key(label="[q] close the view", press=watch.closed.set)}
    view = view_of(
        mode, console=console, history=replay(() if mode == "json" else watch.past),
        now=watch.now, folder=path, keys=close if keys is None else keys, farewell=farewell,
        ctrl_c=words.CLOSES,
    )  # fmt: skip
    try:
        for event in watch.past if mode == UiMode.json.value else ():
            view.see(event)
        _follow(watch, view)
    except KeyboardInterrupt:
        watch.closed.set()
    finally:
        watch.follow.close()
    speaks = mode not in ("quiet", UiMode.json.value)
    code = 0
    if watch.closed.is_set():
        code = LEFT
        if not view.detached:
            view.detach()
            if speaks:
                told = farewell or [
                    f"the run is as it was; {said_of(path, 'watch')}   watches it again"
                ]
                for line in () if farewell and mode == "live" else told:
                    console.print(line, soft_wrap=True)
    else:
        code = come_home(watch.follow, console)
        for event in watch.take():  # a controller's own machine is gone last
            view.see(event)
        if watch.history.status == "running" and speaks:
            view.detach()  # killed: nobody wrote how it ended
            for line in words.result(watch.history, killed=True):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            console.print(f"{said_of(path, 'down')}   ends what it may have left rented")
        else:
            view.close()
    if config.output is Output.json:
        console.document(summarise(watch.history))
    return code


@dataclass(kw_only=True)
class _Watch:
    """What is known of the run. ``closed`` is set when nobody wants to look any more."""

    path: Path
    follow: Follower
    history: RunHistory = field(default_factory=RunHistory)
    past: list[Event] = field(default_factory=list)  # what had happened when the view was opened
    last: Event | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def take(self) -> list[Event]:
        """What is new in the log."""
        new = self.follow.read()
        for event in new:
            self.history.apply(event)
        if new:
            if self.last is None:
                self.past = new
            self.last = new[-1]
        return new

    def now(self) -> float:
        """The log's time: it goes on between events, as long as the run does."""
        last = self.last
        if last is None or self.history.status != "running":
            return self.history.now
        since = time.time() - datetime.fromisoformat(last.time).timestamp()
        return last.t + max(0.0, since)


def _follow(watch: _Watch, view: View) -> None:
    """Show what comes, until the run has ended, was killed, or nobody looks."""
    asked_at = -_OWNER_S
    lives = True
    while not watch.closed.is_set():
        new = watch.take()
        for event in new:
            view.see(event)
        if view.detached:
            watch.closed.set()
        if new:
            continue
        if not lives:
            return
        if time.monotonic() - asked_at >= _OWNER_S or watch.history.status != "running":
            asked_at = time.monotonic()
            lives = watch.follow.lives()  # one more look for what it wrote last
        if lives:
            watch.closed.wait(_LOOK_S)


def _so_far(past: Sequence[Event]) -> Iterator[str]:
    """Who the run is and what happened last, for whoever comes in the middle of it."""
    history = RunHistory()
    notable: list[str] = []
    began = 0.0
    for event in past:
        history.apply(event)
        if event.kind == "run_started":
            began = event.t
        elif event.kind == "plan_chosen" and words.is_news(history):
            notable.append(words.plan_line(event))
        elif line := words.tell(event, history):
            notable.append(f" {clock(event.t - began)}  {line}")
    if history.starts:
        yield words.header(history)[0]
    yield from notable[-_LATEST:]


def _path(config: Config) -> Path:
    """The folder of the run that is named, or of the one that goes on."""
    root = Path(config.runs_dir).expanduser()
    if config.run.name is not None:
        path = root / config.run.name
        if not (path / "config.yaml").exists():
            raise no_such_run(path, root=root)
        return path
    runs = sorted(found.parent for found in root.glob("*/config.yaml"))
    alive = [path for path in runs if goes_on(path)]
    if len(alive) == 1:
        return alive[0]
    raise ConfigError(
        "which run shall be watched?", code="E608", where="run.name",
        why=f"{len(alive)} go on" + (": " + ", ".join(path.name for path in alive) if alive else "")
        + "; there are " + (", ".join(path.name for path in runs) or "none"),
        fix=said_of(alive[0] if alive else runs[-1], "watch") if runs
        else f"{said_of(root, 'status')}   lists all",
    )  # fmt: skip
