"""action=prepare: learn a tokenizer if asked, turn text into tokens; a second time only looks.

Training does the same before it starts. No torch.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from actions import domain
from actions.console import Console
from sailor.config import Config
from sailor.data.corpus import Corpus, standard_library, text_at
from sailor.data.foreign import TokenSource
from sailor.data.megatron import export_megatron
from sailor.data.prepare import Told, prepare, words
from sailor.data.source import Source, TextSource, training_texts
from sailor.data.tokenizer import (
    JSON_FILE,
    SMALLEST_BPE,
    Tokenizer,
    open_tokenizer,
    tokenizer,
    train_tokenizer,
)
from sailor.data.tokens import Manifest
from sailor.errors import ConfigError, DataError
from sailor.profile.local import cache_folder
from sailor.units import count


def run(config: Config, console: Console) -> int:
    """Prepare the tokens and say what there is."""
    with Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("pieces of text", total=None)
        manifest = prepare_tokens(
            config, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    left_out = f"; left out: {words(manifest.skipped)}" if manifest.skipped else ""
    console.print(
        f"{manifest.corpus}: {count(manifest.train_tokens)} tokens to train on, "
        f"{count(manifest.held_out_tokens)} held out, {manifest.vocab_size:,} different"
        f"{left_out}\n{manifest.path}",
        soft_wrap=True,
    )
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
        }
    )
    return 0


def prepare_tokens(config: Config, *, progress: Told | None = None) -> Manifest:
    """The tokens of the configured text. ``path`` of the answer is what workers read.

    Raises DataError: E501 nothing at the path, E505 more tokens than the model has rows, and those
    of sailor.data.
    """
    return prepare(source(config), directory=_cache(config), progress=progress)


def source(config: Config) -> Source:
    """What the tokens are made of. Raises DataError and ConfigError, as sailor.data does."""
    if config.data.name == "tokens":
        if not config.data.path:
            raise _unknown_data(config)
        return TokenSource(Path(config.data.path).expanduser(), reader(config, None))
    text = corpus(config)
    return TextSource(text, reader(config, text))


def tokenizer_of(config: Config) -> Tokenizer:
    """The tokenizer that reads, or has made, the configured data. Raises as ``reader`` does."""
    return reader(config, None if config.data.name == "tokens" else corpus(config))


def reader(config: Config, text: Corpus | None) -> Tokenizer:
    """The tokenizer that reads the text; one to be learned from it is learned once and kept.

    Raises DataError: E505 it does not fit the model, E507 its file is none; ConfigError E605.
    """
    wish = config.tokenizer
    match wish.name:
        case "file":
            assert wish.path is not None, "sailor.rules wants a path"
            found = open_tokenizer(Path(wish.path).expanduser(), end_of_text=wish.end_of_text)
        case "bpe":
            if text is None:
                raise ConfigError(
                    "a tokenizer cannot be learned from tokens", code="E104", where="tokenizer",
                    why="data=tokens has numbers, which the tokenizer that made them reads",
                    fix="tokenizer=PATH of that one",
                )  # fmt: skip
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
            train_tokenizer(training_texts(text), vocab_size=size, path=path)
    return open_tokenizer(path)


def _cache(config: Config) -> Path:
    where = config.data.cache
    return cache_folder() / "tokens" if where is None else Path(where).expanduser()


def corpus(config: Config) -> Corpus:
    """The text to train on."""
    if config.data.name == "stdlib":
        return standard_library()
    if config.data.name == "text" and config.data.path:
        path = config.data.path
        address = path if "://" in path else Path(path).expanduser()
        return text_at(address, field=config.data.field)
    raise _unknown_data(config)


def _unknown_data(config: Config) -> ConfigError:
    return ConfigError(
        f"nothing is known of data {config.data.name!r}", code="E104", where="data.name, data.path",
        why="only stdlib is found by name",
        fix="data=text data.path=PATH/TO/TEXT   or   data=tokens data.path=PATH tokenizer=PATH",
    )  # fmt: skip
