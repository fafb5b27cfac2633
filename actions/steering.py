"""What the keys of the live view ask of the run they stand under, by the way everybody may go."""

from __future__ import annotations

import logging
import os
import signal
import stat
from pathlib import Path

from actions.away import ask_run
from actions.run_folder import said_of
from sailor.observe.keys import Key
from sailor.observe.live import View
from sailor.runtime.requests import Replan, Request, Save, Stop
from sailor.runtime.visit import NobodyHome

log = logging.getLogger(__name__)


def farewell(folder: Path) -> list[str]:
    """What is said when the view is closed and the run goes on, in the process that showed it."""
    return [
        f"the view is closed; the run goes on in this process ({os.getpid()})",
        f"  watch     {said_of(folder, 'watch')}",
        "  Ctrl-C    saves and stops",
        "  Ctrl-Z    and then bg gives the terminal back; closing it leaves the run alone",
    ]


def farewell_away(folder: Path) -> list[str]:
    """The same for a run that goes on on a machine of its own."""
    return [
        "the view is closed; the run goes on on its own machine",
        f"  watch     {said_of(folder, 'watch')}",
        f"  end       {said_of(folder, 'down')}   saves, stops it and gives all machines back",
    ]


def keys_of(folder: Path) -> dict[str, Key]:
    """Key -> what it asks of the controller of the run (sailor/runtime/requests.py)."""

    def press(request: Request) -> None:
        try:
            ask_run(folder, request)
        except NobodyHome as error:  # out of reach for a moment: the key may be pressed again
            log.warning("not asked: %s", error)

    def asking(label: str, request: Request) -> Key:
        return Key(label=label, press=lambda: press(request))

    return {
        "s": asking("[s]ave now", Save(why="key s")),
        "r": asking("[r]eplan", Replan(why="key r")),
        "q": asking("[q]uit and save", Stop(why="key q")),
    }


def goes_on_without_terminal(view: View) -> bool:
    """Whether a terminal that closes is no wish to stop: nobody was looking any more.

    What is printed later goes nowhere then: writing to a terminal that is gone would fail.
    """
    if not view.detached:
        return False
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):  # a terminal that is gone calls itself none
            os.dup2(nowhere, stream)
    os.close(nowhere)
    return True


def hear_hang_ups(view: View) -> None:
    """Until the run minds signals itself: a closed terminal ends it, if anybody was looking."""

    def hung_up(number: int, _: object) -> None:
        if not goes_on_without_terminal(view):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGHUP, hung_up)
