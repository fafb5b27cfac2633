"""How far predictions are from published measurements: step seconds, choice of layout, memory.

``python -m benchmarks.accuracy [--json] [--data FILE] [--fitted]``

Without FILE: cross-validation on the collection that the project's numbers were fitted to
(sailor/profile/stacks). Every figure is for runs the numbers were not fitted to:

* calibrated: five folds by shape (by run where a stack ran fewer than three shapes); a stack's
  factor from its other runs, and one run of its own, the one predicted to use its GPUs best;
* unseen source: all runs of a source left out, no factor;
* unseen GPU: all runs of a GPU left out; the source's factor on its other GPUs, if it has any.

With FILE: nothing is fitted to it but the one run of each stack; the numbers are the shipped ones.
Source-balanced: the mean over sources of their mean absolute error. Runs of a toy model (hidden
size 512) count for memory only. ``--fitted`` prints the numbers fitted to all runs, for priors.py.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.accuracy_floor import floors
from benchmarks.document import machine, show
from sailor.profile.stacks.fit import Fit, fit_peaks, fit_steps, shipped, start
from sailor.profile.stacks.peak import peak_gigabytes
from sailor.profile.stacks.priors import PEAK, PEAK_MARGIN, STACKS, STEP
from sailor.profile.stacks.runs import Column, Mask, Runs, read_runs
from sailor.profile.stacks.step import step_seconds, with_unstated_choices

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "training"
FOLDS = 5
TOY_HIDDEN = 512
# What one run of a known stack tells beside all its other runs, and of a stack never seen: spreads
# of a logarithm. A single run is 8 % noise (other settings, other days).
ONE_RUN_SPREAD = 0.08
KNOWN_STACK_SPREAD = 0.04
UNKNOWN_STACK_SPREAD = 0.15
LAYOUT = ("tp", "pp", "dp", "cp", "vpp", "micro_batch", "recompute", "zero_fsdp", "seq_parallel")
LEAST_LAYOUTS = 4
BOUND_SHARE = 0.995  # of peaks that are to stay below their bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="accepted; it takes a minute anyway")
    parser.add_argument("--data", type=Path, help="a CSV of runs to score with shipped numbers")
    parser.add_argument("--fitted", action="store_true", help="print fitted numbers and stop")
    options = parser.parse_args()
    path = options.data or DATA / "measured_fit.csv"
    if not path.exists():
        raise SystemExit(f"no measurements at {path}; see --data")
    runs, left_out = read_runs(path)
    timed = with_unstated_choices(runs.where(_timed(runs)), start(STEP))
    weighed = runs.where(_weighed(runs))
    if options.fitted:
        print_fitted(timed, weighed)
        return
    scored = shipped_scores(timed) if options.data else cross_validation(timed)
    memory = shipped_memory(weighed) if options.data else validated_memory(weighed)
    figures, detail = time_figures(timed, scored)
    more_figures, more_detail = memory_figures(weighed, memory, runs)
    figures |= more_figures
    detail |= more_detail
    detail["left_out"] = left_out
    detail["numbers"] = "shipped" if options.data else "cross-validated"
    detail["baselines"] = baselines()
    if not options.json:
        table(detail)
    show(
        {"benchmark": "accuracy", "figures": figures, "detail": detail, "machine": machine()},
        as_json=options.json,
    )


def _timed(runs: Runs) -> Mask:
    graded = np.array([row.get("grade", "A") in ("A", "B", "") for row in runs.rows])
    mask: Mask = (runs["seconds"] > 0) & (runs["hidden"] != TOY_HIDDEN) & graded
    return mask


def _weighed(runs: Runs) -> Mask:
    graded = np.array([row.get("grade", "A") in ("A", "B", "") for row in runs.rows])
    mask: Mask = (runs["memory_gb"] > 0) & graded
    return mask


# Step seconds.


def cross_validation(runs: Runs) -> dict[str, Column]:
    """Predictions of every run by numbers that did not see it, in three ways; nan: not scored."""
    return {
        "calibrated": _calibrated(runs),
        "unseen source": _left_out(runs, runs.sources.tolist(), factor=False),
        "unseen GPU": _left_out(runs, runs.gpus.tolist(), factor=True),
    }


def shipped_scores(runs: Runs) -> dict[str, Column]:
    """The same three with the shipped numbers. A source that was among the fitted ones is not
    really unseen then; its factor is left away."""
    numbers = shipped(STEP)
    said = step_seconds(runs, numbers)
    stacks = {key: float(np.log(factor)) for key, factor in STACKS.items()}
    fit = Fit(numbers=numbers, stacks=stacks)
    calibrated = np.full(len(runs), np.nan)
    chosen = _calibration_runs(runs)
    for i, key in enumerate(_stacks(runs)):
        if i != chosen[key]:
            calibrated[i] = said[i] * np.exp(_factor(runs, said, fit, key, chosen[key]))
    other_gpus = np.array(
        [_factor_elsewhere(fit.stacks, source, gpu) for source, gpu in _stacks(runs)]
    )
    return {
        "calibrated": calibrated,
        "unseen source": said,
        "unseen GPU": said * np.exp(other_gpus),
    }


def _calibrated(runs: Runs) -> Column:
    predicted = np.full(len(runs), np.nan)
    folds, keys, chosen = _folds(runs), _stacks(runs), _calibration_runs(runs)
    for fold in range(FOLDS):
        fit = fit_steps(runs.where(folds != fold))
        said = step_seconds(runs, fit.numbers)
        for i in np.flatnonzero(folds == fold).tolist():
            if i != chosen[keys[i]]:
                factor = _factor(runs, said, fit, keys[i], chosen[keys[i]])
                predicted[i] = said[i] * np.exp(factor)
    return predicted


def _factor(runs: Runs, said: Column, fit: Fit, key: tuple[str, str], calibration: int) -> float:
    """A stack's factor (a logarithm) from what is known of it and one run of its own."""
    one = float(np.log(runs["seconds"][calibration] / said[calibration]))
    known = fit.stacks.get(key)
    spread = UNKNOWN_STACK_SPREAD if known is None else KNOWN_STACK_SPREAD
    weight = spread**2 / (spread**2 + ONE_RUN_SPREAD**2)
    return (known or 0.0) * (1 - weight) + one * weight


