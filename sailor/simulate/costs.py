"""What everything costs in the simulated world: seconds, bytes per second, and where they are from.

Two sheets are kept apart. ``measured`` takes the times of a real run's events: right for this
computer and this model. ``stated`` has figures for machines of a cloud, each with its source: what
the runtime does itself (deciding, flipping groups) is as measured here, what depends on the cloud
(boot, links, building groups on GPUs) is published elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import fmean, median

from sailor.observe.history import PausePoint, RunHistory


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """The parts of one kind of interruption, as the ``pause`` event has them. Seconds.

    ``gap_s`` passes between Go and the beginning of the first step; that step takes ``extra_s``
    longer than later ones. ``hidden_s`` passes while the old generation trains.
    """

    hidden_s: float = 0.0
    decide_s: float = 0.0
    prepare_s: float = 0.0
    copy_s: float = 0.0
    switch_s: float = 0.0
    gap_s: float = 0.0
    extra_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """A sheet of costs. Seconds; bandwidths in bytes per second of one machine.

    ``sources`` says of each figure where it is from.
    """

    boot_s: float
    launch_s: float  # before the first machine is asked for
    detect_s: float  # from a machine's death to knowing of it
    notice_delay_s: float  # from a notice to knowing of it
    start: Pauses
    planned: Pauses
    unplanned: Pauses
    link_bytes_per_second: float
    storage_bytes_per_second: float
    snapshot_stall_s: float = 0.0  # a step's wait for a snapshot in CPU memory
    persist_stall_s: float = 0.0  # a step's wait for a durable checkpoint, written beside it
    between_steps_s: float = 0.0
    save_s: float = 0.0  # the last checkpoint
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("boot_s", "launch_s", "detect_s", "notice_delay_s", "snapshot_stall_s",
                     "persist_stall_s", "between_steps_s", "save_s"):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a negative duration")
        if min(self.link_bytes_per_second, self.storage_bytes_per_second) <= 0:
            raise ValueError("a bandwidth has to be more than nothing")


FREE = Costs(
    boot_s=0.0, launch_s=0.0, detect_s=0.0, notice_delay_s=0.0,
    start=Pauses(), planned=Pauses(), unplanned=Pauses(),
    link_bytes_per_second=inf, storage_bytes_per_second=inf,
    sources={"all": "the bound: nothing costs anything"},
)  # fmt: skip


def stated(*, num_nodes: int, link_bytes_per_second: float = 0.896e9) -> Costs:
    """Costs on a cloud's machines, for a job on about ``num_nodes`` of them.

    Building communication groups is what grows: Parcae measured 0.0393 s a group on p3 machines
    when one leaves and 0.5 s when one joins; its dp x pp layouts have dp + pp + 1 + dp pp groups,
    n + 2 sqrt(n) + 1 for a square one of n machines. TrainMover connects what changes in 7 s
    whatever the size, so that is the most.
    """
    groups = num_nodes + 2.0 * sqrt(num_nodes) + 1.0
    connect_s = min(0.24 + 0.0393 * groups, 7.0)
    build_s = min(6.6 + 0.5 * groups, 51.0)
    return Costs(
        boot_s=45.0,
        launch_s=0.0,
        detect_s=5.0,
        notice_delay_s=5.0,
        start=Pauses(decide_s=1.0, prepare_s=build_s, switch_s=0.1, extra_s=44.0),
        planned=Pauses(hidden_s=build_s, decide_s=0.1, switch_s=connect_s),
        unplanned=Pauses(decide_s=1.0, prepare_s=connect_s, switch_s=0.1),
        link_bytes_per_second=link_bytes_per_second,
        storage_bytes_per_second=0.5e9,
        snapshot_stall_s=0.2,
        persist_stall_s=0.2,
        save_s=10.0,
        sources={
            "boot_s": "instance creation in the Oobleck artifact's simulator (SOSP'23)",
            "detect_s": "runtime.silence: a silent machine counts as lost after 5 s",
            "notice_delay_s": "AWS asks to poll for the notice every 5 s",
            "start.prepare_s, planned.hidden_s": "Parcae (NSDI'24): rendezvous 6.6 s, 0.5 s a "
            "group; at most 51 s, all groups of 64 A100 (TrainMover, OSDI'26)",
            "start.extra_s": "the first iteration of GPT-10B takes 44 s longer (TrainMover)",
            "planned.switch_s, unplanned.prepare_s": "Parcae: 0.0393 s a group on p3 machines and "
            "0.24 s; at most 7 s, the change at 64 A100 (TrainMover)",
            "decide_s": "planner and choice of sources within 1 s (benchmarks.planner)",
            "switch_s": "flipping groups: under 0.1 s in local runs",
            "link_bytes_per_second": "default: 1 GiB between two p3 machines in 1.198 s (Parcae)",
            "storage_bytes_per_second": "published systems sweep 0.25 to 2 GB/s per GPU",
            "snapshot_stall_s": "DLRover reports 0.2 s for a 65 B model",
            "persist_stall_s": "as snapshot_stall_s: it is written from the snapshot",
        },
    )


def measured(history: RunHistory) -> Costs:
    """The costs of a run, from its events; what it did not go through is taken from what it did.

    Raises ValueError when the log has no step.
    """
    steps = sorted(history.kept.values(), key=lambda point: point.step)
    if not steps:
        raise ValueError("the log has no step to measure")
    first = history.starts[0].t
    lives = history.ledger.members()
    requested = min((life.requested_at for life in lives), default=first)
    boots = [life.joined_at - life.requested_at for life in lives if life.joined_at is not None]
    usual = _usual_seconds(history)
    groups: dict[str, list[PausePoint]] = {"planned": [], "unplanned": []}
    for pause in history.pauses:
        groups["planned" if pause.planned else "unplanned"].append(pause)
    start = _pauses(history, history.start_ups, usual)
    planned = _pauses(history, groups["planned"] or groups["unplanned"], usual)
    unplanned = _pauses(history, groups["unplanned"] or groups["planned"], usual)
    detects = [pause.detect_s for pause in groups["unplanned"]]
    stall, begun = (
        seconds / max(1, len(steps))
        for seconds in (history.snapshots.stall_s, history.snapshots.begun_s)
    )
    return Costs(
        boot_s=median(boots) if boots else 0.0,
        launch_s=max(0.0, requested - first),
        detect_s=fmean(detects) if detects else 0.0,
        notice_delay_s=0.0,
        start=start,
        planned=planned,
        unplanned=unplanned,
        link_bytes_per_second=inf,  # copying is in copy_s as it was
        storage_bytes_per_second=inf,
        snapshot_stall_s=stall,
        between_steps_s=max(0.0, _gap_seconds(history) - begun),
        save_s=_save_seconds(history),
        sources={"all": f"events of run {history.run}"},
    )


def usual_step_seconds(history: RunHistory) -> dict[int, float]:
    """Machines in use -> mean seconds of a step, the first of each generation left out, and
    the wait for a snapshot in it."""
    machines = {g.generation: len(g.nodes) for g in history.generations}
    by_machines: dict[int, list[float]] = {}
    firsts = _first_steps(history)
    for point in history.kept.values():
        if (point.generation, point.step) not in firsts and point.generation in machines:
            by_machines.setdefault(machines[point.generation], []).append(
                point.seconds - point.phases.get("snapshot", 0.0)
            )
    return {number: fmean(times) for number, times in sorted(by_machines.items())}


def _usual_seconds(history: RunHistory) -> dict[int, float]:
    """Generation -> mean seconds of its steps but the first."""
    by_machines = usual_step_seconds(history)
    overall = fmean(by_machines.values()) if by_machines else 0.0
    return {g.generation: by_machines.get(len(g.nodes), overall) for g in history.generations}


def _first_steps(history: RunHistory) -> set[tuple[int, int]]:
    firsts: dict[int, int] = {}
    for point in history.kept.values():
        firsts[point.generation] = min(point.step, firsts.get(point.generation, point.step))
    return set(firsts.items())


def _pauses(
    history: RunHistory, pauses: Sequence[PausePoint], usual: Mapping[int, float]
) -> Pauses:
    """The mean of each part."""
    if not pauses:
        return Pauses()
    first_seconds = {
        generation: history.kept[step].seconds for generation, step in _first_steps(history)
    }
    gaps, extras = [], []
    for pause in pauses:
        own = first_seconds.get(pause.generation)
        if own is not None:
            gaps.append(max(0.0, pause.first_step_s - own))
            extras.append(own - usual.get(pause.generation, own))
    return Pauses(
        hidden_s=fmean(p.hidden_s for p in pauses),
        decide_s=fmean(p.decide_s for p in pauses),
        prepare_s=fmean(p.prepare_s for p in pauses),
        copy_s=fmean(p.copy_s for p in pauses),
        switch_s=fmean(p.switch_s for p in pauses),
        gap_s=fmean(gaps) if gaps else 0.0,
        extra_s=max(0.0, fmean(extras)) if extras else 0.0,
    )


def _gap_seconds(history: RunHistory) -> float:
    """Seconds between two steps of one generation that belong to neither, on average."""
    gaps = []
    points = sorted(history.kept.values(), key=lambda point: point.step)
    for before, after in zip(points, points[1:], strict=False):
        if before.generation == after.generation:
            gaps.append(max(0.0, after.t - after.seconds - before.t))
    return fmean(gaps) if gaps else 0.0


def _save_seconds(history: RunHistory) -> float:
    """From the last step to the end of the log."""
    last = max((point.t for point in history.kept.values()), default=history.now)
    return max(0.0, history.now - last)
