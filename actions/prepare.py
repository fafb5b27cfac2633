"""action=prepare: turn the text into tokens, once; a second time only looks.

Training does the same before it starts. No torch.
"""

from __future__ import annotations

from pathlib import Path

from actions import domain
from actions.console import Console
from sailor.config import Config
from sailor.data.corpus import Corpus, standard_library, text_at
from sailor.data.tokenizer import tokenizer
from sailor.data.tokens import Manifest, prepare
from sailor.errors import ConfigError
from sailor.profile.local import cache_folder
from sailor.units import count


def run(config: Config, console: Console) -> int:
    """Prepare the tokens and say what there is."""
    manifest = prepare_tokens(config)
    console.print(
        f"{manifest.corpus}: {count(manifest.train_tokens)} tokens to train on, "
        f"{count(manifest.held_out_tokens)} held out\n{manifest.path}"
    )
    console.document(
        {
            "corpus": manifest.corpus,
            "train_tokens": manifest.train_tokens,
            "held_out_tokens": manifest.held_out_tokens,
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
    words = tokenizer(config.tokenizer.name)
    domain.check_vocabulary(config, vocab_size=words.vocab_size)
    where = config.data.cache
    directory = cache_folder() / "tokens" if where is None else Path(where).expanduser()
    return prepare(text, tokenizer=words, directory=directory)


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
