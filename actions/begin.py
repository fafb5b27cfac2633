"""What training does before the first machine is asked for: look, lock, tokenize, fill in.

Ordered so that the cheapest refusals come first and nothing is left behind by any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actions import domain
from actions.console import Console
from actions.machines import remote_model, remote_tokens
from actions.origin import check_first_weights, check_tokenizer, keep_origin
from actions.preflight import check_checkpoints, check_cloud, check_port
from actions.prepare import prepare_tokens
from actions.run_folder import RunFolder, open_run, read_summary
from actions.sources import tokenizer_of
from sailor.config import Config
from sailor.data.tokens import Manifest, TokenStream, check_streams
from sailor.faults import Fault
from sailor.training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginning:
    """A run that may start, or go on when ``folder.resumed``: its folder is open and locked."""

    folder: RunFolder
    settings: TrainSettings
    faults: tuple[Fault, ...]
    checkpoint_directory: str
    tokens: Path  # here; machines that do not share our files get a copy
    sources: tuple[dict[str, Any], ...]  # of the text, as the event log has them


@contextmanager
def begin(config: Config, console: Console) -> Iterator[Beginning | None]:
    """Everything ready for the run of this configuration, or None when it is done already.

    None has been said on the console. Raises CloudError (E406), ConfigError (E105, E106, E602,
    E603, E605 to E607) and DataError (E501 to E513, E611).
    """
    check_cloud(config)
    script = domain.faults(config)
    with open_run(config, command=console.command) as folder:
        if folder.is_done:
            say_done(folder, console)
            yield None
            return
        check_port(config)
        with console.waiting("asking the store for durable checkpoints"):
            check_checkpoints(config)
        if not folder.resumed:
            check_first_weights(config)
        words = tokenizer_of(config)
        check_tokenizer(config, words)
        with console.waiting("reading text, in pieces") as tell:
            tokens = prepare_tokens(config, progress=tell)
        check_streams(tokens, sequence_length=config.train.sequence_length)
        keep_origin(folder, config=config, tokens=tokens, words=words)
        yield Beginning(
            folder=folder,
            settings=_settings(config, tokens),
            tokens=Path(tokens.path),
            sources=_sources(tokens, sequence_length=config.train.sequence_length),
            faults=script,
            checkpoint_directory=config.checkpoint.directory or str(folder.checkpoints.absolute()),
        )


def _settings(config: Config, tokens: Manifest) -> TrainSettings:
    """The recipe, with the places where a machine finds tokens and first weights."""
    tokens_path, model = tokens.path, domain.first_weights(config)
    if config.cloud.name not in domain.HERE and not config.cloud.shared_files:
        tokens_path = remote_tokens(Path(tokens_path))
        model = model and remote_model(Path(model))
    return domain.train_settings(config, tokens_path=tokens_path, init_from=model)


def _sources(tokens: Manifest, *, sequence_length: int) -> tuple[dict[str, Any], ...]:
    """What is read, how often, and how much of it there is: one entry where nothing is mixed."""
    stream = TokenStream(tokens, tokens.train, sequence_length=sequence_length)
    blend = stream.blend
    return tuple(
        {"name": name, "share": share, "sequences": count}
        for name, share, count in zip(stream.sources, blend.shares, blend.counts, strict=True)
    )


def say_done(folder: RunFolder, console: Console) -> None:
    """A run that is done stays as it is; its summary is the document again."""
    console.print(
        f"run {folder.name} is done; nothing was changed\n"
        f"report   {folder.report}\n"
        "again    run.fresh=true sets this one aside, run.name=NEW_NAME keeps both",
        soft_wrap=True,
    )
    console.document(read_summary(folder.path))
