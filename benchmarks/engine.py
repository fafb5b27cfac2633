"""Our engine against what else there is, and against itself without its elastic parts.

``python -m benchmarks.engine [--json] [--quick] [--only PART ...]``. Every figure is a ratio of
things measured in this run, in turns (benchmarks/engine_crew.py):

- ``torch``: torch.distributed.pipelining + DTensor (TP2 x PP2) and + FSDP2 (PP2 x DP2), steps/s of
  ours over theirs; replicas of ours share the optimizer's state and work, as those of FSDP2 do.
  ``torch`` is FSDP2 by default, which gives parameters up after each forward pass; ``torch_kept``
  keeps them, as torchtitan does with a pipeline;
- ``peers``: PP2 x DP2 as a share of the ideal (two cores: half the time of one single-thread
  ``transformers`` process), TP2 x PP2 over that one process, and over what picotron and
  megatron-core were measured to reach in the same ratio; ``both_cores`` is the share of the ideal
  that two such processes reach side by side, which know nothing of each other: what this machine
  grants at most; ``over_sockets``: how much longer the same takes where the ranks are told that
  each has a machine of its own, and so exchange over sockets;
- ``single``: one process of ours against it, forward + backward + step, by CPU time;
- ``elastic``: whole runs against the bare engine (benchmarks/engine_elastic.py);
- ``scaling``: CPU seconds per token of 1, 2 and 4 replicas with the same work for each, and of two
  and four single replicas that know nothing of each other (``apart``): what the machine itself asks
  for, with fewer cores than replicas above all.

Figures that end in ``same_products`` leave matrix products to the library that torch itself takes.
Where it is not the fastest for the processor, ours takes another (sailor/parallel/products.py), and
the plain figures are what a user gets by both.

Wall times are those of the best of many short rounds: other users of the machine can only add to
them. Medians and spreads are in the detail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import engine_elastic
from benchmarks.document import machine, show
from benchmarks.engine_crew import Record, assembled, compete, ratio
from benchmarks.engine_shapes import CUTS, some_text

Part = dict[str, Any]

# Other 3D codes in these shapes on two cores, in times the speed of the one-process model that was
# measured beside them (Llama of transformers, one thread): 4 processes, gloo, TP2 x PP2.
PEERS_TP2PP2 = {
    "3m": {"picotron": 428 / 517, "megatron-core 0.16.1": 428 / 599},
    "25m": {"picotron": 1489 / 1525, "megatron-core 0.16.1": 1489 / 1302},
}
# What each figure has to reach: the bound, and whether it is a most or a least.
GOALS: dict[str, tuple[str, float]] = {
    "ratio_vs_torch_tp2pp2": (">=", 1.5),
    "ratio_vs_torch_pp2dp2": (">=", 1.5),
    "share_of_ideal_pp2dp2_3m": (">=", 0.85),
    "share_of_ideal_pp2dp2_25m": (">=", 0.85),
    "tp2pp2_vs_one_process": (">=", 1.0),
    "tp2pp2_vs_peers": (">=", 1.3),
    "ratio_vs_transformers_1p": ("<=", 1.03),
    "elastic_overhead": ("<=", 0.02),
    "snapshot_stall_share": ("<=", 0.05),
    "weak_scaling_cpu_per_token": ("<=", 1.10),
}


class Bench:
    """What all parts share: how long to measure, and on which text."""

    def __init__(self, *, quick: bool, deterministic: bool, folder: Path) -> None:
        self.quick = quick
        self.deterministic = deterministic
        self.folder = folder
        self.tokens = some_text(folder / "tokens")

    def ours(self, shape: str, cut: str, **more: Any) -> Part:
        """A crew of our engine."""
        tensor, pipeline, data = CUTS[cut]
        return {
            "kind": "ours", "world_size": tensor * pipeline * data, "shape": shape, "cut": cut,
            "deterministic": self.deterministic, "tokens": self.tokens, "sharded": data > 1,
            **more,
        }  # fmt: skip

    def theirs(self, kind: str, shape: str, **more: Any) -> Part:
        """A crew of somebody else's."""
        return {
            "kind": kind, "world_size": 1 if kind == "transformers" else 4, "shape": shape,
            "tokens": self.tokens, **more,
        }  # fmt: skip

    def compete(
        self, jobs: Mapping[str, Part], *, rounds: int, steps: Mapping[str, int]
    ) -> dict[str, Record]:
        """Turns of all of them; a quarter of the rounds when in a hurry."""
        with ExitStack() as stack:
            crews = assembled(stack, jobs)
            return compete(crews, rounds=max(3, rounds // 4) if self.quick else rounds, steps=steps)


def torch_part(bench: Bench) -> Part:
    """The same model and cut by torch's own parts."""
    figures: dict[str, float] = {}
    detail: Part = {}
    for cut in ("tp2pp2", "pp2dp2"):
        jobs = {
            "ours": bench.ours("3m", cut),
            "ours, same products": bench.ours("3m", cut, same_products=True),
            "torch": bench.theirs(f"torch_{cut}", "3m", reshard=True),
        }
        if cut == "pp2dp2":
            jobs["torch kept"] = bench.theirs(f"torch_{cut}", "3m", reshard=False)
        records = bench.compete(
            jobs, rounds=16, steps={name: 3 if "ours" in name else 2 for name in jobs}
        )
        for name in [name for name in jobs if "ours" not in name]:
            figure = f"ratio_vs_{name.replace(' ', '_')}_{cut}"
            for ours, more in (("ours", ""), ("ours, same products", "_same_products")):
                times = ratio(records[name], records[ours])
                figures[figure + more] = times["best"]
                detail[f"{name} {cut}{more}"] = {
                    "ratio": times, "cpu_ratio": ratio(records[name], records[ours], of="cpu_s"),
                }  # fmt: skip
        detail[cut] = _details(records)
    return {"figures": figures, "detail": detail}


def peers_part(bench: Bench) -> Part:
    """Both shapes against one single-thread process of transformers."""
    figures: dict[str, float] = {}
    detail: Part = {"peers_tp2pp2_speed_up": PEERS_TP2PP2}
    faster, above, above_same = [], [], []
    for shape in ("3m", "25m"):
        jobs = {
            "one": bench.theirs("transformers", shape),
            "two": bench.theirs("transformers", shape, world_size=2),
            "pp2dp2": bench.ours(shape, "pp2dp2"), "tp2pp2": bench.ours(shape, "tp2pp2"),
            "pp2dp2 apart": bench.ours(shape, "pp2dp2", apart=True),
            "tp2pp2 apart": bench.ours(shape, "tp2pp2", apart=True),
            "pp2dp2 same": bench.ours(shape, "pp2dp2", same_products=True),
            "tp2pp2 same": bench.ours(shape, "tp2pp2", same_products=True),
        }  # fmt: skip
        many = 3 if shape == "3m" else 1
        records = bench.compete(
            jobs, rounds=16 if shape == "3m" else 10, steps=dict.fromkeys(jobs, many)
        )
        data, tensor = (ratio(records["one"], records[cut]) for cut in ("pp2dp2", "tp2pp2"))
        both = ratio(records["one"], records["two"])["best"]
        figures[f"share_of_ideal_pp2dp2_{shape}"] = data["best"] / 2
        figures[f"share_of_ideal_both_cores_{shape}"] = both
        figures[f"share_of_both_cores_pp2dp2_{shape}"] = data["best"] / 2 / both
        figures[f"tp2pp2_vs_one_process_{shape}"] = tensor["best"]
        data_same, tensor_same = (
            ratio(records["one"], records[f"{cut} same"])["best"] for cut in ("pp2dp2", "tp2pp2")
        )
        figures[f"share_of_ideal_pp2dp2_{shape}_same_products"] = data_same / 2
        figures[f"tp2pp2_vs_one_process_{shape}_same_products"] = tensor_same
        for cut in ("pp2dp2", "tp2pp2"):
            over = ratio(records[f"{cut} apart"], records[cut])["best"]
            figures[f"over_sockets_{cut}_{shape}"] = over
        faster.append(tensor["best"])
        above.append(tensor["best"] / max(PEERS_TP2PP2[shape].values()))
        above_same.append(tensor_same / max(PEERS_TP2PP2[shape].values()))
        detail[shape] = {
            "pp2dp2_speed_up": data, "tp2pp2_speed_up": tensor,
            # What two cores that never wait would make of the CPU time that was used.
            "pp2dp2_speed_up_by_cpu": 2 * records["one"].cpu_s / records["pp2dp2"].cpu_s,
            "tp2pp2_speed_up_by_cpu": 2 * records["one"].cpu_s / records["tp2pp2"].cpu_s,
            **_details(records),
        }  # fmt: skip
    figures["tp2pp2_vs_one_process"] = min(faster)
    figures["tp2pp2_vs_peers"] = min(above)
    figures["tp2pp2_vs_peers_same_products"] = min(above_same)
    return {"figures": figures, "detail": detail}


def single_part(bench: Bench) -> Part:
    """One process each, by CPU time."""
    figures: dict[str, float] = {}
    detail = {}
    for shape in ("3m", "25m"):
        jobs = {
            "theirs": bench.theirs("transformers", shape), "ours": bench.ours(shape, "one"),
            "same products": bench.ours(shape, "one", same_products=True),
        }  # fmt: skip
        many = 3 if shape == "3m" else 1
        records = bench.compete(jobs, rounds=16, steps=dict.fromkeys(jobs, many))
        times = ratio(records["ours"], records["theirs"], of="cpu_s")
        same = ratio(records["same products"], records["theirs"], of="cpu_s")
        figures[f"ratio_vs_transformers_1p_{shape}"] = times["best"]
        figures[f"ratio_vs_transformers_1p_{shape}_same_products"] = same["best"]
        detail[shape] = {"cpu_ratio": times, "cpu_ratio_same": same, **_details(records)}
    figures["ratio_vs_transformers_1p"] = max(figures.values())
    return {"figures": figures, "detail": detail}


def elastic_part(bench: Bench) -> Part:
    """Controller, agents, heartbeats, snapshots and event log."""
    return engine_elastic.report(
        "3m", rounds=1 if bench.quick else 3, steps=15 if bench.quick else 60, batch=8,
        tokens=bench.tokens, folder=bench.folder,
    )  # fmt: skip


def scaling_part(bench: Bench) -> Part:
    """One to four replicas, 16 sequences for each."""
    figures: dict[str, float] = {}
    detail: Part = {}
    for same, more in ((False, ""), (True, "_same_products")):
        jobs = {
            f"{number}": bench.ours("3m", cut, batch=16 * number, sharded=False, same_products=same)
            for number, cut in ((1, "one"), (2, "dp2"), (4, "dp4"))
        }
        apart = {
            f"{number} apart": bench.ours(
                "3m", "one", batch=16, sharded=False, same_products=same, world_size=number
            )
            for number in (2, 4)
        }
        records = bench.compete(jobs | apart, rounds=12, steps=dict.fromkeys([*jobs, *apart], 2))
        each = {name: records[name].cpu_s / int(name.split()[0]) for name in jobs | apart}
        for name in apart:
            figures[f"cpu_per_token_{name.replace(' ', '_')}{more}"] = each[name] / each["1"]
        figures[f"weak_scaling_cpu_per_token{more}"] = max(each[n] for n in jobs) / each["1"]
        figures[f"weak_scaling_over_apart{more}"] = max(
            each[n] / each[f"{n} apart"] for n in ("2", "4")
        )
        detail[f"scaling{more}"] = {"cpu_s_per_worker_and_step": each, **_details(records)}
    return {"figures": figures, "detail": detail}


PARTS: dict[str, Callable[[Bench], Part]] = {
    "torch": torch_part,
    "peers": peers_part,
    "single": single_part,
    "elastic": elastic_part,
    "scaling": scaling_part,
}


def main() -> int:
    """Exit code: 0, or 1 when a part could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: less to be trusted")
    parser.add_argument("--deterministic", action="store_true", help="ours with exact sums")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=sorted(PARTS))
    options = parser.parse_args()
    figures: dict[str, float | None] = {}
    failed: list[str] = []
    detail: Part = {"deterministic": options.deterministic, "goals": GOALS}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(quick=options.quick, deterministic=options.deterministic, folder=Path(folder))
        for name in [part for part in PARTS if part in options.only]:
            began = time.monotonic()
            try:
                part = PARTS[name](bench)
            except RuntimeError as error:  # one contender that breaks is no reason to know nothing
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
                continue
            figures |= part["figures"]
            detail[name] = part["detail"]
            print(f"{name}: measured in {time.monotonic() - began:.0f} s", file=sys.stderr)
    document = {
        "benchmark": "engine", "figures": figures, "detail": {**detail, "failed": failed},
        "machine": machine(),
    }  # fmt: skip
    if options.json:
        show(document, as_json=True)
    else:
        Console().print(table(figures))
    return 1 if failed else 0


def table(figures: Mapping[str, float | None]) -> Table:
    """The figures beside what they have to reach."""
    drawn = Table(title="engine", title_justify="left")
    for heading, side in (
        ("figure", "left"),
        ("measured", "right"),
        ("goal", "right"),
        ("", "left"),
    ):
        drawn.add_column(heading, justify="right" if side == "right" else "left")
    for name, value in figures.items():
        relation, bound = GOALS.get(name, ("", 0.0))
        reached = ""
        if relation and value is not None:
            reached = "yes" if (value >= bound) == (relation == ">=") or value == bound else "no"
        drawn.add_row(
            name, "-" if value is None else f"{value:.4g}",
            f"{relation} {bound:g}" if relation else "", reached,
        )  # fmt: skip
    return drawn


def _details(records: Mapping[str, Record]) -> Part:
    return {name: record.detail() for name, record in records.items()}


if __name__ == "__main__":
    sys.exit(main())
