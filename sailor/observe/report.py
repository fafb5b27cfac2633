"""``report.html``: one offline page on a run, and ``report.json`` with the same figures.

Drawn from ``events.jsonl`` alone, so it can be written again at any time. The page has no script
and asks for nothing from anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from sailor.observe import words
from sailor.observe.events import Event, read_events
from sailor.observe.goodput import cause_kind
from sailor.observe.history import Generation, PausePoint, RunHistory, replay
from sailor.observe.ledger import NodeLife
from sailor.observe.metrics import (
    MFU_FORMULA,
    MemoryCheck,
    Metrics,
    PlanCheck,
    check_plans,
    kept_steps,
    measure,
    planned_cost,
    thinned,
    throughput,
)
from sailor.observe.picture import CAUSES
from sailor.observe.pictures import pictures
from sailor.observe.summary import summarise, write_atomically
from sailor.units import clock, count, duration, gib

log = logging.getLogger(__name__)

HTML, JSON = "report.html", "report.json"
_MOST_LINES = 100  # of what happened, and of each table; report.json has all
_MOST_POINTS = 2000

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(folder: Path | str, *, next_commands: Sequence[str] = ()) -> Path:
    """Draw the report of a run folder from its log and write both files; returns the page's path.

    What ``action=eval`` has left in the folder is shown as well.

    Raises FileNotFoundError when the folder has no log, OSError when it cannot be written.
    """
    folder = Path(folder)
    events = read_events(folder / "events.jsonl")
    evaluation = newest_evaluation(folder)
    document = report_document(events) | {"evaluation": evaluation}
    write_atomically(folder / JSON, msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    page = render(events, next_commands=next_commands, evaluation=evaluation)
    write_atomically(folder / HTML, page.encode())
    return folder / HTML


def newest_evaluation(folder: Path) -> dict[str, Any] | None:
    """The document of the latest step that action=eval looked at; None where there is none."""
    for path in sorted(folder.glob("eval/step-*.json"), reverse=True):
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("%s was left out of the report: %s", path, error)
    return None


def report_document(events: Iterable[Event]) -> dict[str, Any]:
    """The report's figures as plain JSON values: the summary, the curves, what happened."""
    events = tuple(events)
    history = replay(events)
    figures = measure(history)
    losses = [(float(p.step), p.loss) for p in kept_steps(history) if p.loss is not None]
    return {
        "summary": summarise(history),
        "in_words": paragraph(history, figures),
        "loss": thinned(losses, most=_MOST_POINTS),
        "eval_loss": [[step, history.evals[step].loss] for step in sorted(history.evals)],
        "tokens_per_second": throughput(kept_steps(history), until=figures.wall_s, num_windows=200),
        "world_size": [list(entry) for entry in history.world],
        "happenings": [list(entry) for entry in happenings(events)],
    }


