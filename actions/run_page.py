"""The page of a run beside its training (ui.web=true): opened, its address said, closed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console as RichConsole

from actions.console import Console
from actions.preflight import check_page_port
from actions.run_folder import seems_open
from sailor.config import Config, Output, UiMode
from sailor.errors import ConfigError
from sailor.observe.web.server import RunPage, serve


@contextmanager
def beside(config: Config, console: Console, *, folder: Path) -> Iterator[None]:
    """Nothing unless ui.web asks for it. Raises ConfigError E602 when ui.port cannot be had."""
    if not config.ui.web:
        yield
        return
    with open_page(config, folder) as page:
        say(page, config, console)
        yield


def open_page(config: Config, folder: Path) -> RunPage:
    """The page of a run folder, being served. Raises ConfigError E602."""
    check_page_port(config)
    try:
        return serve(folder, port=config.ui.port, is_alive=lambda: seems_open(folder))
    except OSError as error:
        raise ConfigError(
            "the page of this run has no port to answer on", code="E602", why=str(error),
            where=f"ui.port={config.ui.port}", fix="ui.port=0   takes a free one",
        ) from error  # fmt: skip


def say(page: RunPage, config: Config, console: Console) -> None:
    """The address, where no program reads: it is a key as well, and in no log."""
    line = f"web      {page.address}"
    if config.output is Output.text and config.ui.mode is UiMode.json:
        RichConsole(stderr=True, highlight=False).print(line, soft_wrap=True)
    else:
        console.print(line, soft_wrap=True)
