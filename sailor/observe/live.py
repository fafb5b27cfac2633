"""How a run shows itself while it goes on: plain lines, a live panel, or JSON events.

A view subscribes to the event log and draws what it hears; it decides nothing, and a run without a
view is the same run. What it says is in ``words``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sailor.observe import words
from sailor.observe.events import Event, EventLog
from sailor.observe.history import RunHistory, replay
from sailor.observe.metrics import Metrics, measure
from sailor.units import count, duration

LINE_EVERY_S = 5.0
_LINE_EVERY_SHARE = 0.1
_MARKS = {"!": "red", "+": "green", ">": "cyan", "~": "magenta", ".": "default"}


class View(Protocol):
    """Something that shows a run. ``close`` says how it ended and lets go of the log."""

    def see(self, event: Event) -> None:
        """Take the next event."""
        ...

    def close(self) -> None:
        """Say how it ended. Harmless when closed already."""
        ...


def open_view(
    mode: str,
    *,
    console: Console,
    events: EventLog,
    past: Iterable[Event] = (),
    folder: Path | str | None = None,
) -> View:
    """Show a run from now on. ``mode``: auto, live, plain, json or quiet.

    auto is live on a terminal that can redraw, else plain. ``past`` is what the log held before
    this start. ``folder`` is the run folder, for the line that says where the report is.
    """
    history = replay(past)
    if mode == "auto":
        mode = "live" if console.is_terminal and not console.is_dumb_terminal else "plain"
    view: View
    match mode:
        case "live":
            view = LiveView(console, history, folder=folder, now=lambda: events.t)
        case "plain":
            view = PlainView(console, history, folder=folder)
        case "json":
            view = JsonView(console)
        case "quiet":
            return QuietView()
        case _:
            raise ValueError(f"no view is called {mode}")
    events.subscribe(view.see)
    return view


class QuietView:
    """Shows nothing: for output=json, where another document goes to standard output."""

    def see(self, event: Event) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class JsonView:
    """Every event as one line of JSON, as it stands in the log."""

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

    def __init__(
        self, console: Console, history: RunHistory, *, folder: Path | str | None = None
    ) -> None:
        self._console = console
        self._history = history
        self._folder = folder
        self._began = history.now
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
            for line in words.header(self._history):
                self._print(line)
        elif event.kind == "plan_chosen" and words.is_news(self._history):
            self._print(words.plan_line(event))
        elif event.kind == "step":
            self._step(event)
        elif told := words.tell(event, self._history):
            self._print(f" {_clock(event.t - self._began)}  {told}")
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
            self._print(f" {_clock(event.t - self._began)}  {text}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveView:
    """Notable events scroll by; below them a panel with progress, figures and machines is redrawn.

    ``now`` gives the log's time, so that clocks on the panel move between events. Drawn by a
    thread of its own, which only reads.
    """

    def __init__(
        self,
        console: Console,
        history: RunHistory,
        *,
        now: Callable[[], float],
        folder: Path | str | None = None,
    ) -> None:
        self._console = console
        self._history = history
        self._now = now
        self._folder = folder
        self._began = history.now
        self._pace = Pace(history)
        self._pace_at = 0.0
        self._tokens_per_second = 0.0
        self._figures: Metrics | None = None
        self._figures_due = 0.0
        self._lock = threading.Lock()
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )
        self._live.start()
        self._closed = False

    def see(self, event: Event) -> None:
        """Take it in, and let notable ones scroll by above the panel."""
        with self._lock:
            self._history.apply(event)
            lines = []
            if event.kind == "run_started":
                self._began = event.t
                self._pace.restart()
                lines = words.header(self._history)
            elif event.kind == "plan_chosen" and words.is_news(self._history):
                lines = [words.plan_line(event)]
            elif line := words.tell(event, self._history):
                lines = [f" {_clock(event.t - self._began)}  {line}"]
            if event.kind == "step" and event.t - self._pace_at >= 1.0:
                self._pace_at = event.t
                self._tokens_per_second = self._pace.take()
        for text in lines:
            mark = text.strip().partition("  ")[2][:1]
            self._console.print(Text(text, style=_MARKS.get(mark, "default")), soft_wrap=True)

    def close(self) -> None:
        """Take the panel away and print how it ended."""
        if self._closed:
            return
        self._closed = True
        self._live.stop()
        for line in words.result(self._history, folder=self._folder):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

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
            )


def panel(
    history: RunHistory, figures: Metrics, *, now: float, began: float, tokens_per_second: float
) -> RenderableType:
    """The picture of a run at one moment: progress, figures, machines."""
    total = int(history.start("total_steps", 0))
    point = history.last_step
    step = point.step if point else 0
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    left = figures.good_s / step * (total - step) if step else None
    ends = f"about {duration(left)} left" if left else _doing(history)
    head.add_row(
        ProgressBar(total=max(total, 1), completed=step), f"step {step:,} of {total:,}   {ends}"
    )
    facts = Table.grid(padding=(0, 3))
    loss = "-" if point is None or point.loss is None else f"{point.loss:.3f}"
    held_out = "-" if figures.eval_last is None else f"{figures.eval_last:.3f}"
    saved = f"step {figures.durable_step}" if history.durable else "not yet"
    facts.add_row(
        f"loss {loss}",
        f"held-out {held_out}",
        f"{count(tokens_per_second)} tok/s",
        f"goodput {figures.goodput:.0%}",
        f"saved {saved}",
        f"${figures.cost_usd:.2f}" if figures.cost_usd else "",
        _clock(now - began),
    )
    return Group(head, facts, _machines(history, now=now))


def _machines(history: RunHistory, *, now: float) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("node", "machine", "zone", "state", "up", "role"):
        table.add_column(name)
    roles: dict[str, list[str]] = {}
    if history.generations and not history.parked:
        for rank in history.generations[-1].ranks:
            node = str(rank.get("worker", "")).partition("/")[0]
            roles.setdefault(node, []).append(
                f"r{rank.get('replica')} s{rank.get('stage')} t{rank.get('tensor_rank')}"
            )
    for life in history.ledger.lives:
        if life.gone_at is not None and now - life.gone_at > 15.0:
            continue  # it had its moment on the screen
        state = life.state()
        colour = {"up": "green", "leaving": "yellow", "lost": "red"}.get(state, "dim")
        up = "" if life.joined_at is None else duration((life.gone_at or now) - life.joined_at)
        role = ", ".join(roles.get(life.node, [])) if life.gone_at is None else ""
        table.add_row(life.node, life.machine_type, life.zone, Text(state, style=colour), up, role)
    return table


def _doing(history: RunHistory) -> str:
    if history.parked:
        return "waiting for machines"
    return "starting" if history.status == "running" else history.status


def _clock(seconds: float) -> str:
    """'01:23', or '2:01:23' from an hour on."""
    whole = max(0, int(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
