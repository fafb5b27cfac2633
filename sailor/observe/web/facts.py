"""A run as the page shows it: one document of plain JSON values, drawn from its history.

The figures are those of the live view and the report (``metrics``), the sentences those of
``words``. The page draws what it is given and works nothing out but the clocks that move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sailor.observe import words
from sailor.observe.changing import waiting_for
from sailor.observe.events import Event
from sailor.observe.history import Generation, RunHistory
from sailor.observe.ledger import NodeLife
from sailor.observe.metrics import Metrics, kept_steps, measure, thinned
from sailor.observe.outlook import outlook
from sailor.observe.picture import CAUSES
from sailor.units import count, duration

MOST_LINES = 200  # of what happened
MOST_NODES = 200  # of the table and the picture: more would not be seen
_MOST_LAYOUTS = 200
_MOST_POINTS = 300
_SHOWN_AFTER_END_S = 60.0  # for which a machine that is gone keeps its place on the page
_PACE_OVER_S = 10.0  # of the newest steps, for tokens a second "now"


@dataclass(kw_only=True, slots=True)
class Story:
    """The history of a run and the sentences on it, kept up event by event."""

    history: RunHistory = field(default_factory=RunHistory)
    lines: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    last_words: dict[str, tuple[float, str]] = field(default_factory=dict)  # node -> its newest

    def apply(self, event: Event) -> None:
        """Take the next event of the log."""
        self.history.apply(event)
        line = words.tell(event, self.history)
        if event.kind == "run_started" and len(self.history.starts) > 1:
            line = ". the run was started again"
        elif event.kind == "run_ended":
            why = f" ({event['why']})" if event.get("why") else ""
            line = f". the run has ended: {event['end']}{why}"
        if line:
            self.lines.append((round(event.t, 1), line[0], line[2:]))
        if isinstance(node := event.get("node"), str):
            text = line[2:] if line else _PLAIN.get(event.kind, "")
            if text:
                self.last_words[node] = (round(event.t, 1), text.removeprefix(f"{node} "))


_PLAIN = {
    "node_requested": "asked for", "node_started": "rented, starting", "node_joined": "joined",
    "node_released": "given back",
}  # fmt: skip


def facts(story: Story, *, now: float, alive: bool = True) -> dict[str, Any]:
    """The document as of ``now`` (the log's seconds). ``alive``: somebody has the run open.

    A run that reads "running" and is nobody's was killed, and is called so.
    """
    history = story.history
    figures = measure(history, now=now)
    status = history.status if alive or history.status != "running" else "killed"
    point = history.last_step
    total = int(history.start("total_steps", 0))
    step = point.step if point else 0
    began = history.starts[0].t if history.starts else 0.0
    durable = history.durable[-1] if history.durable else None
    return {
        "run": history.run,
        "status": status,
        "moving": status == "running",
        "now": now,
        "elapsed_s": max(0.0, now - began),
        "model": str(history.start("model", "")),
        "parameters": count(history.start("parameters") or 0),
        "step": step,
        "total_steps": total,
        "doing": _doing(history, figures, status=status, step=step, total=total, now=now),
        "tiles": _tiles(history, figures, now=now),
        "durable": None if durable is None else {"step": durable.step, "t": durable.t},
        "time": _time(figures),
        "nodes": [
            _node(life, story, now=now)
            for life in history.ledger.lives
            if _is_shown(life, now=now, moving=status == "running")
        ][-MOST_NODES:],
        "num_nodes": len(history.ledger.lives),
        "layouts": _layouts(history.generations),
        "pauses": [
            {"t": p.t, "seconds": p.total_s, "cause": p.cause} for p in history.pauses[-MOST_LINES:]
        ],
        "loss": [
            [round(x), round(y, 4)]
            for x, y in thinned(
                [(float(p.step), p.loss) for p in kept_steps(history) if p.loss is not None],
                most=_MOST_POINTS,
            )
        ],
        "held_out": [[e.step, round(e.loss, 4)] for _, e in sorted(history.evals.items())][-100:],
        "lines": list(story.lines),
    }  # fmt: skip


def pace(history: RunHistory) -> float:
    """Kept tokens a second over the newest steps, about ten seconds of them; 0 before there are
    two."""
    tokens, newest, oldest = 0, 0.0, 0.0
    for number, step in enumerate(sorted(history.kept, reverse=True)):
        point = history.kept[step]
        newest = point.t if number == 0 else newest
        oldest = point.t - point.seconds
        tokens += point.tokens
        if newest - oldest >= _PACE_OVER_S:
            break
    return tokens / (newest - oldest) if newest > oldest else 0.0


def _doing(
    history: RunHistory, figures: Metrics, *, status: str, step: int, total: int, now: float
) -> str:  # fmt: skip
    if status != "running":
        return {"done": "reached its last step", "killed": "killed without a word"}.get(
            status, status
        )
    if history.parked:
        return "waiting for machines"
    if history.stop_asked is not None:
        return "stopping, and saving"
    if (wait := waiting_for(history, now=now)) is not None:
        return str(wait)
    if not history.trains or not step:
        return "starting"
    if (ahead := outlook(history)) is None:
        return f"{duration(figures.good_s / step * (total - step))} of steps left"
    return f"about {duration(ahead.p50_s)} left, nine chances in ten {duration(ahead.p90_s)}"


def _tiles(history: RunHistory, figures: Metrics, *, now: float) -> list[list[str]]:
    """(name, value) of the figures at the top."""
    point = history.last_step
    budget = history.start("budget_usd")
    spent = f"${figures.cost_usd:.2f}"
    tiles = [
        ["loss", "-" if point is None or point.loss is None else f"{point.loss:.3f}"],
        ["held-out", "-" if figures.eval_last is None else f"{figures.eval_last:.3f}"],
        ["tokens a second", count(pace(history)) if history.kept else "-"],
        ["MFU", "n/a" if figures.mfu is None else f"{figures.mfu:.1%}"],
        ["goodput", f"{figures.goodput:.1%}"],
        ["spent", f"{spent} of ${budget:g}" if budget else spent],
        ["pauses", f"{len(history.pauses)}"],
        ["steps done again", f"{figures.redone_steps}"],
    ]
    if figures.usd_per_billion_tokens:
        tiles.append(["$ a billion tokens", f"{figures.usd_per_billion_tokens:.2f}"])
    return tiles


def _time(figures: Metrics) -> list[dict[str, Any]]:
    """Where the time went, good work first; shares add up to 1."""
    wall = figures.wall_s or 1.0
    parts = [("c-good", "kept steps", figures.good_s)]
    parts += [
        (style, name, figures.badput_s[cause])
        for cause, (name, style) in CAUSES.items()
        if cause in figures.badput_s
    ]
    return [
        {"style": style, "name": name, "share": s / wall, "seconds": duration(s)}
        for style, name, s in parts
    ]


def _is_shown(life: NodeLife, *, now: float, moving: bool) -> bool:
    return not moving or life.gone_at is None or now - life.gone_at < _SHOWN_AFTER_END_S


def _node(life: NodeLife, story: Story, *, now: float) -> dict[str, Any]:
    end = now if life.gone_at is None else life.gone_at
    t, text = story.last_words.get(life.node, (life.requested_at, ""))
    return {
        "node": life.node,
        "zone": life.zone,
        "machine": life.machine_type,
        "terms": "spot" if life.spot else "on-demand",
        "state": life.state(),
        "up": "" if life.serves_from is None else duration(max(0.0, end - life.serves_from)),
        "price": f"${life.price_per_hour:.2f}/h",
        "cost": f"${life.cost(now=now):.2f}",
        "last": {"t": t, "text": text},
    }


def _layouts(generations: list[Generation]) -> list[dict[str, Any]]:
    """The newest layouts, each with its seats: machine -> what its GPUs do."""
    return [
        {
            "generation": g.generation,
            "t": g.t,
            "step": g.step,
            "layout": g.layout,
            "nodes": list(g.nodes),
            "seats": [
                [str(rank.get("worker", "")), rank.get("replica", 0), rank.get("stage", 0),
                 rank.get("tensor_rank", 0)]
                for rank in g.ranks
            ],
        }
        for g in generations[-_MOST_LAYOUTS:]
    ]  # fmt: skip
