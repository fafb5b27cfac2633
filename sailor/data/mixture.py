"""Several sources as one: each is prepared by itself, and a mixture says how often each is read.

The folder of a mixture shares the files of its sources' folders (hard links), so another weight or
another source costs nothing but a manifest. Each source holds out its own documents.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash
from filelock import FileLock

from sailor.data.blend import shares_of
from sailor.data.shards import Shard
from sailor.data.tokens import MANIFEST, VERSION, Manifest, Part, load_manifest
from sailor.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingredient:
    """One source's prepared tokens, and its weight: any number above zero."""

    tokens: Manifest
    weight: float


def mix(ingredients: Mapping[str, Ingredient], *, directory: Path) -> Manifest:
    """One folder of tokens with all of them, in ``directory``; if it is there, only look.

    All are of one tokenizer. Names are taken in their order of the alphabet: the order in which
    they were written means nothing. Raises DataError E518 when the folder cannot be written.
    """
    names = sorted(ingredients)
    shares = shares_of([ingredients[name].weight for name in names])
    parts = tuple(
        _part(name, share=share, tokens=ingredients[name].tokens)
        for name, share in zip(names, shares, strict=True)
    )
    first = ingredients[names[0]].tokens
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    manifest = Manifest(
        version=VERSION, corpus=" + ".join(names), fingerprint=_fingerprint(parts),
        tokenizer=first.tokenizer, vocab_size=first.vocab_size, dtype=first.dtype,
        num_documents=sum(part.num_documents for part in parts), skipped=dict(skipped),
        train=tuple(shard for part in parts for shard in part.train),
        held_out=tuple(shard for part in parts for shard in part.held_out), parts=parts,
    )  # fmt: skip
    target = directory / f"{manifest.tokenizer}-mixture-{manifest.fingerprint[:16]}"
    with FileLock(directory / ".lock"):
        if target.exists():
            try:
                return load_manifest(target)
            except DataError:
                shutil.rmtree(target)
        try:
            _write(target, manifest, ingredients)
        except OSError as error:
            raise DataError(
                "the mixture cannot be written", code="E518", where=str(target), why=str(error),
                fix="data.cache=/ANOTHER/DISK   or   make room and start again",
            ) from error  # fmt: skip
    return msgspec.structs.replace(manifest, path=str(target))


def _part(name: str, *, share: int, tokens: Manifest) -> Part:
    def named(shards: tuple[Shard, ...]) -> tuple[Shard, ...]:
        return tuple(
            msgspec.structs.replace(shard, file=f"{name}.{shard.file}") for shard in shards
        )

    return Part(
        name=name, share=share, corpus=tokens.corpus, fingerprint=tokens.fingerprint,
        num_documents=tokens.num_documents, skipped=tokens.skipped, train=named(tokens.train),
        held_out=named(tokens.held_out),
    )  # fmt: skip


def _fingerprint(parts: tuple[Part, ...]) -> str:
    digest = xxhash.xxh3_128(b"mixture\0")
    for part in parts:
        digest.update(f"{part.name}\0{part.share}\0{part.fingerprint}\0".encode())
    return digest.hexdigest()


def _write(target: Path, manifest: Manifest, ingredients: Mapping[str, Ingredient]) -> None:
    """The folder, complete or absent."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for part in manifest.parts:
        folder = Path(ingredients[part.name].tokens.path)
        for shard in part.train + part.held_out:
            _link(folder / shard.file.removeprefix(f"{part.name}."), partial / shard.file)
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (partial / MANIFEST).write_bytes(encoded)
    os.replace(partial, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a filesystem without hard links
        shutil.copyfile(source, target)