def _left_out(runs: Runs, groups: Sequence[str], *, factor: bool) -> Column:
    predicted = np.full(len(runs), np.nan)
    for name in sorted(set(groups)):
        held = np.array([group == name for group in groups])
        fit = fit_steps(runs.where(~held))
        said = step_seconds(runs, fit.numbers)
        for i in np.flatnonzero(held).tolist():
            shift = _factor_elsewhere(fit.stacks, *_stacks(runs)[i]) if factor else 0.0
            predicted[i] = said[i] * np.exp(shift)
    return predicted


def _factor_elsewhere(stacks: Mapping[tuple[str, str], float], source: str, gpu: str) -> float:
    """The mean factor of a source on its other GPUs."""
    others = [value for (name, other), value in stacks.items() if name == source and other != gpu]
    return float(np.mean(others)) if others else 0.0


def _stacks(runs: Runs) -> list[tuple[str, str]]:
    return list(zip(runs.sources.tolist(), runs.gpus.tolist(), strict=True))


def _calibration_runs(runs: Runs) -> dict[tuple[str, str], int]:
    """For each stack the run that the unfitted numbers expect to use its GPUs best: the one a user
    would try first."""
    said = step_seconds(runs, start(STEP))
    work = runs["global_batch"] * runs["tokens_per_sequence"] * runs["parameters"]
    use = work / runs["num_gpus"] / runs["matmul"] / said
    chosen: dict[tuple[str, str], int] = {}
    for i, key in enumerate(_stacks(runs)):
        if key not in chosen or use[i] > use[chosen[key]]:
            chosen[key] = i
    return chosen


