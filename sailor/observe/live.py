"""How a run shows itself while it goes on: plain lines, a live panel, or JSON events.

A view subscribes to the event log and draws what it hears; it decides nothing, and a run without a
view is the same run. What it says is in ``words``.
"""

from __future__ import annotations

import re
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from sailor.observe import words
from sailor.observe.events import Event, EventLog
from sailor.observe.history import RunHistory, replay
from sailor.observe.keys import Key, Keys
from sailor.observe.metrics import Metrics, measure
from sailor.observe.panel import clock, panel

LINE_EVERY_S = 5.0
_LINE_EVERY_SHARE = 0.1
_BEGINNING = re.compile(r"\s*\S+\s{2,}([!+>~.] )?|\s+")  # a moment or a title, before the words
_MARKS = {"!": "red", "+": "green", ">": "cyan", "~": "magenta", ".": "default"}


class View(Protocol):
    """Something that shows a run. ``close`` says how it ended and lets go of the log."""

    def see(self, event: Event) -> None:
        """Take the next event."""
        ...

    def close(self) -> None:
        """Say how it ended. Harmless when closed already."""
        ...

    def detach(self) -> None:
        """Show no more, though the run goes on."""
        ...

    @property
    def detached(self) -> bool:
        """Whether whoever looked has gone away: closing the terminal ends nothing then."""
        ...


def open_view(
    mode: str,
    *,
    console: Console,
    events: EventLog,
    past: Iterable[Event] = (),
    folder: Path | str | None = None,
    keys: Mapping[str, Key] | None = None,
    farewell: Sequence[str] = (),
) -> View:
    """Show the run of this process from now on. ``past`` is what the log held before this start.

    The rest is as for ``view_of``.
    """
    view = view_of(
        mode, console=console, history=replay(past), now=lambda: events.t, folder=folder, keys=keys,
        farewell=farewell,
    )  # fmt: skip
    if mode != "quiet":
        events.subscribe(view.see)
    return view


def view_of(
    mode: str,
    *,
    console: Console,
    history: RunHistory,
    now: Callable[[], float],
    folder: Path | str | None = None,
    keys: Mapping[str, Key] | None = None,
    farewell: Sequence[str] = (),
    ctrl_c: str = words.SAVES,
) -> View:
    """A view that is to be told of events. ``mode``: auto, live, plain, json or quiet.

    auto is live on a terminal that can redraw, else plain. ``folder`` is the run folder, for the
    line that says where the report is. ``history`` is of what happened before; the view keeps it up
    to date. ``keys`` and ``farewell`` are LiveView's; ``ctrl_c`` says what Ctrl-C does.
    """
    if mode == "auto":
        mode = "live" if console.is_terminal and not console.is_dumb_terminal else "plain"
    match mode:
        case "live":
            return LiveView(
                console, history, folder=folder, now=now, keys=keys, farewell=farewell,
                ctrl_c=ctrl_c,
            )  # fmt: skip
        case "plain":
            return PlainView(console, history, folder=folder, ctrl_c=ctrl_c)
        case "json":
            return JsonView(console)
        case "quiet":
            return QuietView()
    raise ValueError(f"no view is called {mode}")


