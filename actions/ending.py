"""What a run's end is called when it was not the one wished for: E701 and E801, with a way on.

A run that was stopped by its user or by a limit needs no error: its last lines say it.
"""

from __future__ import annotations

from actions.arguments import PROGRAM
from sailor.config import Config, Guard
from sailor.errors import Diverged, Interrupted, SailorError
from sailor.observe.history import RunHistory
from sailor.runtime.state import End


def error_of(end: End, *, why: str, history: RunHistory, config: Config) -> SailorError | None:
    """The error that a run's end stands for, or None. ``history`` is of the run's whole log."""
    match end:
        case End.diverged:
            return _diverged(why, history=history, config=config)
        case End.failed:
            return _failed(why, history=history)
    return None


def _diverged(why: str, *, history: RunHistory, config: Config) -> Diverged:
    refusal = history.refusals[-1] if history.refusals else None
    step = refusal["step"] if refusal is not None else "unknown"
    kept = [history.kept[step] for step in sorted(history.kept)[-3:]]
    before = ", ".join(f"step {p.step} {p.loss:.3f}" for p in kept if p.loss is not None)
    name = f"run.name={history.run}-2"
    fixes = [f"optim.learning_rate={config.optim.learning_rate / 2:g} {name}"]
    if config.train.guard is Guard.stop:
        fixes.append(f"train.guard=rollback {name}   goes back and computes such a step again")
    if config.train.guard is not Guard.skip:
        fixes.append(f"train.guard=skip {name}   leaves such a step out")
    return Diverged(
        f"training diverged at step {step}", code="E701",
        why=why + (f"\nlosses before it: {before}" if before else "")
        + f"\ndurable: step {_durable(history)}",
        where=f"run {history.run}, generation {_generation(history)}", fix="\n".join(fixes),
    )  # fmt: skip


def _failed(why: str, *, history: RunHistory) -> SailorError:
    """75 where this start has got further, for the same command will again; else 1."""
    began = history.starts[-1].t if history.starts else 0.0
    further = any(point.t > began for point in history.kept.values())
    last = history.last_step
    kind = Interrupted if further else SailorError
    return kind(
        "training could not go on", code="E801",
        why=f"{why}\nnewest step {last.step if last else 0}, durable: step {_durable(history)}",
        where=f"run {history.run}, generation {_generation(history)}; the logs/ of its folder",
        fix=f"{PROGRAM} action=debug.bundle run={history.run}   packs logs and events to look at"
        + ("\nthe same command again goes on from the durable step" if further else ""),
    )  # fmt: skip


def _durable(history: RunHistory) -> int:
    return history.durable[-1].step if history.durable else 0


def _generation(history: RunHistory) -> int:
    return history.generations[-1].generation if history.generations else 0
