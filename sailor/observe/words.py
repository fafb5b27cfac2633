"""Events in plain words: what the live view, the report and a reader of the log say alike.

The first sign of a line tells its kind: ``!`` something was lost or failed, ``+`` something came,
``>`` training goes on, ``~`` a fault we injected ourselves, ``.`` for the record.
"""

from __future__ import annotations

from pathlib import Path

from sailor.observe.changing import restoring, slowest
from sailor.observe.events import Event
from sailor.observe.history import PausePoint, RunHistory
from sailor.observe.metrics import Metrics, measure
from sailor.units import count, duration

_FAULTS = {
    "preempt": "{} gets a notice",
    "kill_node": "{} is killed",
    "kill_worker": "worker {} is killed",
    "stop_worker": "worker {} is stopped",
    "hang_worker": "worker {} hangs",
    "kill_agent": "the agent of {} is killed",
    "slow_node": "{} is slowed down",
    "nan_step": "a number of {} is NaN for a step",
    "nan_state": "a number of {} becomes NaN",
    "corrupt_snapshot": "the snapshots of {} are damaged",
    "join": "one more machine is asked for",
    "kill_controller": "the controller is killed",
}


_REFUSED = {
    "skip": "left out",
    "rollback": "going back to a saved state",
    "stop": "the run stops, the step before is kept",
}


def tell(event: Event, history: RunHistory) -> str | None:
    """One line about a notable event, or None. ``history`` has this event applied."""
    match event.kind:
        case "node_requested" if history.trains:
            return f"+ {event['node']} asked for, {_place(event)}"
        case "node_refused":
            return f"! {event['node']} cannot be had ({event.get('why')})"
        case "node_joined" if history.trains:
            return f"+ {event['node']} joined, {_place(event)}"
        case "worker_up" if not str(event["worker"]).endswith(".1"):
            return f"+ worker {event['worker']} started again"
        case "worker_lost":
            return f"! worker {event['worker']} lost ({event.get('cause')})"
        case "notice":
            return f"! {event['node']} preempted ({event['seconds']:g} s notice)"
        case "node_lost":
            return _node_lost(event, history)
        case "fenced":
            return f"! {event['node']} shut out ({event.get('reason')})"
        case "generation_started" if _is_first(history):
            began = history.starts[-1].t if history.starts else 0.0
            point = f" from step {event['step']} on" if event.get("step") else ""
            after = duration(event.t - began)
            return f"> training on {_layout(history)}{point}, {after} after the start"
        case "pause" if event.get("cause") != "start":
            return _pause(history.pauses[-1], history)
        case "standby" if event.get("state") == "promoted":
            return f"> {event['node']} {event.get('why')}"
        case "standby" if event.get("state") == "warm" and history.standbys.first_warmth(event):
            return f". {event['node']} stands by, warm after {duration(event.get('seconds', 0.0))}"
        case "standby" if event.get("state") == "cold":
            return f". {event['node']} stands by, cold ({event.get('why')})"
        case "move_asked":
            return f". {event['node']} is to be moved ({event.get('why')})"
        case "save_asked":
            return f". the next snapshot is to be made durable ({event.get('why')})"
        case "persisted" if history.saved_as_asked:
            return f". step {event['step']} is durable"
        case "replan_asked":
            return f". planning again ({event.get('why')})"
        case "move_refused":
            return f". {event['node']} stays where it is ({event.get('why')})"
        case "held_up":
            return f". {event.get('why')}; the lines between machines are probed"
        case "restored" if slowest(event.get("sources", ())) in ("disk", "anchor"):
            return f". {restoring(event.get('step', 0), event.get('sources', ()))}"
        case "transition_dropped":
            return f". layout kept ({event.get('why')})"
        case "step_refused":
            follows = _REFUSED.get(str(event.get("action")), "")
            return f"! step {event['step']} refused: its {event.get('why')}; {follows}"
        case "quarantined":
            return f"! states of step {event['step']} and later are not used again"
        case "parked":
            return f"! waiting for machines ({event.get('why')})"
        case "persist_failed":
            step = history.durable[-1].step if history.durable else 0
            return (
                f"! step {event['step']} could not be saved ({event.get('error')}); "
                f"training goes on, last saved step {step}"
            )
        case "fault_injected" if event.get("skipped"):
            return f"~ fault {event['fault']} skipped: {event['skipped']}"
        case "fault_injected":
            words = _FAULTS.get(str(event["fault"]), str(event["fault"]))
            return "~ fault: " + words.format(event["target"])
        case "stop_asked":
            return f". stopping after this step and saving ({event.get('why')})"
    return None


SAVES = "Ctrl-C saves and stops; the same command goes on from there"
CLOSES = "Ctrl-C closes this view; the run goes on"


def header(history: RunHistory, *, ctrl_c: str = SAVES) -> list[str]:
    """Who runs what: the lines before the first step of a start."""
    start = history.start
    steps = start("total_steps", 0)
    shape = f"{start('global_batch_size', 0)} x {start('sequence_length', 0)} tokens"
    again = ", resumed" if start("status") == "resumed" else ""
    first = (
        f'sailor   run "{history.run}"{again}   {start("model")}, '
        f"{count(start('parameters') or 0)} parameters, {steps:,} steps of {shape}"
    )
    return [first, f"         {ctrl_c}"]


