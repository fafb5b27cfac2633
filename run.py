"""The command: composes the configuration with Hydra, runs the actions, ends with an exit code.

The only file that knows Hydra. What an action does is in actions/, the words for what is wrong with
a command line in actions/complaints.py, the exit codes in docs/architecture.md.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from actions import ACTIONS, COMPOSING, complaints, help_page, signals, sweep
from actions.arguments import (
    command,
    expand,
    flags_and_words,
    is_known,
    key_of,
    options,
    refuse_unknown_keys,
    replaced,
    unknown_keys,
)
from sailor.config import MIXTURE, Config, ModelConfig, Output, SourceConfig
from sailor.config_keys import flatten
from sailor.errors import SailorError
from sailor.observe.redact import redact, redact_fields
from sailor.rules import Problem, validate

ROOT = Path(__file__).resolve().parent
CONF = ROOT / "conf"
COMPLETION = {"-sc", "--shell-completion"}  # flags of Hydra
RUN = ("run", "run.name")  # keys that say which run is meant


@dataclass(kw_only=True)
class Session:
    """One call of the command: its arguments, and what became of each run it stands for."""

    arguments: list[str]
    json: bool = False  # whether standard output is for a program
    documents: list[Any] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    jobs: list[sweep.Job] = field(default_factory=list)  # of a sweep, those that had their turn
    folder: Path | None = None  # of a sweep

    @property
    def exit_code(self) -> int:
        """The first code that is not 0: later runs of a sweep do not hide an earlier failure."""
        return next((code for code in self.codes if code), 0)


def main() -> None:
    """Run the command line in sys.argv. Always raises SystemExit."""
    session = Session(arguments=sys.argv[1:], json="output=json" in sys.argv)
    if "--help" in session.arguments or "-h" in session.arguments:
        print(help_page.text(root=ROOT))
        raise SystemExit(0)
    try:
        if COMPLETION & set(session.arguments):  # its words are none of ours: install=bash
            expanded = session.arguments
        else:
            expanded = expand(session.arguments, root=ROOT)
            refuse_unknown_keys(expanded)
        compose(expanded, session)
        if sweep.is_asked(expanded) and not (session.codes or session.jobs):
            raise complaints.no_jobs(session.arguments)
    except SailorError as error:
        fail(error, session)
    except KeyboardInterrupt:
        session.codes.append(130)
    except Exception as error:  # the last line of defence: a bug is ours, and is told as such
        apologise(error, session)
    signals.ignore()
    tell(session)
    raise SystemExit(session.exit_code)


def tell(session: Session) -> None:
    """What is said when all is over: a sweep's table, and with output=json the one document."""
    if session.jobs:
        sweep.show(session.jobs, folder=session.folder, json=session.json)
        session.documents = [sweep.document(job) for job in session.jobs]
    if session.json and session.documents:
        import msgspec

        several = len(session.documents) > 1 or session.jobs
        document = msgspec.json.encode(session.documents if several else session.documents[0])
        print(msgspec.json.format(document, indent=2).decode())  # NaN has become null


def compose(arguments: list[str], session: Session) -> None:
    """Let Hydra put the configuration together and call ``perform`` once, or once per sweep job.

    Composition is untyped on purpose: Hydra would stop at the first wrong value, ``typed`` finds
    them all. Raises ConfigError for whatever Hydra refuses.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come to us instead of being printed
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import DictConfig

    store_schema()

    def task(composed: DictConfig) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        now = HydraConfig.get() if HydraConfig.initialized() else None
        if now is None or now.mode is not RunMode.MULTIRUN:
            perform(composed, session, words=session.arguments)
            return
        session.folder = Path(now.sweep.dir)
        perform_job(composed, session, chosen=chosen_of(arguments, now.overrides.task))

    sys.argv[1:] = arguments
    with translated(session.arguments), warnings.catch_warnings():
        # Hydra warns of a folder that is not there, in raw Python, and goes on without it.
        warnings.filterwarnings("error", "provider=.* is not available", UserWarning)
        if any(argument.startswith(("-", "hydra")) for argument in arguments):
            # Called where others have @hydra.main: fish completes for files with that word.
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
        else:  # hydra.main would compose twice, first to learn that there is no sweep
            task(composed_of(arguments))


def composed_of(overrides: Sequence[str]) -> Any:
    """The untyped configuration of a list of overrides in Hydra's terms."""
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():  # in a job of a sweep
        return hydra.compose(config_name="config", overrides=list(overrides))
    with hydra.initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return hydra.compose(config_name="config", overrides=list(overrides))


