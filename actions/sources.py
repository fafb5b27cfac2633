"""The configured data as sources of tokens, and the tokenizer that reads them all.

``data=mixture`` has several sources, everything else is one: the same four kinds either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash
from filelock import FileLock

from actions import domain
from sailor.config import MIXTURE, Config, SourceConfig
from sailor.data.corpus import Corpus, standard_library, text_at
from sailor.data.datasets_ import SavedDataset
from sailor.data.foreign import TokenSource
from sailor.data.source import Source, Texts, TextSource, training_texts
from sailor.data.tokenizer import (
    JSON_FILE,
    SMALLEST_BPE,
    Tokenizer,
    open_tokenizer,
    tokenizer,
    train_tokenizer,
)
from sailor.errors import ConfigError, DataError
from sailor.profile.local import cache_folder


def sources(config: Config) -> dict[str, Source]:
    """Name -> source, the names of a mixture; "" for data that is not mixed.

    Raises DataError and ConfigError, as sailor.data does.
    """
    wishes = _wishes(config)
    texts = _texts(wishes)
    reads = reader(config, list(texts.values()))
    found: dict[str, Source] = {}
    for name, wish in wishes.items():
        with _named(name):
            found[name] = (
                TextSource(texts[name], reads) if name in texts else _tokens(wish.path or "", reads)
            )
    return found


def what_is_read(config: Config) -> dict[str, str]:
    """Of each source that is text, what changes when the text does; of tokens, their place.

    Learns no tokenizer. Raises ConfigError E104, DataError E501, E502.
    """
    wishes = _wishes(config)
    texts = _texts(wishes)
    return {
        name: texts[name].fingerprint() if name in texts else wish.path or ""
        for name, wish in wishes.items()
    }


def tokenizer_of(config: Config) -> Tokenizer:
    """The tokenizer that reads, or has made, the configured data. Raises as ``reader`` does."""
    if config.data.prepared is not None:
        return reader(config, [])  # the text need not be here
    return reader(config, list(_texts(_wishes(config)).values()))


def reader(config: Config, texts: Sequence[Texts]) -> Tokenizer:
    """The tokenizer that reads the texts; one to be learned from them is learned once and kept.

    Raises DataError: E505 it does not fit the model, E507 its file is none; ConfigError E605.
    """
    wish = config.tokenizer
    match wish.name:
        case "file":
            assert wish.path is not None, "sailor.rules wants a path"
            found = open_tokenizer(Path(wish.path).expanduser(), end_of_text=wish.end_of_text)
        case "bpe":
            if not texts:
                raise ConfigError(
                    "a tokenizer cannot be learned from tokens", code="E104", where="tokenizer",
                    why="data=tokens has numbers, which the tokenizer that made them reads",
                    fix="tokenizer=PATH of that one",
                )  # fmt: skip
            found = _learned(config, texts)
        case name:
            found = tokenizer(name)
    domain.check_vocabulary(config, vocab_size=found.vocab_size)
    return found


def _learned(config: Config, texts: Sequence[Texts]) -> Tokenizer:
    """The BPE of what is trained on: what is held out has no say in it. Of several texts, of all,
    whatever their weights."""
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
    marks = [text.fingerprint() for text in texts]
    mark = marks[0] if len(marks) == 1 else xxhash.xxh3_128_hexdigest("\0".join(marks).encode())
    folder = cache(config) / "tokenizers" / f"bpe-{size}-{mark[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_FILE

    def documents() -> Iterator[bytes]:
        for text in texts:
            yield from training_texts(text)

    with FileLock(folder / ".lock"):
        if not path.exists():
            train_tokenizer(documents(), vocab_size=size, path=path)
    return open_tokenizer(path)


def cache(config: Config) -> Path:
    """Where prepared tokens and learned tokenizers are kept."""
    where = config.data.cache
    return cache_folder() / "tokens" if where is None else Path(where).expanduser()


def _wishes(config: Config) -> dict[str, SourceConfig]:
    data = config.data
    if data.name == "mixture":
        return dict(sorted(data.mixture.items()))
    return {"": SourceConfig(name=data.name, path=data.path, field=data.field, split=data.split)}


def _texts(wishes: Mapping[str, SourceConfig]) -> dict[str, Texts]:
    """Those of the sources that are text. Raises ConfigError E104, DataError E501, E502."""
    found: dict[str, Texts] = {}
    for name, wish in wishes.items():
        if not _is_tokens(wish):
            with _named(name):
                found[name] = _text(wish)
    return found


@contextmanager
def _named(source: str) -> Iterator[None]:
    """Errors about a source of a mixture speak of its keys."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if source:
            error.where = error.where.replace("data.", f"{MIXTURE}.{source}.")
            error.fix = error.fix.replace("data.", f"{MIXTURE}.{source}.")
        raise


def corpus(config: Config) -> Corpus:
    """The text to train on, where it is one folder of files. Raises ConfigError E104, DataError."""
    found = _texts(_wishes(config))
    text = found.get("")
    if not isinstance(text, Corpus):
        raise ConfigError(
            f"data={config.data.name} is no folder of text files", code="E104", where="data",
            fix="data=text data.path=PATH/TO/TEXT",
        )  # fmt: skip
    return text


def _tokens(path: str, reads: Tokenizer) -> Source:
    if "://" in path:
        raise DataError(
            f"tokens are read from folders of this computer, and {path} is none", code="E501",
            where="data.path", why="they are mapped into memory",
            fix="copy them here   or   data=text, which is read from stores as well",
        )  # fmt: skip
    return TokenSource(Path(path).expanduser(), reads)


def _is_tokens(wish: SourceConfig) -> bool:
    return wish.name == "tokens" and bool(wish.path)


def _text(wish: SourceConfig) -> Texts:
    path = wish.path or ""
    match wish.name:
        case "stdlib":
            return standard_library()
        case "text" if path:
            address = path if "://" in path else Path(path).expanduser()
            return text_at(address, field=wish.field)
        case "datasets" if path:
            return SavedDataset(Path(path).expanduser(), field=wish.field, split=wish.split)
    raise ConfigError(
        f"nothing is known of data {wish.name!r}", code="E104", where="data.name, data.path",
        why="only stdlib is found by name",
        fix="data=text data.path=PATH/TO/TEXT   or   data=tokens data.path=PATH tokenizer=PATH",
    )  # fmt: skip
