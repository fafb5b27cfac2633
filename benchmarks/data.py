"""What data costs on its way in and out: tokenizing, reading, saving beside training, exporting.

``python -m benchmarks.data [--json] [--quick] [--only PART ...]``. Every figure is a ratio of
things measured in this run:

- ``tokenize``: text on disk to a finished folder of tokens, over a bare ``encode_batch_fast`` of
  the ``tokenizers`` library on the same text, decoded and in memory already: tokens/s of ours over
  theirs, the best of rounds taken in turns. Preparing reads, checks, hashes and writes on top.
  Where others use the machine the best of few rounds is chance: ``tokenize_cpu_ratio`` is the
  median over rounds of theirs over ours in CPU seconds of all cores.
- ``run``: a run with a snapshot every step and a durable checkpoint every fifth, by its event log.
  ``loader_wait_share`` is the time that steps waited for their samples, ``persist_stall_share``
  what durable steps waited for their snapshot beyond what other steps do, both over the time of
  all steps.
- ``export``: a checkpoint as a Hugging Face folder in several shards, in a process of its own: the
  most memory it held beyond what it held before, over the largest shard.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.document import machine, show
from benchmarks.snapshot_waits import waited
from sailor.data.corpus import Corpus, standard_library
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import open_tokenizer, train_tokenizer
from sailor.observe.events import Event, read_events

ROOT = Path(__file__).resolve().parent.parent
Part = dict[str, Any]

# What each figure has to reach: a most or a least.
GOALS: dict[str, tuple[str, float]] = {
    "tokenize_ratio": (">=", 0.9),
    "loader_wait_share": ("<=", 0.01),
    "persist_stall_share": ("<=", 0.02),
    "export_peak_ratio": ("<=", 1.5),
}
VOCABULARY = 4096
PERSIST_EVERY = 5
_TOKENIZE_S, _QUICK_S = 180.0, 60.0
_SKIPPED = 4  # steps in which all that happens once happens
_DEADLINE_S = 500.0


def tokenize_part(folder: Path, *, quick: bool) -> Part:
    """Ours and the bare library in turns, on the standard library's source."""
    import tokenizers

    library = standard_library()
    # Enough that what happens once counts little, and rounds short enough that many of them find
    # the machine quiet.
    files = library.files[::2]
    corpus = Corpus(name="standard library, every so many files", root=library.root, files=files)
    path = folder / "tokenizer.json"
    some = Corpus(name="a tenth", root=corpus.root, files=corpus.files[::10])
    train_tokenizer(some.documents(), vocab_size=VOCABULARY, path=path)
    ours, bare = open_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    texts = [document.decode() for document in corpus.documents()]
    turns: dict[str, list[Turn]] = {"bare": [], "ours": []}
    source = TextSource(corpus, ours)
    began, number = time.monotonic(), 0
    while number < 6 or time.monotonic() - began < (_QUICK_S if quick else _TOKENIZE_S):
        number += 1
        encodings: list[Any] = []
        turns["bare"].append(timed(partial(encode, bare, texts, into=encodings)))
        num_tokens = sum(len(encoding) for encoding in encodings)
        encodings.clear()
        target = folder / f"round-{number}"
        turns["ours"].append(timed(partial(prepare, source, directory=target)))
        manifest = prepare(source, directory=target)  # it is there
        written = manifest.train_tokens + manifest.held_out_tokens - manifest.num_documents
        if written != num_tokens:
            raise RuntimeError(f"{written} tokens were written, the library makes {num_tokens}")
        shutil.rmtree(target)
    wall = {name: min(turn.wall_s for turn in some) for name, some in turns.items()}
    pairs = list(zip(turns["bare"], turns["ours"], strict=True))
    return {
        "figures": {
            "tokenize_ratio": wall["bare"] / wall["ours"],
            "tokenize_cpu_ratio": median(bare.cpu_s / ours.cpu_s for bare, ours in pairs),
        },
        "detail": {
            "tokens": num_tokens, "bytes": sum(len(text.encode()) for text in texts),
            "tokens_per_s": num_tokens / wall["ours"],
            "rounds": {name: [asdict(turn) for turn in some] for name, some in turns.items()},
        },
    }  # fmt: skip


