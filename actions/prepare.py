"""action=prepare: learn a tokenizer if asked, turn text into tokens; a second time only looks.

Training does the same before it starts. No torch.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from actions import domain
from actions.console import Console
from sailor.config import Config
from sailor.data.corpus import Corpus, standard_library, text_at
from sailor.data.tokenizer import (
    JSON_FILE,
    SMALLEST_BPE,
    Tokenizer,
    open_tokenizer,
    tokenizer,
    train_tokenizer,
)
from sailor.data.tokens import Manifest, prepare, split
from sailor.errors import ConfigError, DataError
from sailor.profile.local import cache_folder
from sailor.units import count


def run(config: Config, console: Console) -> int:
    """Prepare the tokens and say what there is."""
    manifest = prepare_tokens(config)
    console.print(
        f"{manifest.corpus}: {count(manifest.train_tokens)} tokens to train on, "
        f"{count(manifest.held_out_tokens)} held out, {manifest.vocab_size:,} different\n"
        f"{manifest.path}",
        soft_wrap=True,
    )
    console.document(
        {
            "corpus": manifest.corpus,
            "train_tokens": manifest.train_tokens,
            "held_out_tokens": manifest.held_out_tokens,
            "tokenizer": manifest.tokenizer,
            "vocab_size": manifest.vocab_size,
            "path": manifest.path,
        }
    )
    return 0


def prepare_tokens(config: Config) -> Manifest:
    """The tokens of the configured text. ``path`` of the answer is what workers read.

    Raises DataError: E501 nothing at the path, E505 more tokens than the model has rows, and those
    of sailor.data.
    """
    text = corpus(config)
    return prepare(text, tokenizer=reader(config, text), directory=_cache(config))


def reader(config: Config, text: Corpus) -> Tokenizer:
    """The tokenizer that reads the text; one to be learned from it is learned once and kept.

    Raises DataError: E505 it does not fit the model, E507 its file is none; ConfigError E605.
    """
    wish = config.tokenizer
    match wish.name:
        case "file":
            assert wish.path is not None, "sailor.rules wants a path"
            found = open_tokenizer(Path(wish.path).expanduser(), end_of_text=wish.end_of_text)
        case "bpe":
            found = _learned(config, text)
        case name:
            found = tokenizer(name)
    domain.check_vocabulary(config, vocab_size=found.vocab_size)
    return found


def _learned(config: Config, text: Corpus) -> Tokenizer:
    """The BPE of what is trained on: what is held out has no say in it."""
    model = config.model
    size = config.tokenizer.vocab_size or model.vocab_size - model.vocab_padding
    if size < SMALLEST_BPE:
        raise DataError(
            f"a vocabulary of {size} is too small to learn", code="E505",
            why=f"{SMALLEST_BPE} are taken by the bytes and the end of a text",
            where="tokenizer.vocab_size, model.vocab_size",
            fix="model.vocab_size=4096   or another size, of the model or the tokenizer",
        )  # fmt: skip
    domain.check_vocabulary(config, vocab_size=size)
    folder = _cache(config) / "tokenizers" / f"bpe-{size}-{text.fingerprint()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_FILE
    with FileLock(folder / ".lock"):
        if not path.exists():
            documents, _ = split(text)
            train_tokenizer(documents, vocab_size=size, path=path)
    return open_tokenizer(path)


def _cache(config: Config) -> Path:
    where = config.data.cache
    return cache_folder() / "tokens" if where is None else Path(where).expanduser()


def corpus(config: Config) -> Corpus:
    """The text to train on."""
    if config.data.name == "stdlib":
        return standard_library()
    if config.data.path:
        return text_at(Path(config.data.path).expanduser())
    raise ConfigError(
        f"nothing is known of data {config.data.name!r}", code="E104", where="data.name, data.path",
        why="only stdlib is found by name", fix="data=text data.path=PATH/TO/TEXT",
    )  # fmt: skip
