"""The picture of a run at one moment, for a terminal of any size: progress, figures, machines.

Drawn from a RunHistory and its figures; decides nothing, remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sailor.observe.changing import waiting_for
from sailor.observe.history import RunHistory
from sailor.observe.ledger import NodeLife
from sailor.observe.metrics import Metrics
from sailor.observe.outlook import outlook
from sailor.units import count, duration

GONE_S = 15.0  # a machine that has gone has its moment on the screen
_COLOURS = {"up": "green", "leaving": "yellow", "lost": "red"}
_WIDE = 100  # columns from which machines are shown with type and role
_TREND = 10  # steps whose mean is compared with that of as many before them


def panel(
    history: RunHistory,
    figures: Metrics,
    *,
    now: float,
    began: float,
    tokens_per_second: float,
    width: int = 110,
    height: int = 50,
    keys: Sequence[str] = (),
) -> RenderableType:
    """The whole panel. ``now`` and ``began`` (this start) are the log's seconds; ``width`` and
    ``height`` those of the terminal; ``keys`` how the keys that do something are offered."""
    above = [
        _flow(_headline(history, figures, now=now), width=width, style="bold"),
        _flow(_figures(history, figures, tokens_per_second=tokens_per_second), width=width),
        _flow(_safety(history, figures, now=now, began=began), width=width),
    ]
    below = [_flow(_badput(figures), width=width, style="dim", between=" | ")]
    if keys:
        below.append(_flow(keys, width=width, style="dim", between="  "))
    # The bar, the table's head, the line on machines that have no room, and the cursor's.
    taken = 4 + sum(len(text.plain.splitlines()) for text in (*above, *below))
    machines = _machines(history, now=now, width=width, most=max(1, height - taken))
    return Group(above[0], _bar(history, now=now, width=width), *above[1:], machines, *below)


def _headline(history: RunHistory, figures: Metrics, *, now: float) -> list[str]:
    total = int(history.start("total_steps", 0) or 0)
    point = history.last_step
    step = point.step if point else 0
    facts = [history.run or "-", str(history.start("model") or "-"), f"step {step:,} of {total:,}"]
    if total:
        facts.append(f"{step / total:.1%}")
    wait = waiting_for(history, now=now)
    ahead = outlook(history) if history.status == "running" and wait is None else None
    facts.append(
        f"ETA {duration(ahead.p50_s)} (P90 {duration(ahead.p90_s)})"
        if ahead
        else doing(history, now=now)
    )
    budget = history.start("budget_usd")
    if budget:
        facts.append(f"${figures.cost_usd:.2f} of ${budget:,.2f}")
    elif figures.cost_usd:
        facts.append(f"${figures.cost_usd:.2f}")
    return facts


def _bar(history: RunHistory, *, now: float, width: int) -> RenderableType:
    """Steps done; while a layout keeps training waiting, machines that are through with what it
    takes; before the first, machines that are there."""
    total, done = int(history.start("total_steps", 0) or 0), max(history.kept, default=0)
    if (wait := waiting_for(history, now=now)) is not None:
        total, done = wait.total, wait.done
    elif (members := history.ledger.members()) and not history.generations:
        total, done = len(members), len(history.ledger.present())
    bar = Table.grid()  # by itself a bar does not end its line
    bar.add_row(ProgressBar(total=max(total, 1), completed=done, width=width))
    return bar


def _figures(history: RunHistory, figures: Metrics, *, tokens_per_second: float) -> list[str]:
    point = history.last_step
    loss = "-" if point is None or point.loss is None else f"{point.loss:.3f}"
    facts = [f"loss {loss}{_trend(history)}"]
    facts.append("held-out " + ("-" if figures.eval_last is None else f"{figures.eval_last:.3f}"))
    if point is not None and point.learning_rate is not None:
        facts.append(f"lr {point.learning_rate:.2g}")
    facts.append(f"{count(tokens_per_second)} tok/s")
    facts.append("MFU " + ("n/a" if figures.mfu is None else f"{figures.mfu:.1%}"))
    facts.append(f"goodput {figures.goodput:.0%}")
    if figures.usd_per_billion_tokens:
        facts.append(f"${figures.usd_per_billion_tokens:,.2f} a billion tokens")
    return facts


def _safety(history: RunHistory, figures: Metrics, *, now: float, began: float) -> list[str]:
    """What is safe, and since when; on what it runs."""
    facts = ["durable: not yet"]
    if history.durable:
        age = _age(now - history.durable[-1].t)
        facts = [f"durable: step {history.durable[-1].step:,} ({age} ago)"]
    if history.save_asked:
        facts.append("saving")
    if history.generations:
        newest = history.generations[-1]
        facts.append(f"generation {newest.generation}: {newest.layout}")
    facts.append(clock(now - began))
    return facts


def _trend(history: RunHistory) -> str:
    """Where the loss is going: v down, ^ up."""
    newest = max(history.kept, default=0)
    losses = [
        point.loss
        for step in range(newest, newest - 2 * _TREND, -1)
        if (point := history.kept.get(step)) is not None and point.loss is not None
    ]
    if len(losses) < 2 * _TREND:
        return ""
    change = fmean(losses[:_TREND]) - fmean(losses[_TREND:])
    return " v" if change < 0 else " ^"


def _badput(figures: Metrics) -> list[str]:
    if not figures.wall_s:
        return []
    shares = [(what, seconds / figures.wall_s) for what, seconds in figures.badput_s.items()]
    return [
        ("badput  " if number == 0 else "") + f"{what.replace('_', ' ')} {share:.1%}"
        for number, (what, share) in enumerate(entry for entry in shares if entry[1] >= 0.001)
    ]


def _machines(history: RunHistory, *, now: float, width: int, most: int) -> Table:
    wide = width >= _WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("node", *(("machine",) if wide else ()), "zone", "state", "up", "$"):
        table.add_column(name, no_wrap=True)
    if wide:
        table.add_column("role", no_wrap=True, max_width=24)
    table.add_column("last event", no_wrap=True, overflow="ellipsis", ratio=1)
    roles = _roles(history)
    lives = [
        life
        for life in history.ledger.lives
        if life.gone_at is None or now - life.gone_at <= GONE_S
    ]
    # Those that something is happening to come first where not all have room.
    shown = lives
    if len(lives) > most:
        shown = sorted(lives, key=lambda life: (life.state() == "up", -life.news_at))[:most]
    for life in shown:
        state = life.state()
        since = life.serves_from
        up = "" if since is None else _age((life.gone_at or now) - since)
        role = ", ".join(roles.get(life.node, [])) if life.gone_at is None else ""
        table.add_row(
            life.node, *((life.machine_type,) if wide else ()), life.zone,
            Text(state, style=_COLOURS.get(state, "dim")), up, _price(life, now=now),
            *((role,) if wide else ()), _news(life, now=now),
        )  # fmt: skip
    if len(lives) > len(shown):
        table.add_row(f"and {len(lives) - len(shown)} more")
    return table


def _roles(history: RunHistory) -> dict[str, list[str]]:
    """Node -> its seats, "r0 s1 t0": replica, stage, place in the tensor-parallel group."""
    roles: dict[str, list[str]] = {}
    if history.generations and not history.parked:
        for rank in history.generations[-1].ranks:
            node = str(rank.get("worker", "")).partition("/")[0]
            seat = f"r{rank.get('replica')} s{rank.get('stage')} t{rank.get('tensor_rank')}"
            roles.setdefault(node, []).append(seat)
    return roles


def _price(life: NodeLife, *, now: float) -> str:
    """What it has cost, and by the hour, with what kind of machine it is; free ones say nothing."""
    if not life.price_per_hour:
        return "-"
    kind = "" if life.spot else " on-demand"
    return f"{life.cost(now=now):.2f} ({life.price_per_hour:.2f}/h{kind})"


def _news(life: NodeLife, *, now: float) -> str:
    return f"{life.news}, {_age(now - life.news_at)} ago" if life.news else ""


def doing(history: RunHistory, *, now: float) -> str:
    """What a run that does not step is at, in a few words."""
    if history.status != "running":
        return history.status
    if history.parked:
        return f"waiting for machines, {_age(history.now - history.parked_at)}"
    if history.stop_asked is not None:
        return "saving, then stopping"
    if (wait := waiting_for(history, now=now)) is not None:
        return str(wait)
    if not history.trains and not history.changing:
        here, asked = len(history.ledger.present()), len(history.ledger.members())
        return f"starting, {here} of {asked} machines are here" if asked else "planning"
    if not history.trains:
        return "building the first layout"
    return "changing the layout" if history.changing is not None else "training"


def _age(seconds: float) -> str:
    """Whole seconds, minutes, or hours: what changes four times a second distracts."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole / 3600:.1f} h"


def clock(seconds: float) -> str:
    """'01:23', or '2:01:23' from an hour on."""
    whole = max(0, int(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _flow(facts: Iterable[str], *, width: int, style: str = "", between: str = "   ") -> Text:
    """Facts side by side on as many lines as they need, none cut in two."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + len(between) + len(fact) <= width:
            lines[-1] += between + fact
        else:
            lines.append(fact)
    return Text("\n".join(lines), style=style, overflow="ellipsis", no_wrap=True)
