"""Invariants I1 to I7 of docs/architecture.md, recomputed from nothing but a run's event log.

Written apart from sailor/observe on purpose: the figures there are checked against these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
import yaml

from sailor.checkpoint.files import place
from sailor.checkpoint.store import Reader, newest, verify
from sailor.observe.events import Event

PARTS = ("detect_s", "decide_s", "prepare_s", "copy_s", "switch_s", "first_step_s", "parked_s")
# Parts are differences of one clock, added up in another order than the total was.
ROUNDING_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The history that counts: each step by the generation that kept it, and what was set back."""

    steps: dict[int, Event]
    set_back: dict[int, int]  # generation -> logged executions of steps that its start undid

    @property
    def losses(self) -> dict[int, float]:
        """Step -> training loss, to the last bit."""
        return {step: event["loss"] for step, event in self.steps.items()}


def kept(log: Sequence[Event]) -> Kept:
    """Replay a log: a generation that starts after step s undoes what was done beyond s."""
    steps: dict[int, Event] = {}
    set_back: Counter[int] = Counter()
    seen: set[tuple[int, int]] = set()
    generation, start = 0, 0
    for event in log:
        if event.kind == "generation_started":
            generation, start = event.generation, event["step"]
            for step in [s for s in steps if s > start]:
                del steps[step]
                set_back[generation] += 1
        if event.kind == "step" and event["num_samples"]:
            key = (event.generation, event["step"])
            assert key not in seen, f"step {key[1]} of generation {key[0]} is logged twice"
            seen.add(key)
            if event.generation < generation and event["step"] > start:
                set_back[generation] += 1  # a late word of what was undone
            else:
                steps[event["step"]] = event
    return Kept(steps=dict(sorted(steps.items())), set_back=dict(set_back))


def check_one_owner(log: Sequence[Event]) -> None:
    """I1: generations only grow, steps follow one another, each kept by exactly one of them."""
    starts = {e.generation: e["step"] for e in log if e.kind == "generation_started"}
    order = [e.generation for e in log if e.kind == "generation_started"]
    assert order == sorted(set(order)), f"generations began in the order {order}"
    for generation, start in starts.items():
        done = sorted(e["step"] for e in log if e.kind == "step" and e.generation == generation)
        done = [step for step in done if step > 0]
        assert done == list(range(start + 1, start + 1 + len(done))), (
            f"generation {generation} began after step {start} and did {done}"
        )
    history = kept(log).steps
    assert list(history) == list(range(1, len(history) + 1))
    owners = [event.generation for event in history.values()]
    assert owners == sorted(owners), f"kept steps belong to generations {owners}"


def unheard(log: Sequence[Event]) -> int:
    """Steps that were done while there was no controller to hear, and to compare, anything."""
    steps, newest = 0, 0
    for event in log:
        if event.kind == "adopted":
            steps += max(0, event["step"] - newest)
        if event.kind in ("step", "adopted"):
            newest = max(newest, event["step"])
    return steps


def enough(steps: int) -> int:
    """Of so many steps, how many must have been compared for I2 to mean something. What is compared
    are snapshots, and how often there is room for one depends on how busy the machine is."""
    return max(1, steps // 20)


def check_replicas(log: Sequence[Event], *, at_least: int) -> None:
    """I2: all owners of every box had the same bytes, at as many steps as could be compared."""
    assert [e.fields for e in log if e.kind == "replicas_differ"] == []
    compared = {e["step"] for e in log if e.kind == "replicas_agree"}
    assert len(compared) >= at_least, f"replicas were compared after {len(compared)} steps only"


def check_samples(log: Sequence[Event], *, batch: int) -> None:
    """I3: kept steps read each sample of the reference order once. I4: always the same number."""
    for step, event in kept(log).steps.items():
        assert event["first_sample"] == (step - 1) * batch
        assert event["num_samples"] == batch


def check_same_training(log: Sequence[Event], reference: Sequence[Event]) -> None:
    """I3 and I4 by their effect: every step's loss, gradient norm and learning rate are those of
    the undisturbed run, to the last bit. A sample more, less or twice would show."""
    expected = kept(reference).steps
    for step, event in kept(log).steps.items():
        for name in ("loss", "grad_norm", "learning_rate", "tokens"):
            assert event[name] == expected[step][name], f"{name} of step {step}"


def check_waits(log: Sequence[Event], *, longest_s: float) -> None:
    """I5: no wait went past the limits it was given, which are all below ``longest_s``."""
    for pause in (e for e in log if e.kind == "pause"):
        for part in PARTS:
            assert pause[part] < longest_s, f"{part} of generation {pause.generation}"


def check_pauses(log: Sequence[Event]) -> None:
    """I7: every change of layout that trained on has its pause, and its parts are all of it.

    Of a generation whose only steps became known when it had been halted, the pause of a later one
    that reaches back over it is the measure.
    """
    pauses = {e.generation: e for e in log if e.kind == "pause"}
    trained = {e.generation for e in log if e.kind == "step"}
    began = {e.generation: e.t for e in log if e.kind == "generation_started"}
    reach = [(e.generation, e.t - e["total_s"]) for e in pauses.values()]
    missing = [
        g
        for g, t in began.items()
        if g in trained and g not in pauses and not any(h > g and since <= t for h, since in reach)
    ]
    assert not missing, f"no pause was measured for generations {missing}"
    for generation, pause in pauses.items():
        total = sum(pause[part] for part in PARTS)
        assert all(pause[part] >= 0 for part in PARTS), pause.fields
        assert abs(total - pause["total_s"]) < ROUNDING_S, (
            f"generation {generation}: parts sum to {total}, total is {pause['total_s']}"
        )


def redone(log: Sequence[Event]) -> int:
    """Step executions that were done again, by the larger of two witnesses: the log, and the
    controller, who knows of steps whose record died with its node."""
    told = {e.generation: e["steps_redone"] for e in log if e.kind == "pause"}
    seen = kept(log).set_back
    for generation, steps in told.items():
        assert steps <= seen.get(generation, 0) + 1, "at most one step can be unknown to the log"
    return sum(max(told.get(g, 0), seen.get(g, 0)) for g in told.keys() | seen.keys())


def weights(folder: Path, *, step: int | None = None) -> dict[str, str]:
    """Box -> digest of weight and both moments in the newest durable checkpoint, read in full."""
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    directory = place(saved["checkpoint"]["directory"] or str(folder / "checkpoints"))
    checkpoint = newest(directory)
    assert checkpoint is not None, f"no durable checkpoint in {directory}"
    assert step is None or checkpoint.step == step
    assert verify(directory, checkpoint.step) == []
    reader = Reader(checkpoint.path)
    return {
        box: xxhash.xxh3_64_hexdigest(np.concatenate([a.ravel() for a in reader.read(box)]))
        for box in sorted(checkpoint.boxes)
    }


def safe_step(log: Sequence[Event]) -> int:
    """The newest step of the newest generation in the log that every rank has copied to a peer:
    what the loss of any one node cannot undo. Where the generation began when there is none."""
    started = [event for event in log if event.kind == "generation_started"][-1]
    copied: Counter[int] = Counter()
    for event in log:
        if event.kind == "snapshot_copied" and event.generation == started.generation:
            copied[event["step"]] += event["workers"]
    safe = [step for step, workers in copied.items() if workers >= started["world_size"]]
    return max(safe, default=started["step"])