def _folds(runs: Runs) -> Column:
    """Runs of one shape share a fold, so that no shape is on both sides."""
    shapes: dict[tuple[str, str], set[str]] = defaultdict(set)
    names = []
    for row, key in zip(runs.rows, _stacks(runs), strict=True):
        shape = "|".join(
            row[name] for name in ("source", "model", "gpu", "layers", "hidden", "num_gpus", "seq")
        )
        shapes[key].add(shape)
        names.append((shape, row["row_id"]))
    return np.array(
        [
            _hash(shape if len(shapes[key]) >= 3 else row_id) % FOLDS
            for (shape, row_id), key in zip(names, _stacks(runs), strict=True)
        ]
    )


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def time_figures(runs: Runs, scored: Mapping[str, Column]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Errors by source, and what choosing a layout by the predictions would cost."""
    tables = {name: _by_source(runs, predicted) for name, predicted in scored.items()}
    names = {
        "calibrated": "time_mape_calibrated",
        "unseen source": "time_mape_unseen_source",
        "unseen GPU": "time_mape_unseen_gpu",
    }
    figures: dict[str, Any] = {
        key: float(np.mean([row["mape"] for row in tables[name].values()]))
        for name, key in names.items()
    }
    regrets = _regrets(runs, scored["unseen source"])
    figures["regret_median"] = median(r["regret"] for r in regrets) if regrets else None
    figures["regret_worst"] = max((r["regret"] for r in regrets), default=None)
    by_gpu = {
        gpu: float(np.nanmean(np.abs(scored["unseen GPU"] / runs["seconds"] - 1)[runs.gpus == gpu]))
        for gpu in sorted(set(runs.gpus.tolist()))
    }
    return figures, {
        "time": tables,
        "time_rows": len(runs),
        "time_mape_unseen_gpu_by_gpu": by_gpu,
        "layout_choice": regrets,
    }


def _by_source(runs: Runs, predicted: Column) -> dict[str, dict[str, float]]:
    found = {}
    for source in sorted(set(runs.sources.tolist())):
        mask = (runs.sources == source) & ~np.isnan(predicted)
        if mask.any():
            miss = predicted[mask] / runs["seconds"][mask] - 1
            found[source] = {
                "rows": int(mask.sum()),
                "mape": float(np.abs(miss).mean()),
                "median": float(np.median(np.abs(miss))),
                "bias": float(miss.mean()),
                "worst": float(miss[np.argmax(np.abs(miss))]),
            }
    return found


def _regrets(runs: Runs, predicted: Column) -> list[dict[str, Any]]:
    """For every group of at least four layouts of the same work on the same GPUs: how much slower
    the layout predicted fastest is than the fastest measured."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, row in enumerate(runs.rows):
        key = ("source", "model", "gpu", "num_gpus", "global_batch", "seq", "precision")
        groups[tuple(row[name] for name in key)].append(i)
    found = []
    for key, members in groups.items():
        layouts = {tuple(runs.rows[i][name] for name in LAYOUT) for i in members}
        if len(layouts) < LEAST_LAYOUTS:
            continue
        chosen = min(members, key=lambda i: predicted[i])
        best = min(runs["seconds"][i] for i in members)
        found.append(
            {
                "source": key[0],
                "model": key[1],
                "gpus": f"{key[3]} x {key[2]}",
                "layouts": len(layouts),
                "regret": float(runs["seconds"][chosen] / best - 1),
                "rank_correlation": _rank_correlation(predicted[members], runs["seconds"][members]),
            }  # fmt: skip
        )
    return found


def _rank_correlation(a: Column, b: Column) -> float:
    """Spearman's; ties get neighbouring ranks."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


# Memory.


def validated_memory(runs: Runs) -> tuple[Column, Column]:
    """Predicted gigabytes and their upper bounds, from the folds a run is not in."""
    predicted = np.full(len(runs), np.nan)
    bounds = np.full(len(runs), np.nan)
    folds = _folds(runs)
    for fold in range(FOLDS):
        training = runs.where(folds != fold)
        fit = fit_peaks(training)
        margin = _margin(training, peak_gigabytes(training, fit.numbers))
        held = folds == fold
        predicted[held] = peak_gigabytes(runs.where(held), fit.numbers)
        bounds[held] = predicted[held] * margin
    return predicted, bounds


def shipped_memory(runs: Runs) -> tuple[Column, Column]:
    """The same with the shipped numbers and the shipped margin."""
    predicted = peak_gigabytes(runs, shipped(PEAK))
    return predicted, predicted * PEAK_MARGIN


def _margin(runs: Runs, predicted: Column) -> float:
    return bound_factor(runs["memory_gb"] / predicted)


def bound_factor(ratios: Column) -> float:
    """What a further ratio of measured to predicted stays below with 99.5 %, for all that these
    tell.

    Split conformal prediction takes the ceil((n + 1) q)-th smallest (Lei et al. 2018, section 2.2),
    which of fewer than 200 is the largest.
    """
    rank = ceil((len(ratios) + 1) * BOUND_SHARE)
    return float(np.sort(ratios)[min(len(ratios), rank) - 1])


def memory_figures(
    runs: Runs, memory: tuple[Column, Column], everything: Runs
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Errors by source (the toy model's runs are a source of their own), misses of the bound, and
    whether runs that ran out of memory would have been refused."""
    predicted, bounds = memory
    least = floors(runs, "memory_gb")
    toy = runs["hidden"] == TOY_HIDDEN
    by_source = {}
    for source in sorted(set(runs.sources.tolist())):
        for label, mask in ((source, (runs.sources == source) & ~toy),
                            (f"{source}, toy model", (runs.sources == source) & toy)):  # fmt: skip
            if mask.any():
                miss = predicted[mask] / runs["memory_gb"][mask] - 1
                by_source[label] = {
                    "rows": int(mask.sum()),
                    "mape": float(np.abs(miss).mean()),
                    "median": float(np.median(np.abs(miss))),
                    "bias": float(miss.mean()),
                    "under_bound": float((runs["memory_gb"][mask] > bounds[mask]).mean()),
                    "floor": float(least[mask].mean()),
                }
    failed = everything.where(
        np.array([row.get("oom", "").strip().lower() == "yes" for row in everything.rows])
    )
    recall = None
    if len(failed):
        numbers = fit_peaks(runs).numbers if runs.rows else shipped(PEAK)
        need = peak_gigabytes(failed, numbers) * 1e9
        recall = float((need * PEAK_MARGIN > failed["capacity"]).mean())
    real = [entry for label, entry in by_source.items() if "toy" not in label]
    figures = {
        "memory_mape": float(np.mean([entry["mape"] for entry in real])) if real else None,
        "memory_floor": float(np.mean([entry["floor"] for entry in real])) if real else None,
        "memory_mape_with_toy_model": (
            float(np.mean([entry["mape"] for entry in by_source.values()])) if by_source else None
        ),
        "memory_underpredicted_share": (
            float((runs["memory_gb"] > bounds).mean()) if len(runs) else None
        ),
        "oom_recall": recall,
    }
    return figures, {"memory": by_source, "oom_rows": len(failed)}


def print_fitted(timed: Runs, weighed: Runs) -> None:
    """Lines for priors.py."""
    steps, peaks = fit_steps(timed), fit_peaks(weighed)
    for table_name, priors, numbers in (
        ("STEP", STEP, steps.numbers),
        ("PEAK", PEAK, peaks.numbers),
    ):
        print(f"{table_name}:")
        for (name, entry), value in zip(priors.items(), np.exp(numbers), strict=True):
            print(
                f'    "{name}": Prior({entry.prior:.4g}, {entry.spread}, {value:.4g}, '
                f'"{entry.meaning}"),'
            )
    print("STACKS:")
    for (source, gpu), value in sorted(steps.stacks.items()):
        print(f'    ("{source}", "{gpu}"): {np.exp(value):.3f},')
    margin = _margin(weighed, peak_gigabytes(weighed, peaks.numbers))
    print(f"PEAK_MARGIN = {margin:.2f}")


def baselines() -> list[dict[str, str]]:
    """Scores of other models, if the collection that has them is there."""
    path = DATA / "baselines.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(detail: Mapping[str, Any]) -> None:
    """Errors by source beside each other, and the baselines."""
    tables = detail["time"]
    print(f"step seconds, mean absolute error ({detail['numbers']} numbers)")
    print(f"  {'source':<48}{'rows':>5}" + "".join(f"{name:>16}" for name in tables))
    for source in tables["unseen source"]:
        line = f"  {source[:47]:<48}{tables['unseen source'][source]['rows']:>5}"
        for scores in tables.values():
            line += f"{scores[source]['mape']:>16.1%}" if source in scores else f"{'-':>16}"
        print(line)
    print("choice of layout by predictions of an unseen source")
    for entry in detail["layout_choice"]:
        print(
            f"  {entry['model']:<20}{entry['gpus']:<22}{entry['layouts']:>3} layouts   "
            f"{entry['regret']:>6.1%} slower than the best   "
            f"rank correlation {entry['rank_correlation']:.2f}"
        )
    print(f"{'peak memory':<55}{'error':>16}{'no model below':>16}")
    for source, entry in detail["memory"].items():
        print(f"  {source[:47]:<48}{entry['rows']:>5}{entry['mape']:>16.1%}{entry['floor']:>16.1%}")
    if detail["baselines"]:
        print("other models on these collections (mean absolute error, %)")
        for row in detail["baselines"]:
            print(f"  {row['baseline'][:47]:<48}{row['track'][:22]:<24}{row['mape_pct']:>7}")


if __name__ == "__main__":
    main()
