"""The planner against the published one, against exhaustive search, and at scale.

``python -m benchmarks.planner [--json] [--quick] [--scenarios FILE] [--data FOLDER]``

Scenarios are those of the Sailor artifact (or FILE, a list of the same form), with the artifact's
profiles, bandwidths, prices and memory rule, from FOLDER. Plans are judged by the published
simulator's own formulas (sailor/planner/reference.py), which this command first checks against the
throughput and cost recorded with the published plans. A published plan that breaks a limit of its
scenario is no yardstick; it is left out by name. CPU seconds are of the search, tables included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.document import machine, show
from benchmarks.planner_scale import scale
from sailor.plan import Plan
from sailor.planner.fleet import FleetSearch, Goal
from sailor.planner.reference import ReferenceEstimate, evaluate
from sailor.planner.reference_costs import ReferenceCosts
from sailor.profile.artifact import (
    ArtifactModel,
    ArtifactNetwork,
    Scenario,
    plan_document,
    plan_from,
    read_model,
    read_network,
    read_scenarios,
)

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "sailor"
TRAINING = {
    "OPT-350": "training_config_opt_350.json",
    "GPT-Neo-2.7": "training_config_gpt_neo27.json",
}


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The published inputs."""

    models: Mapping[str, ArtifactModel]
    network: ArtifactNetwork
    results: Mapping[str, Mapping[str, Any]]  # scenario -> what the published planner did
    plans: Path

    @staticmethod
    def read(folder: Path) -> Artifact:
        results = json.loads((folder / "reference_results.json").read_text())["sailor"]
        return Artifact(
            models={
                name: read_model(folder, name=name, training=folder / training)
                for name, training in TRAINING.items()
            },
            network=read_network(folder),
            results={entry["scenario"]: entry for entry in results},
            plans=folder / "plans",
        )

    def published(self, scenario: Scenario) -> tuple[Plan, Mapping[str, Any]] | None:
        """The published planner's plan and its recorded throughput and cost."""
        path = self.plans / f"plan_SAILOR_{scenario.name}.json"
        if not path.exists():
            return None
        document = json.loads(path.read_text())
        model = self.models[scenario.model]
        plan = plan_from(document, model=model, global_batch_size=model.global_batch_size)
        return plan, document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--data", type=Path, default=DATA, help="the artifact's inputs")
    parser.add_argument("--scenarios", type=Path, help="other scenarios of the same form")
    options = parser.parse_args()
    if not (options.data / "profiles_tmp.json").exists():
        raise SystemExit(f"the published planner's inputs are not in {options.data}; see --data")
    artifact = Artifact.read(options.data)
    scenarios = read_scenarios(options.scenarios or options.data / "scenarios.json")
    rows = [compare(s, artifact, repeats=1 if options.quick else 3) for s in scenarios]
    figures, left_out = summary(rows)
    large = scale(artifact.network, artifact.models["GPT-Neo-2.7"], quick=options.quick)
    figures |= large["figures"]
    if not options.json:
        table(rows)
        curve(large["detail"]["scale"])
    show(
        {
            "benchmark": "planner",
            "figures": figures,
            "detail": {"scenarios": rows, "published_plans_left_out": left_out, **large["detail"]},
            "machine": machine(),
        },
        as_json=options.json,
    )


def compare(scenario: Scenario, artifact: Artifact, *, repeats: int) -> dict[str, Any]:
    """Our plan and the published one for a scenario, both under the published formulas."""
    model, network = artifact.models[scenario.model], artifact.network
    goal = Goal(
        dollars=scenario.objective != "throughput",
        max_seconds=1 / scenario.min_throughput if scenario.min_throughput else inf,
        max_dollars=scenario.max_cost or inf,
    )
    plan, cpu_seconds = None, inf
    for _ in range(repeats):
        began = time.process_time()
        costs = ReferenceCosts(model, network, scenario)
        found = FleetSearch(costs, goal).best()
        plan = None if found is None else costs.plan(found.fleet)
        cpu_seconds = min(cpu_seconds, time.process_time() - began)
    row: dict[str, Any] = {
        "scenario": scenario.name,
        "objective": scenario.objective,
        "gpu_types": len({gpu for gpu, _ in scenario.resources}),
        "cpu_s": cpu_seconds,
    }
    ours = None
    if plan is None:
        row["ours"] = None
    else:
        ours = evaluate(plan, model=model, network=network)
        row["ours"] = outcome(ours) | {
            "broken": broken(plan, ours, scenario, model),
            "plan": in_short(plan),
            "artifact_plan": as_artifact(plan),
        }
    published = artifact.published(scenario)
    if published is not None:
        theirs = evaluate(published[0], model=model, network=network)
        recorded = published[1]
        row["published"] = outcome(theirs) | {
            "broken": broken(published[0], theirs, scenario, model),
            "recorded_throughput": recorded["throughput"],
            "restatement_error": abs(theirs.throughput / recorded["throughput"] - 1),
        }
        result = artifact.results.get(scenario.name)
        if result is not None:
            row["published"]["cpu_s"] = result["search_cpu_s"]
        row["ratio"] = 0.0 if ours is None else ratio(ours, theirs, dollars=goal.dollars)
    return row


def ratio(ours: ReferenceEstimate, theirs: ReferenceEstimate, *, dollars: bool) -> float:
    """How much better ours is; 1 is equal."""
    return theirs.dollars / ours.dollars if dollars else ours.throughput / theirs.throughput