def render(
    events: Iterable[Event],
    *,
    next_commands: Sequence[str] = (),
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """The page. ``evaluation`` is a document of action=eval."""
    events = tuple(events)
    history = replay(events)
    figures = measure(history)
    lines = happenings(events)
    plans = {check.generation: check for check in check_plans(history)}
    drawn, times = pictures(history, figures), _times(figures)
    keys = {colour for picture in drawn for colour, _ in picture.legend}
    return _templates.get_template("report.html.j2").render(
        run=history.run,
        status=history.status,
        began=_moment(history.starts[0].time) if history.starts else "-",
        paragraph=paragraph(history, figures),
        warnings=warnings(history, figures),
        tiles=_tiles(history, figures),
        pictures=drawn,
        times=times,
        colours=sorted(keys | {colour for colour, *_ in times}),
        pauses=[_pause_row(pause) for pause in history.pauses[:_MOST_LINES]],
        layouts=[
            _layout_row(each, plans.get(each.generation))
            for each in history.generations[:_MOST_LINES]
        ],
        machines=[_machine_row(life, figures) for life in history.ledger.lives[:_MOST_LINES]],
        phases=[
            (name, f"{seconds * 1e3:,.1f} ms") for name, seconds in figures.phases_s.items()
        ],
        memory=[_memory_row(check) for check in figures.memory[:_MOST_LINES]],
        mfu_formula=MFU_FORMULA,
        cost=f"${figures.cost_usd:.2f}",
        happenings=[(clock(int(t)), line[0], line[2:]) for t, line in lines[:_MOST_LINES]],
        totals={
            "pauses": len(history.pauses),
            "layouts": len(history.generations),
            "machines": len(history.ledger.lives),
            "memory": len(figures.memory),
            "happenings": len(lines),
        },
        planned=_planned(history, figures),
        facts=_facts(history, figures),
        evaluation=evaluation,
        eval_command=f"python run.py action=eval run.name={history.run}",
        changed=sorted((key, _said(value)) for key, value in history.start("changed", {}).items()),
        versions=list(history.start("versions", {}).items()),
        command=str(history.start("command", "")),
        next_commands=list(next_commands),
    )  # fmt: skip


def happenings(events: Iterable[Event]) -> list[tuple[float, str]]:
    """(seconds, line) of every notable event, in the words of the live view."""
    history, lines = RunHistory(), []
    for event in events:
        history.apply(event)
        if event.kind == "run_started" and len(history.starts) > 1:
            lines.append((event.t, ". the run was started again"))
        if line := words.tell(event, history):
            lines.append((event.t, line))
    return lines


def paragraph(history: RunHistory, figures: Metrics) -> str:
    """The run in a few sentences, for somebody who reads nothing else."""
    if not history.starts:
        return "The log of this run is empty."
    total = history.start("total_steps", 0)
    lives = history.ledger.lives
    members = history.ledger.members()
    zones = {life.zone for life in members if life.zone}
    starts = f" in {len(history.starts)} starts" if len(history.starts) > 1 else ""
    text = [
        f"{history.start('model')} ({count(history.start('parameters') or 0)} parameters) was "
        f"trained for {figures.steps:,} of {total:,} steps ({count(figures.tokens)} tokens) in "
        f"{duration(figures.wall_s)}{starts}, on {_number(len(members), 'machine')} in "
        f"{_number(len(zones), 'zone')}. {_ending(history)}"
    ]
    if history.pauses:
        text.append(_interruptions(history, figures))
    text.append(
        f"{figures.goodput:.0%} of the time went into steps that were kept."
        if figures.steps
        else "No step was kept."
    )
    if figures.loss_first is not None and figures.loss_last is not None and figures.steps > 1:
        held = f", held-out loss is {figures.eval_last:.3f}" if figures.eval_last else ""
        text.append(
            f"Training loss went from {figures.loss_first:.3f} to {figures.loss_last:.3f}{held}."
        )
    left = history.ledger.unproven()
    if lives and not left:
        text.append("All machines are proven gone.")
    elif lives:
        text.append(f"{_number(len(left), 'machine')} not proven gone.")
    if figures.cost_usd >= 0.005:
        text.append(f"The machines cost ${figures.cost_usd:.2f}.")
    return " ".join(text)


def warnings(history: RunHistory, figures: Metrics) -> list[str]:
    """What a reader must not overlook."""
    found = []
    if figures.samples.lost or figures.samples.repeated:
        found.append(
            f"{figures.samples.lost} samples were lost and {figures.samples.repeated} repeated: "
            "the run is not equal to an undisturbed one."
        )
    if history.missing_events:
        found.append(f"{history.missing_events} lines of the log are missing; figures may be off.")
    if history.status != "running" and (left := history.ledger.unproven()):
        names = ", ".join(life.node for life in left)
        found.append(f"Not proven gone, and perhaps still costing money: {names}.")
    if history.persist_failures:
        last = history.persist_failures[-1]
        found.append(
            f"{_number(len(history.persist_failures), 'durable checkpoint')} failed, the last one "
            f"at step {last.get('step')}: {last.get('error')}."
        )
    return found


def _ending(history: RunHistory) -> str:
    why = str(history.ends[-1].get("why", "")) if history.ends else ""
    because = f": {why}" if why else ""
    return {
        "done": "It reached its last step.",
        "running": "It had not ended when this was written.",
        "interrupted": f"It was stopped on request{because}; the same command goes on.",
        "limit": f"It was stopped by a limit{because}; the same command goes on.",
        "killed": f"It was stopped at once{because}; the same command goes on from the last save.",
        "diverged": f"It was stopped because the loss was no longer a number{because}.",
    }.get(history.status, f"It failed{because}.")


def _interruptions(history: RunHistory, figures: Metrics) -> str:
    kinds = [cause_kind(pause.cause) for pause in history.pauses]
    told = [
        f"{_number(kinds.count(kind), noun)} {verb}"
        for kind, noun, verb in (
            ("preempted", "machine", "preempted with notice"),
            ("node_lost", "machine", "lost without notice"),
            ("worker_lost", "worker", "lost"),
            ("join", "machine", "joined"),
            ("other", "other change", "of layout"),
        )
        if kind in kinds
    ]
    longest = max(pause.total_s for pause in history.pauses)
    samples = figures.samples
    lost = "no sample" if not samples.lost else f"{samples.lost} samples"
    again = "none" if not samples.repeated else str(samples.repeated)
    return (
        f"On the way: {', '.join(told)}. Training went on each time, after a pause of at most "
        f"{duration(longest)}; {_number(figures.redone_steps, 'step')} done again, {lost} lost and "
        f"{again} repeated."
    )


def _tiles(history: RunHistory, figures: Metrics) -> list[tuple[str, str]]:
    last = "-" if figures.loss_last is None else f"{figures.loss_last:.3f}"
    held = "-" if figures.eval_last is None else f"{figures.eval_last:.3f}"
    return [
        ("steps", f"{figures.steps:,}"),
        ("loss", last),
        ("held-out", held),
        ("goodput", f"{figures.goodput:.1%}"),
        ("tokens a second", count(figures.tokens_per_second)),
        ("MFU", "n/a" if figures.mfu is None else f"{figures.mfu:.1%}"),
        ("pauses", f"{len(history.pauses)}"),
        ("steps done again", f"{figures.redone_steps}"),
        ("samples lost / repeated", f"{figures.samples.lost} / {figures.samples.repeated}"),
    ]


def _times(figures: Metrics) -> list[tuple[str, str, str, str]]:
    """(colour, name, seconds, share) of every part of the time, as the bar shows them."""
    wall = figures.wall_s or 1.0
    rows = [("c-good", "kept steps", figures.good_s)]
    rows += [
        (colour, name, figures.badput_s[cause])
        for cause, (name, colour) in CAUSES.items()
        if cause in figures.badput_s
    ]
    return [(colour, name, duration(s), f"{s / wall:.1%}") for colour, name, s in rows]


def _pause_row(pause: PausePoint) -> dict[str, str | list[str]]:
    phases = (
        pause.detect_s, pause.decide_s, pause.prepare_s, pause.copy_s, pause.switch_s,
        pause.first_step_s,
    )  # fmt: skip
    return {
        "at": clock(int(pause.t)),
        "cause": pause.cause,
        "planned": "planned" if pause.planned else "unplanned",
        "phases": [f"{seconds:.2f}" for seconds in phases],
        "total": f"{pause.total_s:.2f}",
        "hidden": f"{pause.hidden_s:.2f}",
        "redone": str(pause.steps_redone),
        "source": pause.source or "-",
    }


def _layout_row(generation: Generation, plan: PlanCheck | None) -> dict[str, Any]:
    seats: dict[int, dict[int, list[str]]] = {}
    for rank in generation.ranks:
        replica = seats.setdefault(int(rank.get("replica", 0)), {})
        node = str(rank.get("worker", "")).partition("/")[0]
        replica.setdefault(int(rank.get("stage", 0)), []).append(node)
    estimate = plan.estimate_step_s if plan else None
    actual = plan.actual_step_s if plan else None
    return {
        "generation": generation.generation,
        "at": clock(int(generation.t)),
        "step": f"{generation.step:,}",
        "layout": generation.layout,
        "gpus": generation.world_size,
        "replicas": [
            " → ".join(", ".join(dict.fromkeys(stage)) for _, stage in sorted(stages.items()))
            for _, stages in sorted(seats.items())
        ],
        "groups": f"{generation.kept_groups} / {generation.built_groups}",
        "steps": plan.steps if plan else 0,
        "estimate": f"{estimate:.3f} s" if estimate else "-",
        "actual": f"{actual:.3f} s" if actual else "-",
    }


def _memory_row(check: MemoryCheck) -> dict[str, str]:
    estimate, ratio = check.estimate_bytes, check.ratio
    return {
        "rank": str(check.rank),
        "worker": check.worker,
        "peak": gib(check.peak_bytes),
        "base": gib(check.base_bytes),
        "estimate": gib(estimate) if estimate else "-",
        "ratio": "-" if ratio is None else f"{ratio:.2f}",
    }


def _machine_row(life: NodeLife, figures: Metrics) -> dict[str, str]:
    end = figures.wall_s if life.gone_at is None else life.gone_at
    since = life.serves_from
    return {
        "node": life.node,
        "machine": life.machine_type,
        "zone": life.zone,
        "terms": "spot" if life.spot else "on-demand",
        "up": "-" if since is None else duration(max(0.0, end - since)),
        "price": f"${life.price_per_hour:.2f}",
        "cost": f"${life.cost(now=max(figures.wall_s, end)):.2f}",
        "end": life.lost_cause or life.state(),
        "proof": life.proof or "not proven gone",
    }


def _planned(history: RunHistory, figures: Metrics) -> list[tuple[str, str, str, str]]:
    """(what, as planned, as it was, their ratio) of the run's first plan against the whole run."""
    total = int(history.start("total_steps") or 0)
    first = next((plan for plan in history.plans if plan.get("estimate_step_s")), None)
    if first is None or not total or not figures.steps:
        return []
    step_s = float(first["estimate_step_s"])
    width = first.get("estimate_relative_error")
    range_ = f" ± {width:.0%}" if width else ""
    rows = [
        ("a step", step_s, figures.good_s / figures.steps, _seconds),
        ("all kept steps", step_s * figures.steps, figures.good_s, duration),
        ("the run, interruptions and all", step_s * figures.steps, figures.wall_s, duration),
    ]
    found = [
        (what, f"{form(plan)}{range_ if i == 0 else ''}", form(was), f"{was / plan:.2f}")
        for i, (what, plan, was, form) in enumerate(rows)
    ]
    if (cost := planned_cost(history)) is not None:
        usd = cost.usd * figures.steps / total
        ratio = f"{figures.cost_usd / usd:.2f}"
        found.append(("money", f"${usd:.2f}", f"${figures.cost_usd:.2f}", ratio))
    return found


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _said(value: Any) -> str:
    """A value as one would type it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _facts(history: RunHistory, figures: Metrics) -> list[tuple[str, str]]:
    exact = "exact sums" if history.start("deterministic") else "fast sums"
    snapshots = history.snapshots
    return [
        ("configuration", str(history.start("config_digest", ""))[:12]),
        ("arithmetic", exact),
        ("batch", f"{history.start('global_batch_size')} x {history.start('sequence_length')}"),
        ("snapshots in memory", f"{snapshots.count:,}, {gib(snapshots.bytes)}, steps waited "
                                f"{duration(snapshots.stall_s)} for them"),
        ("copies to other machines", f"{snapshots.copies:,}, {gib(snapshots.copied_bytes)}"),
        ("durable checkpoints", f"{len(history.durable)}, the last of step {figures.durable_step}"),
    ]  # fmt: skip


def _moment(time: str) -> str:
    """'2027-01-15 08:00 UTC' of the log's own form."""
    return time[:16].replace("T", " ") + " UTC"


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