def composer(words: Sequence[str]) -> Callable[..., Config]:
    """``compose(*instead)``: the checked configuration of a command line but for these words.

    For actions that need others' configurations: the steps of a recipe. Raises ConfigError.
    """
    known: dict[tuple[str, ...], Config] = {}

    def compose_again(*instead: str) -> Config:
        typed_words = replaced(words, *instead)
        flags, expanded = flags_and_words(expand(typed_words, root=ROOT))
        refuse_unknown_keys(expanded)
        folders = [f"file://{Path(folder).absolute()}" for folder in flags]
        if folders:
            expanded.append(f"hydra.searchpath=[{','.join(folders)}]")
        action = next(word for word in expanded if key_of(word) == "action").partition("=")[2]
        rest = tuple(word for word in expanded if key_of(word) != "action")
        if rest not in known:
            with translated(typed_words):
                known[rest] = typed(composed_of(rest), arguments=typed_words)
        return replace(known[rest], action=action)

    return compose_again


def chosen_of(arguments: Sequence[str], task: Sequence[str]) -> dict[str, str]:
    """What a job of a sweep has of the keys that have several values: key -> its value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    _, words = flags_and_words(arguments)
    parsed = OverridesParser.create().parse_overrides(words)
    swept = {override.get_key_element() for override in parsed if override.is_sweep_override()}
    pairs = (word.partition("=") for word in task)
    return {key.lstrip("+"): value for key, _, value in pairs if key in swept}


@contextmanager
def translated(arguments: Sequence[str]) -> Iterator[None]:
    """Whatever Hydra and OmegaConf refuse becomes a ConfigError with a way out."""
    from hydra.errors import (
        HydraException,
        MissingConfigException,
        OverrideParseException,
    )
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except OverrideParseException as error:
        raise complaints.grammar(
            override=error.override, message=error.message, arguments=arguments
        ) from error
    except MissingConfigException as error:
        group, _, name = (error.missing_cfg_file or "").partition("/")
        if not name and not (CONF / group).is_dir():
            raise complaints.ambiguous(str(error), arguments=arguments) from error
        raise complaints.unknown_option(
            group=group,
            name=name,
            available=sorted({*options(group, root=ROOT), *(error.options or ())}),
            arguments=arguments,
        ) from error
    except ValueError as error:  # Hydra: a group was given a number or null
        wrong = complaints.not_an_option(arguments, root=ROOT)
        if wrong is None:
            raise
        raise wrong from error
    except (HydraException, OmegaConfBaseException, UserWarning) as error:
        text = str(error) or str(error.__cause__)
        raise complaints.ambiguous(text, arguments=arguments) from error


def store_schema() -> None:
    """Tell Hydra the keys of Config and their defaults, under the name conf/config.yaml uses."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("pid", os.getpid, replace=True)  # sweeps of one second
    schema = OmegaConf.to_container(OmegaConf.structured(Config), enum_to_str=True)
    ConfigStore.instance().store(name="schema", node=schema)


