"""action=prepare: learn a tokenizer if asked, turn text into tokens; a second time only looks.

Training does the same before it starts. No torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actions.console import Console
from actions.sources import cache, sources, tokenizer_of
from sailor.config import Config
from sailor.data.blend import PARTS
from sailor.data.megatron import export_megatron
from sailor.data.mixture import Ingredient, mix
from sailor.data.prepare import Told, prepare, words
from sailor.data.tokens import Manifest, Part, load_manifest
from sailor.units import count


def run(config: Config, console: Console) -> int:
    """Prepare the tokens and say what there is."""
    with console.waiting("reading text, in pieces") as tell:
        manifest = prepare_tokens(config, progress=tell)
    left_out = f"; left out: {words(manifest.skipped)}" if manifest.skipped else ""
    console.print(
        f"{manifest.corpus}: {count(manifest.train_tokens)} tokens to train on, "
        f"{count(manifest.held_out_tokens)} held out, {manifest.vocab_size:,} different"
        f"{left_out}\n{manifest.path}",
        soft_wrap=True,
    )
    for part in manifest.parts:
        source = _source(part)
        console.print(
            f"  {part.name}: {source['share']:.2%} of the samples, "
            f"{count(source['train_tokens'])} tokens to train on, "
            f"{count(source['held_out_tokens'])} held out   {part.corpus}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    megatron: list[str] = []
    if config.data.megatron:
        names = export_megatron(
            manifest, end_of_text=tokenizer_of(config).end_of_text,
            base=Path(config.data.megatron).expanduser(),
        )  # fmt: skip
        megatron = [str(name) for name in names]
        console.print(*(f"{name}.bin and .idx" for name in names), sep="\n", soft_wrap=True)
    console.document(
        {
            "corpus": manifest.corpus,
            "train_tokens": manifest.train_tokens,
            "held_out_tokens": manifest.held_out_tokens,
            "tokenizer": manifest.tokenizer,
            "vocab_size": manifest.vocab_size,
            "documents": manifest.num_documents,
            "skipped": manifest.skipped,
            "path": manifest.path,
            "megatron": megatron,
            "sources": [_source(part) for part in manifest.parts],
        }
    )
    return 0


def _source(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "corpus": part.corpus,
        "share": part.share / PARTS,
        "train_tokens": sum(shard.num_tokens for shard in part.train),
        "held_out_tokens": sum(shard.num_tokens for shard in part.held_out),
        "documents": part.num_documents,
        "skipped": part.skipped,
    }


def prepare_tokens(config: Config, *, progress: Told | None = None) -> Manifest:
    """The tokens of the configured text. ``path`` of the answer is what workers read.

    The sources of a mixture are prepared one after the other, each for itself. Raises DataError:
    E501 nothing at the path, E503 data.prepared is not whole, E505 more tokens than the model has
    rows, and those of sailor.data.
    """
    if config.data.prepared is not None:
        return load_manifest(Path(config.data.prepared).expanduser())
    folder = cache(config)
    found = {
        name: prepare(source, directory=folder, progress=progress)
        for name, source in sources(config).items()
    }
    if config.data.name != "mixture":
        return found[""]
    ingredients = {
        name: Ingredient(tokens=tokens, weight=config.data.mixture[name].weight)
        for name, tokens in found.items()
    }
    return mix(ingredients, directory=folder)
