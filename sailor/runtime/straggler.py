"""Which machine holds the others up, and whether it is worth moving away from it. Pure.

In lockstep all ranks take as long as the slowest, so step times tell nothing of whom. What does is
how long each worker *works* in a step, its waits for others left out. A machine is slow when its
work takes longer than it used to (own score) and the others' does not (relative score): a busy hour
that slows everybody is no reason to move anybody. It must be so for several looks in a row, and is
no more suspected only when it is well below the mark: near the mark nothing flaps.

When nobody works longer but steps take longer, something between them is slow. Probes of each pair
then tell a bad link from a machine all of whose links are bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What counts as slow. Scores are ratios: 1.3 is 30 % longer."""

    slow: float = 1.3
    clear: float = 1.15
    window: int = 8  # steps a look is made of
    looks: int = 3  # in a row, each of as many new steps
    settle_steps: int = 50  # after a change of machines nobody is suspected
    margin: float = 2.0  # a move must gain this times its pause
    link: float = 3.0  # a link this much slower than the median one is bad


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One worker's part of one step: seconds at work, of the step's ``step_s`` in all."""

    node: str
    worker: str
    step: int
    busy_s: float
    step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """What is known of a generation's pace. ``usual`` is each worker's first full window.

    ``suspected``: node -> looks in a row that found it slow. ``seen`` is the newest step.
    """

    rules: Rules = field(default_factory=Rules)
    began: int = 0
    seen: int = 0
    looked: int = 0
    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    steps: tuple[float, ...] = ()
    usual: Mapping[str, float] = field(default_factory=dict)
    usual_step_s: float = 0.0
    nodes: Mapping[str, str] = field(default_factory=dict)  # worker -> node
    suspected: Mapping[str, int] = field(default_factory=dict)
    held_up: int = 0  # looks in a row with slow steps and nobody at work for longer


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A machine that holds the others up. Scores as of the last look."""

    node: str
    own: float
    relative: float
    gained_s_per_step: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldUp:
    """Steps take ``ratio`` times as long as they used to, and no machine works longer: probe."""

    ratio: float
    lost_s_per_step: float


def began(watch: Watch, *, step: int) -> Watch:
    """Another generation trains from ``step`` on: who does what has changed, start afresh."""
    return Watch(rules=watch.rules, began=step, seen=step, looked=step)


def observed(watch: Watch, samples: Iterable[Sample]) -> tuple[Watch, Slow | HeldUp | None]:
    """Take in new samples; every ``window`` steps look, and say who is slow beyond doubt."""
    rules = watch.rules
    recent, nodes = dict(watch.recent), dict(watch.nodes)
    steps, seen = watch.steps, watch.seen
    for sample in samples:
        if sample.step <= watch.began + 1:
            continue  # the first step of a generation is no measure
        recent[sample.worker] = (*recent.get(sample.worker, ()), sample.busy_s)[-rules.window :]
        nodes[sample.worker] = sample.node
        steps = (*steps, sample.step_s)[-rules.window * max(1, len(recent)) :]
        seen = max(seen, sample.step)
    watch = replace(watch, recent=recent, nodes=nodes, steps=steps, seen=seen)
    full = len(recent) > 1 and all(len(values) == rules.window for values in recent.values())
    if not full or seen - watch.looked < rules.window:
        return watch, None
    watch = replace(watch, looked=seen)
    now = {worker: median(values) for worker, values in recent.items()}
    if not watch.usual:
        return replace(watch, usual=now, usual_step_s=median(steps)), None
    return _look(watch, now)


def _look(watch: Watch, now: Mapping[str, float]) -> tuple[Watch, Slow | HeldUp | None]:
    rules = watch.rules
    own = {w: _ratio(now[w], watch.usual.get(w, now[w])) for w in now}
    worst = {
        node: max((own[w], w) for w in own if watch.nodes[w] == node)
        for node in dict.fromkeys(watch.nodes.values())
    }
    relative = {
        node: _ratio(score, median([own[w] for w in own if watch.nodes[w] != node] or [score]))
        for node, (score, _) in worst.items()
    }
    suspected = {}
    for node, (score, _) in worst.items():
        mark = rules.clear if node in watch.suspected else rules.slow
        if score >= mark and relative[node] >= mark:
            suspected[node] = watch.suspected.get(node, 0) + 1
    step_ratio = _ratio(median(watch.steps), watch.usual_step_s)
    held_up = watch.held_up + 1 if step_ratio >= rules.slow and not suspected else 0
    calm = {w: now[w] if own[w] < rules.clear else watch.usual.get(w, now[w]) for w in now}
    # What is usual follows slowly, and never to a machine's slowness.
    usual = {w: 0.9 * watch.usual.get(w, now[w]) + 0.1 * calm[w] for w in now}
    watch = replace(watch, suspected=suspected, held_up=held_up, usual=usual)
    if watch.seen - watch.began < rules.settle_steps:
        return watch, None
    certain = [node for node, looks in suspected.items() if looks >= rules.looks]
    if certain:
        node = max(certain, key=lambda name: relative[name])
        gained = max(0.0, median(watch.steps) - watch.usual_step_s)
        return watch, Slow(
            node=node, own=worst[node][0], relative=relative[node], gained_s_per_step=gained
        )
    if held_up >= rules.looks:
        lost = median(watch.steps) - watch.usual_step_s
        return replace(watch, held_up=0), HeldUp(ratio=step_ratio, lost_s_per_step=lost)
    return watch, None


def pays(gained_s_per_step: float, *, steps_left: int, pause_s: float, margin: float) -> bool:
    """Whether a move gains more than a margin times its pause over what is left of the run."""
    return gained_s_per_step * steps_left > margin * pause_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What probes say: links that are bad, and machines all of whose links are."""

    nodes: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


def judge_links(probes: Mapping[tuple[str, str], float], *, rules: Rules) -> Links:
    """Tell bad links from bad machines. ``probes``: (one, other) -> seconds of the same transfer.

    A machine is to blame when most of its links are bad and most of the others' are not; a pair is,
    when neither of its machines is. With two machines nobody can tell: the pair is named.
    """
    if len(probes) < 1:
        return Links(nodes=(), pairs=())
    usual = median(probes.values())
    if len(probes) == 1:
        return Links(nodes=(), pairs=())
    least = min(probes.values())
    reference = min(usual, 2.0 * least)  # where most links are bad the median is no measure
    bad = {pair for pair, seconds in probes.items() if seconds > rules.link * reference}
    names = sorted({name for pair in probes for name in pair})
    count = {name: sum(name in pair for pair in probes) for name in names}
    worst = {name: sum(name in pair for pair in bad) for name in names}
    nodes = tuple(name for name in names if count[name] > 1 and 2 * worst[name] > count[name])
    if 2 * len(nodes) > len(names):
        nodes = ()  # everybody's links are bad: that is the network, and nobody's fault
    pairs = tuple(sorted(pair for pair in bad if not set(pair) & set(nodes)))
    return Links(nodes=nodes, pairs=pairs)


def _ratio(value: float, usual: float) -> float:
    return value / usual if usual > 0 else 1.0