def outcome(value: ReferenceEstimate) -> dict[str, Any]:
    return {
        "iteration_s": value.seconds,
        "throughput": value.throughput,
        "dollars": value.dollars,
        "sync_s": value.sync_seconds,
    }


def broken(
    plan: Plan, value: ReferenceEstimate, scenario: Scenario, model: ArtifactModel
) -> list[str]:
    """Limits of the scenario that a plan does not keep."""
    found = []
    used: Counter[tuple[str, str]] = Counter()
    for _, _, stage in plan.stages():
        used[stage.gpu, stage.zone] += stage.tensor_parallel
    for place, gpus in used.items():
        if gpus > scenario.resources.get(place, 0):
            found.append(f"{gpus} {place[0]} in {place[1]}, of {scenario.resources.get(place, 0)}")
    if not value.fits:
        found.append("memory")
    if plan.global_batch_size != model.global_batch_size:
        found.append(f"global batch {plan.global_batch_size}")
    if scenario.max_cost and value.dollars > scenario.max_cost:
        found.append(f"${value.dollars:.3f} an iteration")
    if scenario.min_throughput and value.throughput < scenario.min_throughput:
        found.append(f"{value.throughput:.4f} iterations/s")
    return found


def summary(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The figures, and which published plans are no yardstick."""
    judged, left_out = [], []
    for row in rows:
        if "published" not in row:
            continue
        if row["published"]["broken"]:
            left_out.append(f"{row['scenario']}: {'; '.join(row['published']['broken'])}")
        else:
            judged.append(row)
    mixed = [
        row["ratio"] - 1
        for row in judged
        if row["gpu_types"] > 1 and row["objective"] == "throughput"
    ]
    timed = [row for row in rows if row.get("published", {}).get("cpu_s") is not None]
    long = [row for row in timed if row["published"]["cpu_s"] > 1.0]
    short = [row for row in timed if row["published"]["cpu_s"] <= 1.0]
    cost = [row["ratio"] for row in judged if row["objective"] != "throughput"]
    figures = {
        "infeasible_plans": sum(row["ours"] is None or bool(row["ours"]["broken"]) for row in rows),
        "worst_ratio_vs_reference": min((row["ratio"] for row in judged), default=None),
        "mixed_gpu_gain_min": min(mixed, default=None),
        "mixed_gpu_gain_mean": mean(mixed) if mixed else None,
        "min_cost_ratio_min": min(cost, default=None),
        "cpu_s_ratio_max": max(
            (row["cpu_s"] / row["published"]["cpu_s"] for row in long), default=None
        ),
        "cpu_s_max_where_reference_below_1": max((row["cpu_s"] for row in short), default=None),
        "restatement_error_max": max(
            (row["published"]["restatement_error"] for row in rows if "published" in row),
            default=None,
        ),
    }
    return figures, left_out


def in_short(plan: Plan) -> list[str]:
    """'16 x [V100-16 tp2: 7 | A100-40 tp2: 19] mb4 x16', one line for each kind of replica."""
    kinds: Counter[tuple[str, int]] = Counter()
    most: dict[tuple[str, int], int] = {}
    for replica in plan.replicas:
        row = " | ".join(
            f"{stage.gpu} tp{stage.tensor_parallel}: {len(stage.layers)}"
            for stage in replica.stages
        )
        key = (row, replica.microbatch_size)
        kinds[key] += 1
        most[key] = max(most.get(key, 0), replica.num_microbatches)
    return [
        f"{count} x [{row}] mb{size} x{most[row, size]}" for (row, size), count in kinds.items()
    ]


def as_artifact(plan: Plan) -> dict[str, Any] | None:
    """The plan in the artifact's own form where that has words for it."""
    try:
        return plan_document(plan)
    except ValueError:
        return None


def table(rows: list[dict[str, Any]]) -> None:
    """One line for each scenario."""
    print(f"{'scenario':<18}{'it/s':>9}{'$/it':>8}{'cpu s':>8}   published:"
          f"{'it/s':>9}{'$/it':>8}{'cpu s':>8}{'better by':>11}")  # fmt: skip
    for row in rows:
        ours, theirs = row["ours"], row.get("published")
        line = f"{row['scenario']:<18}"
        line += "no plan" if ours is None else f"{ours['throughput']:>9.4f}{ours['dollars']:>8.3f}"
        line += f"{row['cpu_s']:>8.3f}"
        if theirs:
            line += f"             {theirs['throughput']:>9.4f}{theirs['dollars']:>8.3f}"
            line += f"{theirs.get('cpu_s', float('nan')):>8.3f}"
            line += f"{row['ratio'] - 1:>+11.1%}"
            line += "  breaks limits" if theirs["broken"] else ""
        print(line)


def curve(points: list[dict[str, Any]]) -> None:
    """One line for each pool at scale, by GPUs and zones."""
    print(f"{'GPUs':<8}{'types':>6}{'zones':>6}{'search cpu s':>14}{'bound cpu s':>13}"
          f"{'step s':>9}{'gap':>8}{'GPUs used':>11}")  # fmt: skip
    for point in sorted(points, key=lambda p: (p["types"], p["gpus"], p["zones"])):
        gap = "-" if point["gap"] is None else f"{point['gap']:.0%}"
        print(
            f"{point['gpus']:<8}{point['types']:>6}{point['zones']:>6}"
            f"{point['search_cpu_s']:>14.2f}{point['bound_cpu_s']:>13.2f}"
            f"{point['step_s']:>9.3f}{gap:>8}{point['gpus_used']:>11}"
        )


if __name__ == "__main__":
    main()