def is_news(history: RunHistory) -> bool:
    """Whether the newest plan is worth a line: the first of a start is, another one before training
    too. Those of later generations are told with the generation."""
    told = [plan.get("describe") for plan in history.plans[-2:]]
    began = history.starts[-1].seq if history.starts else 0
    first = len(told) < 2 or history.plans[-2].seq < began
    return not history.trains and (first or told[0] != told[1])


def plan_line(event: Event) -> str:
    """What was chosen and what it should take."""
    parts = [f"plan     {event.get('describe')}"]
    if event.get("estimate_step_s"):
        parts.append(f"about {duration(event['estimate_step_s'])} a step")
    if event.get("estimate_usd_per_hour"):
        parts.append(f"${event['estimate_usd_per_hour']:.2f} an hour")
    return ", ".join(parts)


def progress(history: RunHistory, *, tokens_per_second: float) -> str:
    """One line on where training stands."""
    point = history.last_step
    if point is None:
        return "starting"
    total = history.start("total_steps", 0)
    loss = "not a number" if point.loss is None else f"{point.loss:.3f}"
    durable = history.durable[-1].step if history.durable else 0
    held_out = ""
    if history.evals:
        held_out = f"   held-out {history.evals[max(history.evals)].loss:.3f}"
    return (
        f"step {point.step:>{len(str(total))}}/{total}   loss {loss}{held_out}   "
        f"{count(tokens_per_second)} tok/s   nodes {nodes(history)}   saved step {durable}"
    )


def nodes(history: RunHistory) -> str:
    """'3/4': machines that train, of those that are here."""
    training = len(history.generations[-1].nodes) if history.generations else 0
    here = len(history.ledger.present())
    return f"{0 if history.parked else min(training, here)}/{here}"


def result(
    history: RunHistory, *, folder: Path | str | None = None, killed: bool = False
) -> list[str]:
    """The last lines of a start: how it ended, what was kept, where to look. ``killed``: its
    process is gone though the log does not say so."""
    figures = measure(history)
    lines = [_ended(history, figures, killed=killed), _kept(figures)]
    lives = history.ledger.lives
    if left := history.ledger.unproven():
        names = ", ".join(life.node for life in left)
        lines.append(f"machines {len(left)} of {len(lives)} not proven gone: {names}")
    elif lives:
        lines.append(f"machines {len(lives)} of {len(lives)} released")
    if folder is not None:
        lines.append(f"report   {folder}/report.html")
    return lines


def _ended(history: RunHistory, figures: Metrics, *, killed: bool) -> str:
    total = history.start("total_steps", 0)
    word = {
        "done": "done", "interrupted": "stopped", "limit": "stopped", "diverged": "diverged",
        "failed": "failed", "running": "killed" if killed else "running",
    }.get(history.status, history.status)  # fmt: skip
    parts = [f"{word:<8} {figures.steps:,} of {total:,} steps"]
    if history.ends and history.status not in ("done", "running") and history.ends[-1].get("why"):
        parts[0] += f" ({history.ends[-1]['why']})"
    if figures.loss_first is not None and figures.loss_last is not None:
        parts.append(f"loss {figures.loss_first:.3f} -> {figures.loss_last:.3f}")
    if figures.eval_last is not None:
        before = f"{figures.eval_first:.3f} -> " if figures.eval_first != figures.eval_last else ""
        parts.append(f"held-out {before}{figures.eval_last:.3f}")
    parts.append(duration(figures.wall_s))
    return "   ".join(parts)


def _kept(figures: Metrics) -> str:
    parts = [
        f"kept     goodput {figures.goodput:.1%}",
        f"redone steps {figures.redone_steps}",
        f"lost samples {figures.samples.lost}",
        f"repeated samples {figures.samples.repeated}",
        f"saved step {figures.durable_step}",
    ]
    if figures.cost_usd >= 0.005:
        parts.append(f"${figures.cost_usd:.2f}")
    return "   ".join(parts)


def _node_lost(event: Event, history: RunHistory) -> str | None:
    node = event["node"]
    life = next(life for life in reversed(history.ledger.lives) if life.node == node)
    if life.fenced:
        return None  # told already
    if life.noticed_at is not None:
        return f". {node} is gone, as announced"
    return f"! {node} lost without notice ({event.get('cause')})"


def _pause(pause: PausePoint, history: RunHistory) -> str:
    number = pause.steps_redone
    redone = f"{number} step{'s' if number > 1 else ''} redone" if number else "0 steps lost"
    batch = history.start("global_batch_size")
    kept = f"batch kept at {batch}, " if batch else ""
    return f"> continuing on {_layout(history)}, {kept}{redone}, pause {duration(pause.total_s)}"


def _is_first(history: RunHistory) -> bool:
    """Whether the newest generation is the first of its start."""
    began = history.starts[-1].t if history.starts else 0.0
    return sum(1 for generation in history.generations[-2:] if generation.t >= began) == 1


def _layout(history: RunHistory) -> str:
    generation = history.generations[-1]
    number = len(generation.nodes)
    return f"{number} {'node' if number == 1 else 'nodes'}: {generation.layout}"


def _place(event: Event) -> str:
    return f"{event.get('machine_type')} in {event.get('zone')}"
