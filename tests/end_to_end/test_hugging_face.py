"""A model of transformers goes into a run and comes out again, with machines in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from actions.origin import read_tokens
from sailor.data.tokenizer import ByteTokenizer
from sailor.data.tokens import TokenStream, load_manifest
from sailor.training.evaluate import held_out_sequences
from tests.helpers.compose import ROOT
from tests.helpers.hf import a_folder, loaded
from tests.helpers.running import PATIENT, Ended, Place

LENGTH, SAMPLES = 32, 8
BASE = (
    f"train.sequence_length={LENGTH}", "train.global_batch_size=8", "planner.microbatch_size=2",
    f"train.eval_samples={SAMPLES}", "cloud.memory_per_gpu=1GiB", "train.steps=3",
    "optim.learning_rate=1e-3", "cloud.nodes=2", "planner.pipeline_parallel=2", *PATIENT,
)  # fmt: skip
# Whole-model sums in one order against those of two stages in another, in fp32.
RELATIVE = 1e-6


def eval_losses(ended: Ended) -> dict[int, float]:
    """Step -> held-out loss."""
    return {
        event["step"]: event["eval_loss"]
        for event in ended.events
        if event.kind == "step" and event.get("eval_loss") is not None
    }


def held_out_loss(folder: Path, run: Path) -> float:
    """What transformers says of the model in a folder, on the sequences a run holds out."""
    manifest = load_manifest(Path(read_tokens(run).path))
    stream = TokenStream(manifest, manifest.held_out, sequence_length=LENGTH)
    chosen = held_out_sequences(eval_samples=SAMPLES, blend=stream.blend)
    tokens = torch.from_numpy(stream.read(chosen))
    with torch.no_grad():
        logits = loaded(folder)(tokens[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def document(place: Place, *arguments: str) -> dict:
    """What an action says on standard output."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments, "output=json",
         f"runs_dir={place.runs}"],
        cwd=place.root, env=place.environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_a_model_is_continued_and_exported(place: Place, tmp_path: Path):
    original = a_folder(tmp_path / "qwen", "qwen2", shard="20KB")
    for name, content in ByteTokenizer().files().items():
        (original / name).write_bytes(content)
    first = place.train(f"model={original}", base=BASE)
    assert first.code == 0, first.told()
    losses = eval_losses(first)
    assert losses[0] == pytest.approx(held_out_loss(original, first.folder), rel=RELATIVE)
    assert losses[3] < losses[0]

    export = document(place, "action=export", f"run.name={first.folder.name}")
    assert export["step"] == 3
    after = held_out_loss(Path(export["directory"]), first.folder)
    assert after == pytest.approx(losses[3], rel=RELATIVE)
    found = document(place, "action=eval", f"run.name={first.folder.name}", "eval.tokens=5")
    assert found["held_out_loss"] == pytest.approx(losses[3], rel=RELATIVE)
    assert len(found["samples"]) == 2

    # The weights alone, by way of a torch distributed checkpoint, begin another run.
    dcp = document(
        place, "action=export", "export.format=dcp", f"run.name={first.folder.name}"
    )["directory"]  # fmt: skip
    second = place.train(
        f"model={original}", f"model.init_from={dcp}", base=(*BASE, "train.steps=1")
    )
    assert second.code == 0, second.told()
    assert eval_losses(second)[0] == pytest.approx(losses[3], rel=RELATIVE)


@pytest.mark.slow
def test_weights_that_vanish_before_the_workers_read_them_end_the_run_in_words(
    place: Place, tmp_path: Path
):
    """A torch checkpoint is only looked at by those who load it: its tensors are gone here."""
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"")
    ended = place.train(
        f"model.init_from={folder}", "model=gpt_tiny", "runtime.max_restarts=1",
        base=tuple(word for word in BASE if "planner" not in word and "nodes" not in word)
        + ("cloud.nodes=1",),
    )  # fmt: skip
    assert ended.code == 1, ended.told()
    assert "table of contents" in ended.out + ended.err + "".join(
        path.read_text() for path in (ended.folder / "logs").glob("*.log")
    )
    assert os.listdir(folder) == [".metadata"]