def typed(composed: Any, *, arguments: Sequence[str]) -> Config:
    """The composed configuration as a Config, checked. Raises ConfigError naming all that is wrong.

    Merging into a fresh schema is what refuses keys that a plus sign or a file of the user's own
    brought in.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise complaints.ambiguous(str(error), arguments=arguments) from error
    flat = flatten(values)
    unknown = [key for key in flat if not is_known(key)]
    if unknown:
        raise unknown_keys({key: key for key in unknown}, arguments=arguments)
    secret = [key for key, value in flat.items() if redact(str(value)) != str(value)]
    if secret:
        raise complaints.secret(secret)
    schema = OmegaConf.structured(Config)
    schema.model = OmegaConf.structured(ModelConfig)
    problems = []
    named: dict[str, Any] = OmegaConf.select(composed, MIXTURE) or {}
    for name, source in named.items():
        if not isinstance(source, str | int | float | None):
            schema.data.mixture[name] = OmegaConf.structured(SourceConfig)
        else:
            key = f"{MIXTURE}.{name}"
            problems.append(complaints.source(key, flat.pop(key)))
    for key, value in flat.items():
        default = OmegaConf.select(schema, key)
        try:
            OmegaConf.update(schema, key, value)
        except OmegaConfBaseException as error:
            what = str(error).splitlines()[0]
            problems.append(complaints.wrong_type(key, what=what, value=value, default=default))
    missing = sorted(OmegaConf.missing_keys(schema) - {problem.key for problem in problems})
    problems += [Problem(key=key, what="needs a value", fix=f"{key}=<value>") for key in missing]
    if not OmegaConf.missing_keys(schema):
        config = OmegaConf.to_object(schema)  # with defaults where the type was wrong
        assert isinstance(config, Config)
        problems += validate(config)
        if not problems:
            return config
    raise complaints.wrong_values(problems, arguments=arguments)


def perform(composed: Any, session: Session, *, words: Sequence[str], suffix: str = "") -> None:
    """Run one configuration's actions in order, until one fails. Notes documents and exit code.

    ``words`` is the command line of this configuration, ``suffix`` what sets the run of a sweep's
    job apart from those of its other jobs.
    """
    from actions.console import Console

    console = Console()
    try:
        config = typed(composed, arguments=words)
        for name in config.actions:
            if name not in ACTIONS:
                raise complaints.unknown_action(name, arguments=words)
        session.json |= config.output is Output.json
        if suffix:
            sweep.set_apart(config, suffix)
            words = replaced(words, f"run.name={config.run.name}")
        console = Console(output=config.output, command=command(words))
        compose_again = composer(words)
        for name in config.actions:
            own = config
            if config.recipe.name is not None and len(config.actions) > 1:
                own = compose_again(f"action={name}")  # with the settings that step has
            code = call(name, own, console, compose_again)
            if code:
                break
        session.codes.append(code)
        several = len(config.actions) > 1
        if console.documents:
            session.documents.append(console.documents if several else console.documents[-1])
    except SailorError as error:
        fail(error, session)
    except Exception as error:
        apologise(error, session)


def call(
    name: str, config: Config, console: Any, compose_again: Callable[..., Config]
) -> int:  # fmt: skip
    """One action; its exit code. A recipe's status is that of its steps."""
    if name == "status" and config.recipe.name is not None:
        name = "recipe.status"
    if config.recipe.smoke and name in ("prepare", "train", "eval"):
        importlib.import_module("actions.recipe.smoke").make(config)
    run_action = importlib.import_module(f"actions.{name}").run
    if name in COMPOSING:
        return int(run_action(config, console, compose=compose_again))
    return int(run_action(config, console))


def perform_job(composed: Any, session: Session, *, chosen: dict[str, str]) -> None:
    """One job of a sweep. None stops those after it, unless somebody said stop."""
    if any(job.is_stopped for job in session.jobs):
        session.jobs.append(sweep.Job(chosen=chosen, exit_code=None))
        return
    words = replaced(session.arguments, *(f"{key}={value}" for key, value in chosen.items()))
    words = [word for word in words if word not in ("-m", "--multirun")]
    told = len(session.documents)
    try:
        perform(composed, session, words=words, suffix=sweep.suffix(chosen))
    except KeyboardInterrupt:
        session.codes.append(130)
    documents = session.documents[told:]
    session.jobs.append(
        sweep.Job(
            chosen=chosen, exit_code=session.codes[-1],
            document=documents[-1] if documents else None,
        )
    )  # fmt: skip


def fail(error: SailorError, session: Session) -> None:
    """Say what a person can act on, without a traceback."""
    print(redact(error.render()), file=sys.stderr)
    document = {name: getattr(error, name) for name in ("code", "what", "why", "where", "fix")}
    session.documents.append({"error": redact_fields(document), "exit_code": error.exit_code})
    session.codes.append(error.exit_code)


def apologise(error: Exception, session: Session) -> None:
    """E901: our fault. The traceback goes to a file, its name to the terminal.

    A library that is not there is not our fault, and is told as E605.
    """
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        session.codes.append(128 + signal.SIGPIPE)
        return
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and not (ROOT / missing.partition(".")[0]).is_dir():
        fail(complaints.not_installed(missing), session)
        return
    with tempfile.NamedTemporaryFile(
        "w", prefix="sailor-bug-", suffix=".txt", delete=False
    ) as file:
        file.write(redact("".join(traceback.format_exception(error))))
    run_name = next((f" {word}" for word in session.arguments if key_of(word) in RUN), "")
    mistake = SailorError(
        "something broke in Sailor itself, sorry", code="E901",
        why=f"{type(error).__name__}: {error}", where=file.name,
        fix=f"{command(['action=debug.bundle'])}{run_name}   packs what a report needs, without "
        "secrets",
    )  # fmt: skip
    fail(mistake, session)


def _reader_is_gone() -> bool:
    """Whether nobody reads standard output any more, as after ``| head``."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


if __name__ == "__main__":
    main()