class QuietView:
    """Shows nothing: for output=json, where another document goes to standard output."""

    detached = False  # whoever reads it is a program, or nobody

    def detach(self) -> None:
        """Nothing to take away."""

    def see(self, event: Event) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class JsonView:
    """Every event as one line of JSON, as it stands in the log."""

    detached = False  # whoever reads it is a program, or nobody

    def detach(self) -> None:
        """Nothing to take away."""

    def __init__(self, console: Console) -> None:
        self._out = console.file

    def see(self, event: Event) -> None:
        """Write the line."""
        self._out.write(event.to_json().decode() + "\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing more to say."""


class Pace:
    """Kept tokens per second since it was last asked."""

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self._t, self._tokens = 0.0, 0

    def restart(self) -> None:
        """Begin to count now: another start, other machines."""
        self._t, self._tokens = self._history.now, self._sum()

    def take(self) -> float:
        """The pace since the last call, and a new beginning. Never negative."""
        t, tokens = self._t, self._tokens
        self.restart()
        return max(0.0, (self._tokens - tokens) / (self._t - t)) if self._t > t else 0.0

    def _sum(self) -> int:
        last = self._history.last_step
        return last.step * last.tokens if last else 0  # every step has the same number of tokens


class PlainView:
    """One line for each notable event, and one on progress every few seconds or tenth of the run.

    For pipes, logs and screen readers: no colour, no redrawing.
    """

    detached = False  # whoever reads it is a program, or nobody

    def detach(self) -> None:
        """Nothing to take away."""

    def __init__(
        self, console: Console, history: RunHistory, *, folder: Path | str | None = None,
        ctrl_c: str = words.SAVES,
    ) -> None:  # fmt: skip
        self._console = console
        self._ctrl_c = ctrl_c
        self._history = history
        self._folder = folder
        self._began = history.starts[-1].t if history.starts else history.now
        self._told_at = -LINE_EVERY_S  # time and step of the last line on progress
        self._told_step = 0
        self._pace = Pace(history)
        self._closed = False

    def see(self, event: Event) -> None:
        """Print what is worth a line."""
        self._history.apply(event)
        if event.kind == "run_started":
            self._began = event.t
            self._told_at = event.t
            self._pace.restart()
            for line in words.header(self._history, ctrl_c=self._ctrl_c):
                self._print(line)
        elif event.kind == "plan_chosen" and words.is_news(self._history):
            self._print(words.plan_line(event))
        elif event.kind == "step":
            self._step(event)
        elif told := words.tell(event, self._history):
            self._print(f" {clock(event.t - self._began)}  {told}")
            if event.kind == "generation_started":
                self._pace.restart()

    def close(self) -> None:
        """Print how it ended."""
        if self._closed:
            return
        self._closed = True
        for line in words.result(self._history, folder=self._folder):
            self._print(line)

    def _step(self, event: Event) -> None:
        point = self._history.last_step
        if point is None:
            return
        total = self._history.start("total_steps", 0)
        due = event.t - self._told_at >= LINE_EVERY_S
        due = due or point.step - self._told_step >= max(1.0, total * _LINE_EVERY_SHARE)
        due = due or point.step == total
        if due and point.step != self._told_step:
            self._told_at, self._told_step = event.t, point.step
            text = words.progress(self._history, tokens_per_second=self._pace.take())
            self._print(f" {clock(event.t - self._began)}  {text}")

    def _print(self, line: str) -> None:
        line = fitted(line, self._console)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def fitted(line: str, console: Console) -> str:
    """A line cut between words where the terminal ends, what goes over below its words. Into a
    file or a pipe it goes in one piece, and so does a word that is longer than the terminal."""
    if not console.is_terminal or len(line) <= console.width:
        return line
    begin = _BEGINNING.match(line)
    return "\n".join(
        textwrap.wrap(
            line, console.width, subsequent_indent=" " * (begin.end() if begin else 0),
            break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip


class LiveView:
    """Notable events scroll by; below them a panel with progress, figures and machines is redrawn.

    ``now`` gives the log's time, so that clocks on the panel move between events. Drawn by a
    thread of its own, which only reads. With ``keys`` the terminal's keys do what they say; with
    ``farewell``, lines on how to go on, d closes the view and nothing more is printed until the
    run's end. So does sending the process to the background.
    """

    def __init__(
        self,
        console: Console,
        history: RunHistory,
        *,
        now: Callable[[], float],
        folder: Path | str | None = None,
        keys: Mapping[str, Key] | None = None,
        farewell: Sequence[str] = (),
        ctrl_c: str = words.SAVES,
    ) -> None:
        self._console = console
        self._ctrl_c = ctrl_c
        self._history = history
        self._now = now
        self._folder = folder
        self._farewell = farewell
        self._began = history.starts[-1].t if history.starts else history.now
        self._pace = Pace(history)
        self._pace_at = 0.0
        self._tokens_per_second = 0.0
        self._figures: Metrics | None = None
        self._figures_due = 0.0
        self._lock = threading.Lock()
        self._closed = False
        self.detached = False
        self._offered: tuple[str, ...] = ()
        self._keys: Keys | None = None
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )
        if keys is not None and sys.stdin.isatty():
            if farewell:
                keys = {"d": Key(label="[d]etach", press=self.detach), **keys}
            self._offered = tuple(key.label for key in keys.values())
            self._keys = Keys(sys.stdin.fileno(), keys, away=self.detach)
            try:
                self._keys.start()
            except termios.error:
                self._keys, self._offered = None, ()
        self._live.start()

    def see(self, event: Event) -> None:
        """Take it in, and let notable ones scroll by above the panel."""
        with self._lock:
            self._history.apply(event)
            lines = []
            if event.kind == "run_started":
                self._began = event.t
                self._pace.restart()
                lines = words.header(self._history, ctrl_c=self._ctrl_c)
            elif event.kind == "plan_chosen" and words.is_news(self._history):
                lines = [words.plan_line(event)]
            elif line := words.tell(event, self._history):
                lines = [f" {clock(event.t - self._began)}  {line}"]
            if event.kind == "step" and event.t - self._pace_at >= 1.0:
                self._pace_at = event.t
                self._tokens_per_second = self._pace.take()
        if self.detached:
            return
        for text in lines:
            mark = text.strip().partition("  ")[2][:1]
            shown = Text(fitted(text, self._console), style=_MARKS.get(mark, "default"))
            self._console.print(shown, soft_wrap=True)

    def detach(self) -> None:
        """Take the panel and the keys away and say how to get them back. Any thread may call it."""
        if self.detached or self._closed:
            return
        self.detached = True
        self._take_away()
        self._say(self._farewell)

    def close(self) -> None:
        """Take the panel away and print how it ended."""
        if self._closed:
            return
        self._closed = True
        if not self.detached:
            self._take_away()
        self._say(words.result(self._history, folder=self._folder))

    def _take_away(self) -> None:
        if self._keys is not None:
            self._keys.stop()
        self._live.stop()

    def _say(self, lines: Iterable[str]) -> None:
        with suppress(OSError):  # the terminal may have been closed: the run is the same without
            for line in filter(None, lines):
                shown = fitted(line, self._console)
                self._console.print(shown, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        with self._lock:
            now = self._now()
            if self._figures is None or now >= self._figures_due:
                began = time.perf_counter()
                self._figures = measure(self._history, now=now)
                # Figures of a long run take a while: never more than a fiftieth of the time.
                self._figures_due = now + max(0.5, 50 * (time.perf_counter() - began))
            return panel(
                self._history,
                self._figures,
                now=now,
                began=self._began,
                tokens_per_second=self._tokens_per_second,
                width=self._console.width,
                height=self._console.height,
                keys=self._offered,
            )
