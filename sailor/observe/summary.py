"""``summary.json``: a run in one small document, for scripts and for the next run to compare with.

Drawn from the event log alone. Keys and their order are fixed; a key is never taken away and never
changes its meaning within one ``version``. ``docs/summary.md`` explains each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from sailor.data.blend import given
from sailor.observe.events import Event
from sailor.observe.history import PausePoint, RunHistory, replay
from sailor.observe.ledger import CONTROLLER, NodeLife
from sailor.observe.metrics import MFU_FORMULA, check_plans, measure

VERSION = 1


def summarise(events: Iterable[Event] | RunHistory) -> dict[str, Any]:
    """The summary of a log, or of the history drawn from it. Plain JSON values only."""
    history = events if isinstance(events, RunHistory) else replay(events)
    figures = measure(history)
    end = history.ends[-1] if history.ends else None
    lives = history.ledger.lives
    return {
        "version": VERSION,
        "run": history.run,
        "status": history.status,
        "why": end.get("why", "") if end else "",
        "exit_code": end.get("exit_code") if end and history.status != "running" else None,
        "model": history.start("model"),
        "parameters": history.start("parameters"),
        "cloud": history.start("cloud"),
        "steps": figures.steps,
        "total_steps": history.start("total_steps"),
        "tokens": figures.tokens,
        "sources": _sources(history),
        "loss_first": figures.loss_first,
        "loss_last": figures.loss_last,
        "eval_loss": figures.eval_last,
        "eval_loss_first": figures.eval_first,
        "wall_s": _round(figures.wall_s),
        "goodput": _round(figures.goodput),
        "good_s": _round(figures.good_s),
        "badput": {cause: _round(seconds) for cause, seconds in figures.badput_s.items()},
        "tokens_per_second": _round(figures.tokens_per_second),
        "stepping_tokens_per_second": _round(figures.stepping_tokens_per_second),
        "mfu": "n/a" if figures.mfu is None else _round(figures.mfu),
        "mfu_formula": MFU_FORMULA,
        "step_phases_s": {name: _round(seconds) for name, seconds in figures.phases_s.items()},
        "memory": [
            {**asdict(check), "ratio": _round(check.ratio)} for check in figures.memory
        ],
        "committed_steps": figures.committed_steps,
        "redone_steps": figures.redone_steps,
        "lost_samples": figures.samples.lost,
        "repeated_samples": figures.samples.repeated,
        "skipped_steps": sum(1 for point in history.kept.values() if point.skipped),
        "refusals": [
            {"t": _round(e.t), **{key: e.get(key) for key in ("step", "why", "action")}}
            for e in history.refusals
        ],
        "quarantined": list(history.quarantined),
        "durable_step": figures.durable_step,
        "generations": len(history.generations),
        "layouts": [
            {"generation": g.generation, "step": g.step, "layout": g.layout, "nodes": list(g.nodes)}
            for g in history.generations
        ],
        "pauses": [_pause(pause) for pause in history.pauses],
        "start_ups": [_pause(pause) for pause in history.start_ups],
        "snapshots": {
            "count": history.snapshots.count,
            "stall_s": _round(history.snapshots.stall_s),
            "bytes": history.snapshots.bytes,
            "copies": history.snapshots.copies,
            "copied_bytes": history.snapshots.copied_bytes,
        },
        "faults": [
            {"t": _round(f.t), **{key: f.get(key) for key in ("fault", "target", "at")}}
            for f in history.faults
        ],
        "starts": len(history.starts),
        "adoptions": history.adoptions,
        "cost_usd": _round(figures.cost_usd),
        "standbys": {
            "hours": _round(history.standbys.seconds(now=history.now) / 3600.0),
            "cost_usd": _round(history.standbys.cost(now=history.now)),
            "promoted": history.standbys.promoted,
        },
        "anchors": {
            "hours": _round(history.ledger.hours(now=history.now, role="anchor")),
            "cost_usd": _round(history.ledger.cost(now=history.now, role="anchor")),
            "copies": history.anchored.count,
            "step": history.anchored.step,
        },
        "controllers": {
            "hours": _round(history.ledger.hours(now=history.heard_at, role=CONTROLLER)),
            "cost_usd": _round(history.ledger.cost(now=history.heard_at, role=CONTROLLER)),
        },
        "usd_per_billion_tokens": _round(figures.usd_per_billion_tokens),
        "plan_vs_actual": [
            {
                "generation": check.generation,
                "layout": check.layout,
                "estimate_step_s": check.estimate_step_s,
                "actual_step_s": _round(check.actual_step_s),
                "ratio": _round(check.ratio),
                "steps": check.steps,
            }
            for check in check_plans(history)
        ],
        "released": bool(lives) and not history.ledger.unproven(),
        "machines": [_machine(life, now=history.heard_at) for life in lives],
        "deterministic": history.start("deterministic"),
        "config_digest": history.start("config_digest"),
        "command": history.start("command"),
        "missing_events": history.missing_events,
    }  # fmt: skip


def _sources(history: RunHistory) -> list[dict[str, Any]]:
    """What each source of the text has given by the last kept step."""
    told = history.start("sources") or []
    samples = max(history.kept, default=0) * (history.start("global_batch_size") or 0)
    length = history.start("sequence_length") or 0
    counts = given(samples, [source["share"] for source in told])
    return [
        {
            "name": source["name"],
            "share": _round(source["share"] / sum(other["share"] for other in told)),
            "samples": count,
            "tokens": count * length,
            "epochs": _round(count / source["sequences"]),
        }
        for source, count in zip(told, counts, strict=True)
    ]


def write_summary(path: Path | str, summary: dict[str, Any]) -> None:
    """Write the document so that a reader sees the old one or the new one, never half of either."""
    write_atomically(Path(path), msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file as one act that survives a power cut. Raises OSError and then leaves the old
    file as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _pause(pause: PausePoint) -> dict[str, Any]:
    document = {
        key: _round(value) if isinstance(value, float) else value
        for key, value in asdict(pause).items()
        if key != "t"
    }
    return {**document, "t": _round(pause.t)}


def _machine(life: NodeLife, *, now: float) -> dict[str, Any]:
    return {
        "node": life.node,
        "zone": life.zone,
        "machine_type": life.machine_type,
        "spot": life.spot,
        "requested_t": _round(life.requested_at),
        "came_t": _round(life.came_at),
        "joined_t": _round(life.joined_at),
        "gone_t": _round(life.gone_at),
        "lost": life.lost_cause,
        "taken": life.taken,
        "cost_usd": _round(life.cost(now=now)),
        "released": life.released_at is not None,
        "proof": life.proof,
    }


def _round(number: float | None) -> float | None:
    """Six digits after the point: microseconds, micro-dollars; enough, and short to read."""
    return None if number is None else round(number, 6)
