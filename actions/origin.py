"""What a run starts from: the folder of its first weights, its tokenizer, its tokens. No torch.

Looked at before anything is rented. What is small is kept in the run's folder, because an export
needs it when the folder it came from is gone, and because a run that goes on must read the text as
it has: ``origin/`` has the configuration files of the model it began as, ``tokenizer/`` the
tokenizer, ``tokens.json`` what the tokens were.
"""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import msgspec
import xxhash

from actions import domain
from actions.run_folder import RunFolder
from sailor.config import Config
from sailor.data.tokenizer import Tokenizer, has_tokenizer, open_tokenizer
from sailor.data.tokens import Manifest
from sailor.errors import DataError
from sailor.models.hf.config import CONFIG
from sailor.models.hf.read import HuggingFaceFolder
from sailor.models.spec import ModelSpec, Positions

GENERATION = "generation_config.json"
ORIGIN, TOKENIZER, TOKENS = "origin", "tokenizer", "tokens.json"

# A model may be called otherwise, and its idle rows are nobody's business.
_OWN = ("name", "vocab_size", "vocab_padding")


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """tokens.json: how a run reads its text."""

    tokenizer: str  # its name, which changes with every token
    end_of_text: int
    tokens: str  # digest of all of them
    path: str  # where they are


def read_tokens(folder: Path) -> Read:
    """What a run's folder says about its tokens. Raises DataError E509 when that is nothing."""
    try:
        return msgspec.json.decode((folder / TOKENS).read_bytes(), type=Read)
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(
            f"nothing is known about the tokens of run {folder.name}", code="E509",
            where=str(folder / TOKENS), why=str(error),
            fix=f"python run.py run.name={folder.name}   with that run's settings notes it down",
        ) from error  # fmt: skip


def check_first_weights(config: Config) -> None:
    """Whether the folder has every weight of the model. Reads headers only.

    Raises DataError: E510 it is another model, E511 to E513 as sailor.models.hf says. The contents
    of a torch distributed checkpoint are looked at by those who load it, for that takes torch.
    """
    path = domain.first_weights(config)
    if not path or is_dcp(Path(path)):
        return
    spec = domain.model_spec(config)
    folder = HuggingFaceFolder(Path(path))
    different = _differences(folder.spec, spec)
    if different:
        raise DataError(
            f"the model in {path} is not {spec.name}", code="E510", where="model.init_from",
            why="\n".join(different), fix=f"model={path}   takes the shape from there",
        )  # fmt: skip
    folder.check()


def is_dcp(path: Path) -> bool:
    """Whether a folder is a torch distributed checkpoint."""
    return (path / ".metadata").is_file()


def check_tokenizer(config: Config, words: Tokenizer) -> None:
    """Whether text is read as the model in the folder has learned it. Raises DataError E509."""
    path = domain.first_weights(config)
    if not path or not has_tokenizer(Path(path)):
        return
    own = open_tokenizer(Path(path), end_of_text=config.tokenizer.end_of_text)
    if own.name != words.name:
        raise DataError(
            f"the model in {path} has learned another tokenizer", code="E509",
            why=f"its own is {own.name}, the text is to be read with {words.name}",
            where="tokenizer", fix=f"tokenizer={path}",
        )  # fmt: skip


def keep_origin(
    folder: RunFolder, *, config: Config, tokens: Manifest, words: Tokenizer
) -> None:  # fmt: skip
    """Keep what the run starts from; of a run that goes on, compare. Raises DataError E509."""
    now = Read(
        tokenizer=tokens.tokenizer, end_of_text=words.end_of_text, tokens=tokens_digest(tokens),
        path=tokens.path,
    )  # fmt: skip
    if folder.resumed and (folder.path / TOKENS).exists():
        before = read_tokens(folder.path)
        for what, old, new in (
            ("tokenizer", before.tokenizer, now.tokenizer), ("text", before.tokens, now.tokens),
        ):  # fmt: skip
            if old != new:
                raise DataError(
                    f"the {what} is not the one run {folder.name} has been trained with",
                    code="E509", why=f"it was {old} then and is {new} now",
                    where=str(folder.path / TOKENS),
                    fix=f"put the old {what} back   or   run.fresh=true   to start over",
                )  # fmt: skip
        return
    (folder.path / TOKENS).write_bytes(msgspec.json.format(msgspec.json.encode(now)) + b"\n")
    _write_all(folder.path / TOKENIZER, words.files())
    source = domain.first_weights(config)
    names = (CONFIG, GENERATION) if source else ()
    found = (Path(source) / name for name in names)
    kept = {path.name: path.read_bytes() for path in found if path.is_file()}
    _write_all(folder.path / ORIGIN, kept)


def _differences(there: ModelSpec, here: ModelSpec) -> list[str]:
    """Fields that make another model of it."""
    free = set(_OWN)
    if here.positions is Positions.rotary:
        free.add("max_positions")
    values = {
        field.name: (getattr(there, field.name), getattr(here, field.name))
        for field in fields(ModelSpec)
        if field.name not in free
    }
    values["vocab_size"] = (there.num_tokens, here.num_tokens)
    return [f"{name}: {a} there, {b} here" for name, (a, b) in values.items() if a != b]


def tokens_digest(tokens: Manifest) -> str:
    """Of all tokens, in order, and of how a mixture reads them."""
    shards = [f"{shard.num_tokens} {shard.xxh3}" for shard in (*tokens.train, *tokens.held_out)]
    shares = [f"{part.name} {part.share}" for part in tokens.parts]
    return xxhash.xxh3_64_hexdigest("\n".join([*shards, *shares]).encode())


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    """These files and no others: a run that never began may have left some."""
    shutil.rmtree(folder, ignore_errors=True)
    if files:
        folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
