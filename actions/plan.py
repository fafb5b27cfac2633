"""action=plan: which machines, where, and how to cut the model; rents nothing, needs no account."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from actions.console import Console
from actions.planning import Question, question
from sailor.config import Config
from sailor.plan import Plan, encode_hook
from sailor.planner.explain import (
    layout,
    machines,
    memory_line,
    shortlist,
    step_line,
    what_binds,
    why_chosen,
    zones,
)
from sailor.planner.question import Candidate, SearchResult
from sailor.planner.term import Term, worst_mark
from sailor.units import count, duration, gib

ROWS = 8


def run(config: Config, console: Console) -> int:
    """Search, show the table, write the chosen plan. Raises NoFeasiblePlan (exit 3)."""
    asked = question(config, live=config.cloud.live is True)
    result = asked.answer()
    path = write_plan(result.best, folder=Path(config.runs_dir).expanduser() / "plans")
    console.document(document(asked, result, path=path))
    show(asked, result, console)
    console.print(f"plan written: {path}", soft_wrap=True)
    return 0


def write_plan(chosen: Candidate, *, folder: Path) -> Path:
    """The chosen plan as a file that Plan.from_json reads, named by its content."""
    text = json.dumps(
        {**json.loads(chosen.plan.to_json()), "machines": _machines(chosen)}, indent=2
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path.write_text(text + "\n")
    return path


def show(asked: Question, result: SearchResult, console: Console) -> None:
    """The header, the table and the reasons."""
    console.print(header(asked), soft_wrap=True)
    if not console.is_terminal:  # into a file or a pipe the table goes in one piece
        console.width = max(console.width, 180)
    console.print(table(result))
    rejected = ", ".join(f"{reason} {number}" for reason, number in result.rejected.items())
    console.print(
        f"{len(result.candidates)} plans priced, {result.considered} ways to run the model "
        f"considered; dropped before pricing: {rejected or 'none'}   "
        f"[{result.seconds:.2f} s]",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    best = result.best
    console.print(f"why 1: {why_chosen(result, asked.limits)}", soft_wrap=True)
    console.print(f"binds: {what_binds(best)}", soft_wrap=True)
    value = best.estimate
    console.print(
        step_line(value.step_terms, step_seconds=value.step_seconds,
                  relative_error=value.step_relative_error),
        soft_wrap=True,
    )  # fmt: skip
    fullest = value.fullest
    console.print(
        memory_line(fullest.memory, capacity_bytes=fullest.capacity_bytes), soft_wrap=True
    )
    for warning in (*asked.catalogue.remarks, *result.warnings):
        console.print(f"note: {warning}", soft_wrap=True)


def header(asked: Question) -> str:
    """Model, work to do and how old the prices are."""
    spec, job = asked.spec, asked.job
    tokens = job.total_tokens or 0.0
    flops = tokens * spec.flops_per_token(sequence_length=job.sequence_length)
    age = asked.catalogue.age_days(date.today())
    source = asked.catalogue.label + ("" if age is None else f" ({age} days old)")
    return (
        f"{spec.name} {count(spec.num_parameters)} params | {count(tokens)} tokens | "
        f"{flops:.2e} FLOPs | {source}"
    )


def table(result: SearchResult) -> Table:
    """The short list. Times and prices are without interruptions."""
    shown = Table(
        "#", "machines", "zone", "layout", "mem/GPU", "tok/s", "hours", "cost", "$/Btok",
        "verdict", box=None, pad_edge=False,
    )  # fmt: skip
    for number, candidate in enumerate(shortlist(result, rows=ROWS), start=1):
        value = candidate.estimate
        fullest = value.fullest
        verdict = "; ".join(candidate.reasons) or ("chosen" if number == 1 else "")
        shown.add_row(
            f"{'*' if number == 1 else ' '} {number}",
            machines(candidate),
            zones(candidate),
            layout(candidate),
            f"{gib(fullest.peak_bytes)} / {gib(fullest.capacity_bytes)}",
            count(value.tokens_per_second).replace(" ", ""),
            "-" if candidate.hours is None else duration(candidate.hours * 3600),
            "-" if candidate.dollars is None else f"${candidate.dollars:,.0f}",
            f"{value.dollars_per_billion_tokens:,.1f}",
            verdict,
        )
    return shown


def document(asked: Question, result: SearchResult, *, path: Path) -> dict[str, Any]:
    """Everything the table shows and more, in JSON types."""
    age = asked.catalogue.age_days(date.today())
    spec = asked.spec
    return {
        "action": "plan",
        "model": {"name": spec.name, "parameters": spec.num_parameters},
        "tokens": asked.job.total_tokens,
        "tokens_per_step": asked.job.tokens_per_step,
        "objective": result.objective.value,
        "catalogue": {
            "label": asked.catalogue.label,
            "as_of": asked.catalogue.as_of.isoformat() if asked.catalogue.as_of else None,
            "age_days": age,
        },
        "chosen": candidate_document(result.best),
        "candidates": [candidate_document(c, full=False) for c in shortlist(result, rows=ROWS)],
        "plans_priced": len(result.candidates),
        "considered": result.considered,
        "rejected": dict(result.rejected),
        "warnings": list(result.warnings),
        "why": why_chosen(result, asked.limits),
        "binds": what_binds(result.best),
        "search_s": result.seconds,
        "plan_path": str(path),
    }


def candidate_document(candidate: Candidate, *, full: bool = True) -> dict[str, Any]:
    """One candidate in JSON types; ``full`` adds the plan and the breakdowns."""
    value = candidate.estimate
    fullest = value.fullest
    short: dict[str, Any] = {
        "machines": _machines(candidate),
        "layout": layout(candidate),
        "num_gpus": candidate.plan.num_gpus,
        "step_s": value.step_seconds,
        "step_relative_error": value.step_relative_error,
        "mark": worst_mark(value.step_terms).value,
        "tokens_per_s": value.tokens_per_second,
        "hours": candidate.hours,
        "dollars": candidate.dollars,
        "dollars_per_hour": value.dollars_per_hour,
        "dollars_per_billion_tokens": value.dollars_per_billion_tokens,
        "peak_bytes": value.fullest.peak_bytes,
        "capacity_bytes": fullest.capacity_bytes,
        "feasible": candidate.feasible,
        "reasons": list(candidate.reasons),
    }
    if not full:
        return short
    return short | {
        "plan": _plan(candidate.plan),
        "step_terms": [_term(term) for term in value.step_terms],
        "memory": [
            {
                "replica": stage.replica,
                "stage": stage.stage,
                "gpu": stage.gpu,
                "blocks": stage.num_blocks,
                "peak_bytes": stage.peak_bytes,
                "capacity_bytes": stage.capacity_bytes,
                "terms": [_term(term) for term in stage.memory],
            }
            for stage in value.stages
        ],
        "rent_terms": [_term(term) for term in value.rent_terms],
        "egress_dollars_per_step": value.egress_dollars_per_step,
    }


def _plan(plan: Plan) -> Any:
    return msgspec.to_builtins(plan, enc_hook=encode_hook)


def _term(term: Term) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": term.name,
        "value": term.value,
        "mark": term.mark.value,
        "relative_error": term.relative_error,
    }
    return entry | ({"note": term.note} if term.note else {})


def _machines(candidate: Candidate) -> list[dict[str, Any]]:
    return [
        {
            "machine_type": rental.offer.machine_type.name,
            "gpu": rental.offer.machine_type.gpu.name,
            "gpus_per_machine": rental.offer.machine_type.num_gpus,
            "count": rental.num_machines,
            "zone": rental.offer.zone.name,
            "region": rental.offer.zone.region,
            "spot": rental.offer.spot,
            "price_per_hour": rental.offer.price_per_hour,
            "as_of": rental.offer.as_of,
        }
        for rental in candidate.rentals
    ]
