"""action=eval: how well a checkpoint predicts text it never saw, and what it writes itself.

Of a run's checkpoint, on what the run held out; or of a model's folder (model=PATH) on what is held
out of the configured text. The weights are loaded into this process, in fp32, on the CPU.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actions import domain
from actions.console import Console, Told
from actions.origin import (
    TOKENIZER,
    check_first_weights,
    check_tokenizer,
    read_tokens,
    tokens_digest,
)
from actions.prepare import prepare_tokens
from actions.run_folder import run_name
from actions.sources import tokenizer_of
from actions.target import Target, check_whole, checkpoint_path, damaged, target
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.weights import CheckpointWeights
from sailor.config import Config
from sailor.data.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer
from sailor.data.tokens import Manifest, TokenStream, load_manifest
from sailor.errors import DataError
from sailor.models.spec import LogicalTensor, ModelSpec
from sailor.observe.report import write_report
from sailor.parallel.boxes import cut
from sailor.training.evaluate import held_out_sequences
from sailor.training.inference import ReadTensor, WholeModel, continued, mean_loss
from sailor.training.initial import initial_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """What is looked at, and the text it has not seen. ``config`` is what it was trained with."""

    source: str
    step: int
    spec: ModelSpec
    config: Config
    read: ReadTensor
    words: Tokenizer
    tokens: Manifest
    folder: Path | None  # of the run


def run(config: Config, console: Console) -> int:
    """Evaluate and show it; of a run, keep it in its folder too.

    Raises DataError: E509 the text is not the run's, E511 to E513 and E516 the weights cannot be
    used; ConfigError E608 when there is neither a run nor a model's folder.
    """
    with console.waiting("reading the checkpoint"):
        subject = _subject(config)
        try:
            model = WholeModel(subject.spec, subject.read)
        except CorruptSnapshot as error:
            raise damaged(Path(subject.source), str(error)) from error
    with console.waiting("reading the text it has not seen"):
        held_out = _held_out(model, subject)
    with console.waiting("writing samples") as tell:
        samples = _samples(model, subject, config, tell)
    document = {
        "action": "eval",
        "source": subject.source,
        "step": subject.step,
        "model": subject.spec.name,
        "held_out_loss": held_out.loss,
        "perplexity": math.exp(min(held_out.loss, 700.0)),
        "bits_per_byte": held_out.bits,
        "held_out_tokens": held_out.num_tokens,
        "held_out_by_source": held_out.by_source,
        "samples": samples,
    }
    if subject.folder is not None:
        kept = subject.folder / "eval"
        kept.mkdir(exist_ok=True)
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (kept / f"step-{subject.step:08d}.json").write_text(text + "\n")
        if (subject.folder / "events.jsonl").exists():
            write_report(subject.folder)
    _show(document, console)
    console.document(document)
    return 0


def _subject(config: Config) -> _Subject:
    folder = Path(config.runs_dir).expanduser() / run_name(config)
    ours = checkpoint_path(config) is not None or (folder / "config.yaml").exists()
    if ours or not domain.first_weights(config):
        return _of_run(target(config))
    return _of_folder(config)


def _of_run(found: Target) -> _Subject:
    check_whole(found.checkpoint)
    spec = found.spec
    try:
        weights = CheckpointWeights(found.checkpoint, spec=spec)
    except CorruptSnapshot as error:
        raise damaged(found.checkpoint, str(error)) from error
    record = read_tokens(found.folder)
    where = Path(record.path)
    tokens = load_manifest(where) if where.exists() else prepare_tokens(found.config)
    if tokens_digest(tokens) != record.tokens:
        raise DataError(
            f"the text of run {found.run} has changed", code="E509", where=tokens.path,
            why="what it held out is no longer there", fix="put the old text back",
        )  # fmt: skip

    def read(tensor: LogicalTensor) -> torch.Tensor:
        return torch.from_numpy(weights.rows(tensor.name, 0, tensor.shape[0]))

    return _Subject(
        source=str(found.checkpoint), step=found.step, spec=spec, config=found.config, read=read,
        words=(
            ByteTokenizer()
            if record.tokenizer == ByteTokenizer.name
            else open_tokenizer(found.folder / TOKENIZER)
        ),
        tokens=tokens, folder=found.folder,
    )  # fmt: skip


def _of_folder(config: Config) -> _Subject:
    check_first_weights(config)
    words = tokenizer_of(config)
    check_tokenizer(config, words)
    spec, source = domain.model_spec(config), domain.first_weights(config)
    weights = initial_weights(spec, seed=config.seed, folder=source)
    return _Subject(
        source=source, step=0, spec=spec, config=config,
        read=lambda tensor: weights(cut(tensor, pieces=1)[0]), words=words,
        tokens=prepare_tokens(config), folder=None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _HeldOut:
    """``loss`` in nats per token; ``bits`` per byte of the text that the predicted tokens stand
    for: ends of texts are predicted, and are none. ``by_source``: the loss of each."""

    loss: float
    bits: float
    num_tokens: int
    by_source: dict[str, float]


def _held_out(model: WholeModel, subject: _Subject) -> _HeldOut:
    train = subject.config.train
    stream = TokenStream(
        subject.tokens, subject.tokens.held_out, sequence_length=train.sequence_length
    )
    sequences = held_out_sequences(eval_samples=train.eval_samples, blend=stream.blend)
    source = np.searchsorted(stream.blend.starts, sequences, side="right") - 1
    by_source = {
        name: mean_loss(model, stream.read, sequences[source == index])
        for index, name in enumerate(stream.sources)
    }
    counts = np.bincount(source)
    loss = math.fsum(by_source[name] * n for name, n in zip(stream.sources, counts, strict=True))
    loss /= len(sequences)
    count = len(sequences) * train.sequence_length
    num_bytes = sum(
        len(subject.words.decode(stream.read(np.array([sequence]))[0, 1:]))
        for sequence in sequences
    )
    return _HeldOut(
        loss=loss, bits=loss * count / (math.log(2) * max(num_bytes, 1)), num_tokens=count,
        by_source=by_source,
    )  # fmt: skip


def _samples(
    model: WholeModel, subject: _Subject, config: Config, tell: Told
) -> list[dict[str, Any]]:  # fmt: skip
    wish = config.eval
    chance = torch.Generator().manual_seed(config.seed)
    samples = []
    for prompt in wish.prompts if wish.tokens else []:
        (tokens,) = subject.words.encode([prompt.encode()])
        more = continued(
            model, tokens.tolist(), num_tokens=wish.tokens, temperature=wish.temperature,
            top_k=wish.top_k, end_of_text=subject.words.end_of_text, chance=chance,
        )  # fmt: skip
        text = subject.words.decode(np.array([*tokens.tolist(), *more], dtype=np.int64))
        samples.append({"prompt": prompt, "text": text.decode(errors="replace")})
        tell(len(samples), len(wish.prompts))
    return samples


def _show(document: dict[str, Any], console: Console) -> None:
    console.print(
        f"{document['source']}\n"
        f"held-out loss {document['held_out_loss']:.4f} nats per token, perplexity "
        f"{document['perplexity']:,.2f}, {document['bits_per_byte']:.4f} bits per byte "
        f"({document['held_out_tokens']:,} tokens)",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    if len(document["held_out_by_source"]) > 1:
        for name, loss in document["held_out_by_source"].items():
            console.print(f"  {name}: {loss:.4f}", markup=False)
    for sample in document["samples"]:
        console.print(f"\n--- {sample['prompt']!r}", style="bold", markup=False)
        console.print(sample["text"], soft_wrap=True, markup=False)