def encode(bare: Any, texts: list[str], *, into: list[Any]) -> None:
    """All texts by the library alone, which spreads them over the cores."""
    into += bare.encode_batch_fast(texts, add_special_tokens=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one turn took: of the clock, and of all cores together."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Turn:
    """Do it once."""
    wall, cpu = time.monotonic(), time.process_time()
    work()
    return Turn(wall_s=time.monotonic() - wall, cpu_s=time.process_time() - cpu)


def run_part(folder: Path, *, quick: bool) -> Part:
    """Two replicas of the smallest model, whose steps are the shortest: shares are largest there.

    Each replica writes half of every checkpoint.
    """
    steps = 24 if quick else 80
    call(
        "action=train", f"runs_dir={folder}", "run.name=saving", f"train.steps={steps + _SKIPPED}",
        "train.eval_every=0", "train.eval_samples=4", "faults=none", "cloud.nodes=2",
        "cloud.memory_per_gpu=1GiB", "planner.data_parallel=2", "planner.pipeline_parallel=1",
        "planner.tensor_parallel=1",
        "checkpoint.snapshot_every=1", f"checkpoint.persist_every={PERSIST_EVERY}",
        f"data.cache={folder / 'cache'}",
    )  # fmt: skip
    events = read_events(folder / "saving" / "events.jsonl")
    # The last step's checkpoint is waited for on purpose: nothing trains beside it.
    counted = range(_SKIPPED + 1, steps + _SKIPPED)
    done = [e for e in events if e.kind == "step" and e["step"] in counted]
    saved = [e for e in events if e.kind == "persisted" and e["step"] in counted]
    if len(saved) < len(counted) // PERSIST_EVERY // 2:
        raise RuntimeError(f"only steps {[e['step'] for e in saved]} became durable")
    seconds = sum(e["seconds"] for e in done)
    usual, extra = stalls(events, counted)
    waits = [e["phases"].get("data", 0.0) for e in done]
    return {
        "figures": {
            "loader_wait_share": sum(waits) / seconds,
            "persist_stall_share": sum(extra.values()) / seconds,
        },
        "detail": {
            "steps": len(done), "durable_steps": [e["step"] for e in saved],
            "step_s": median(e["seconds"] for e in done), "loader_wait_s": median(waits),
            "usual_snapshot_stall_s": usual, "persist_stalls_s": extra,
            "checkpoint_bytes": saved[-1]["bytes"],
            "step_s_beside_writing": beside_writing(events, counted),
        },
    }  # fmt: skip


def stalls(events: tuple[Event, ...], counted: range) -> tuple[float, dict[int, float]]:
    """What a step usually waits for its snapshot, and durable step -> seconds beyond that."""
    told = waited(events, counted)
    usual = median(s for step, s in told.items() if step % PERSIST_EVERY)
    extra = {step: max(0.0, s - usual) for step, s in told.items() if step % PERSIST_EVERY == 0}
    return usual, extra


def beside_writing(events: tuple[Event, ...], counted: range) -> dict[str, float | None]:
    """Median seconds of steps that began while a checkpoint was being written, and of the others.

    Writers use processors as well: where none is idle, as here, steps beside them take longer.
    """
    ends = {e["step"]: e.t for e in events if e.kind == "step"}
    writing = [(ends[e["step"]], e.t) for e in events if e.kind == "persisted" if e["step"] in ends]
    beside: dict[bool, list[float]] = {True: [], False: []}
    for e in events:
        if e.kind == "step" and e["step"] in counted:
            began = e.t - e["seconds"]
            beside[any(a - 0.001 <= began < b for a, b in writing)].append(e["seconds"])
    return {
        name: median(found) if found else None
        for name, found in (("writing", beside[True]), ("not_writing", beside[False]))
    }


def export_part(folder: Path, *, quick: bool) -> Part:
    """A model of some 57 million parameters (with --quick, 26), in about ten shards."""
    hidden = 512 if quick else 768
    common = (f"runs_dir={folder}", "run.name=large")
    call(
        "action=train", *common, "train.steps=1", "train.eval_every=0", "train.eval_samples=1",
        "faults=none", "cloud.nodes=1", "cloud.memory_per_gpu=6GiB", "train.global_batch_size=1",
        "train.sequence_length=32", "model.num_layers=8", f"model.hidden_size={hidden}",
        "model.num_heads=8", "model.num_kv_heads=8", f"model.head_size={hidden // 8}",
        f"model.ffn_hidden_size={4 * hidden}", f"data.cache={folder / 'cache'}",
    )  # fmt: skip
    shard = f"{12 if quick else 25}MB"
    document = call(
        "action=export", *common, f"export.max_shard={shard}",
        program=[sys.executable, "-m", "benchmarks.data_peak"],
    )  # fmt: skip
    exported = Path(document["export"]["directory"])
    shards = [path.stat().st_size for path in exported.glob("*.safetensors")]
    if len(shards) < 4:
        raise RuntimeError(f"{exported} has {len(shards)} shards: too few to say anything")
    return {
        "figures": {"export_peak_ratio": document["peak_bytes"] / max(shards)},
        "detail": {
            "shards": len(shards), "largest_shard_bytes": max(shards), "bytes": sum(shards),
            "peak_bytes": document["peak_bytes"], "before_bytes": document["before_bytes"],
        },
    }  # fmt: skip


PARTS: dict[str, Callable[..., Part]] = {
    "tokenize": tokenize_part,
    "run": run_part,
    "export": export_part,
}


def call(*words: str, program: list[str] | None = None) -> Part:
    """One command's JSON document. Raises RuntimeError if it fails."""
    done = subprocess.run(
        [*(program or [sys.executable, str(ROOT / "run.py")]), "output=json", *words],
        capture_output=True, text=True, cwd=ROOT, timeout=_DEADLINE_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    found: Part = json.loads(done.stdout)
    return found


def main() -> int:
    """Exit code: 0, or 1 when a part could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="less text, fewer steps and shards")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=sorted(PARTS))
    options = parser.parse_args()
    figures: dict[str, float] = {}
    detail: Part = {"goals": GOALS, "failed": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in [part for part in PARTS if part in options.only]:
            began = time.monotonic()
            place = Path(folder) / name
            place.mkdir()
            try:
                part = PARTS[name](place, quick=options.quick)
            except RuntimeError as error:  # one part that breaks is no reason to know nothing
                print(f"{name}: {error}", file=sys.stderr)
                detail["failed"].append(name)
                continue
            figures |= part["figures"]
            detail[name] = part["detail"]
            print(f"{name}: measured in {time.monotonic() - began:.0f} s", file=sys.stderr)
    show(
        {"benchmark": "data", "figures": figures, "detail": detail, "machine": machine()},
        as_json=options.json,
    )
    return 1 if detail["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
