"""action=plan: which machines, where, and how to cut the model; rents nothing, needs no account."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from actions.anchor import anchor
from actions.console import Console
from actions.own_machine import own_machine
from actions.planning import Question, question
from actions.prospects import Prospect, answered, prospect, spread
from actions.standing_by import standby_advice
from sailor.config import Config
from sailor.plan import Plan, encode_hook
from sailor.planner.bounds import Bound
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
from sailor.planner.foreign import exports
from sailor.planner.outlook import Change, changes, front, lost_to, on_mixing
from sailor.planner.question import Candidate, SearchResult
from sailor.planner.term import Term, worst_mark
from sailor.units import count, duration, gib

ROWS = 8
STALE_DAYS = 60


def run(config: Config, console: Console) -> int:
    """Search, show the table, write the chosen plan. Raises NoFeasiblePlan (exit 3)."""
    with console.waiting("searching for plans"):
        asked = question(config, live=config.cloud.live is True)
        result, moved = answered(asked)
        around = look_around(asked, result, moved=moved)
    path = write_plan(result.best, folder=Path(config.runs_dir).expanduser() / "plans")
    wanted = config.planner.picture
    wanted = console.is_terminal if wanted is None else wanted
    picture = path.with_suffix(".html") if wanted else None
    told = document(asked, result, around, path=path, picture=picture)
    standby = standby_advice(config, result.best, asked)
    told_of = config.cloud.standbys or (around.prospects and standby.losses_per_hour > 0)
    if told_of:
        told["standbys"] = asdict(standby)
    kept = anchor(config, result.best)
    if kept is not None:
        told["anchor"] = kept.document()
    own = own_machine(config, result.best)
    if own is not None:
        told["controller"] = own.document()
    console.document(told)
    show(asked, result, around, console)
    if kept is not None:
        console.print(f"anchor: {kept.words()}", soft_wrap=True, markup=False)
    if own is not None:
        console.print(f"controller: {own.words()}", soft_wrap=True, markup=False)
    if told_of:
        console.print(f"standby: {standby.describe()}", soft_wrap=True)
    console.print(f"plan written: {path}", soft_wrap=True)
    if picture is not None:  # last, for the answer does not wait for it
        picture.write_text(drawn(asked, result, around))
        console.print(f"picture: {picture}", soft_wrap=True)
    return 0


@dataclass(frozen=True, kw_only=True)
class Around:
    """What is said about the chosen plan besides its own figures."""

    front: tuple[Candidate, ...]
    mixing: str
    changes: tuple[Change, ...]
    bound: Bound | None
    prospects: Mapping[int, Prospect]
    """By id of a candidate of the short list, where machines may vanish."""
    risk: tuple[str, ...] = ()
    """What is expected of the chosen plan, line by line."""

    def words(self) -> tuple[str, ...]:
        """Lines for people; only those that have something to say."""
        lines = list(self.risk)
        if self.bound is not None:
            lines.append(f"bound: {self.bound.words()}")
        if len(self.front) > 1:
            lines.append(
                f"front: {len(self.front)} plans that no other beats in both cost and time, from "
                f"{_ends(self.front[0])} to {_ends(self.front[-1])}"
            )
        if self.mixing:
            lines.append(f"mixing: {self.mixing}")
        if self.changes:
            helps = ", ".join(f"{c.what} {c.gain:+.0%}" for c in self.changes[:3])
            lines.append(f"would help most: {helps}")
        return tuple(lines)


def _ends(candidate: Candidate) -> str:
    time = f"{candidate.estimate.step_seconds:.3g} s a step"
    if candidate.hours is not None:
        time = duration(candidate.hours * 3600)
    money = "" if candidate.dollars is None else f" for ${candidate.dollars:,.0f}"
    return f"{time}{money} ({machines(candidate)})"


def look_around(asked: Question, result: SearchResult, *, moved: str = "") -> Around:
    """The front, mixes, what would help, what interruptions will cost, and how far from the best
    possible the plan is at most. ``moved``: what made it the first."""
    rows = shortlist(result, rows=ROWS) if asked.spot_aware else ()
    prospects = {id(c): p for c in rows if (p := prospect(c, asked)) is not None}
    risk: tuple[str, ...] = (moved,) if moved else ()
    if (mine := prospects.get(id(result.best))) is not None:
        risk += mine.words(asked.limits, spread=spread(mine, asked))
    return Around(
        prospects=prospects, risk=risk,
        front=front([c for c in result.candidates if c.feasible]),
        mixing=on_mixing(result),
        changes=changes(
            result, network=asked.catalogue.network, job=asked.job, limits=asked.limits,
            again=asked.on_other_machines,
        ),
        bound=asked.bound(result),
    )  # fmt: skip


def drawn(asked: Question, result: SearchResult, around: Around) -> str:
    """The picture of a result."""
    from actions.plan_page import page  # with its charts: for those who want it

    rows = shortlist(result, rows=ROWS)
    return page(
        title=f"A plan for {asked.spec.name}",
        words=(header(asked), f"Why this one: {why_chosen(result, asked.limits)}.",
               f"Binds: {what_binds(result.best, limits=asked.limits, pool=asked.catalogue.pool)}.",
               *around.words()),
        result=result, limits=asked.limits,
        gpus_per_machine={
            name: kind.num_gpus for name, kind in asked.catalogue.network.machine_types.items()
        },
        others=[(c, "; ".join(c.reasons) or lost_to(result.best, c)) for c in rows[1:]],
    )  # fmt: skip


def write_plan(chosen: Candidate, *, folder: Path) -> Path:
    """The chosen plan as a file that Plan.from_json reads, named by its content."""
    text = json.dumps(
        {**json.loads(chosen.plan.to_json()), "machines": _machines(chosen)}, indent=2
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path.write_text(text + "\n")
    return path


def show(asked: Question, result: SearchResult, around: Around, console: Console) -> None:
    """The header, the table and the reasons."""
    console.print(header(asked), soft_wrap=True)
    if not console.is_terminal:  # into a file or a pipe the table goes in one piece
        console.width = max(console.width, 180)
    console.print(table(result, around.prospects))
    rejected = ", ".join(f"{reason} {number}" for reason, number in result.rejected.items())
    console.print(
        f"{len(result.candidates)} plans priced, {result.considered} ways to run the model "
        f"considered; dropped before pricing: {rejected or 'none'}   "
        f"[{result.seconds:.2f} s]",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    best = result.best
    console.print(f"why 1: {why_chosen(result, asked.limits)}", soft_wrap=True)
    binds = what_binds(best, limits=asked.limits, pool=asked.catalogue.pool)
    console.print(f"binds: {binds}", soft_wrap=True)
    for line in around.words():
        console.print(line, soft_wrap=True, markup=False)
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
    for export in exports(best.plan, spec=asked.spec, numerics=asked.job.numerics):
        if export.refused:
            said = f"cannot be told: {'; '.join(export.refused)}"
        else:
            said = export.text if export.form == "arguments" else f"{export.form} in output=json"
        console.print(f"{export.engine}: {said}", soft_wrap=True, markup=False)
    for warning in notes(asked, result):
        console.print(f"note: {warning}", soft_wrap=True)


def notes(asked: Question, result: SearchResult) -> list[str]:
    """What a reader should know of the inputs."""
    found = [*asked.catalogue.remarks, *result.warnings]
    age = asked.catalogue.age_days(date.today())
    if age is not None and age > STALE_DAYS:
        found.append(f"prices are {age} days old and may have moved: cloud.live=true asks for them")
    return found


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


def table(result: SearchResult, prospects: Mapping[int, Prospect]) -> Table:
    """The short list. Times and prices are the expected ones where machines may vanish; tokens/s
    are those of all machines together."""
    shown = Table(
        "#", "machines", "zone", "layout", "mem/GPU", "tok/s", "goodput", "hours", "cost", "$/Btok",
        "verdict", box=None, pad_edge=False,
    )  # fmt: skip
    for number, candidate in enumerate(shortlist(result, rows=ROWS), start=1):
        value = candidate.estimate
        fullest = value.fullest
        verdict = "chosen" if number == 1 else lost_to(result.best, candidate)
        verdict = "; ".join(candidate.reasons) or verdict
        hours, dollars = candidate.hours, candidate.dollars
        price, goodput = value.dollars_per_billion_tokens, "-"
        if (found := prospects.get(id(candidate))) is not None:
            hours, dollars, goodput = found.hours, found.dollars, f"{found.goodput:.0%}"
            price *= found.dollars / (candidate.dollars or found.dollars)
        shown.add_row(
            f"{'*' if number == 1 else ' '} {number}",
            machines(candidate),
            zones(candidate),
            layout(candidate),
            f"{gib(fullest.peak_bytes)} / {gib(fullest.capacity_bytes)}",
            count(value.tokens_per_second).replace(" ", ""),
            goodput,
            "-" if hours is None or hours == inf else duration(hours * 3600),
            "-" if dollars is None or dollars == inf else f"${dollars:,.0f}",
            f"{price:,.1f}",
            verdict,
        )
    return shown


def document(
    asked: Question, result: SearchResult, around: Around, *, path: Path, picture: Path | None
) -> dict[str, Any]:
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
        "chosen": candidate_document(result.best) | _expected(asked, around, result.best),
        "candidates": [
            candidate_document(c, full=False) | _expected(asked, around, c, full=False)
            for c in shortlist(result, rows=ROWS)
        ],
        "risk": list(around.risk),
        "plans_priced": len(result.candidates),
        "considered": result.considered,
        "rejected": dict(result.rejected),
        "warnings": notes(asked, result),
        "why": why_chosen(result, asked.limits),
        "binds": what_binds(result.best, limits=asked.limits, pool=asked.catalogue.pool),
        "front": [candidate_document(c, full=False) for c in around.front],
        "mixing": around.mixing,
        "would_help": [{"what": c.what, "gain": c.gain} for c in around.changes],
        "bound": None if around.bound is None else around.bound.document(),
        "search_s": result.seconds,
        "exports": {
            e.engine: {"form": e.form, "text": e.text, "refused": list(e.refused)}
            for e in exports(result.best.plan, spec=spec, numerics=asked.job.numerics)
        },
        "plan_path": str(path),
        "picture_path": None if picture is None else str(picture),
    }


def _expected(
    asked: Question, around: Around, candidate: Candidate, *, full: bool = True
) -> dict[str, Any]:
    """With interruptions; the figures beside it are without. Nothing where none are expected."""
    found = around.prospects.get(id(candidate))
    return {} if found is None else {"expected": found.document(asked.limits, full=full)}


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
