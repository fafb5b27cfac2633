"""What runs on the machine of a run's controller: the controller, and the door to it.

    python -m actions.hosted door HOUSE RUN ...     opens the door, starts the run, keeps both
    python -m actions.hosted train HOUSE            the run, as ``run.py`` would do it there

HOUSE is a folder with ``config.yaml`` (the run's, for this machine) and ``runs/RUN``. A run whose
process is killed is started again: its machines train on for ``runtime.lease``, and the next
controller takes them over. When it has ended the door stays open until its results were fetched,
or nobody came for them in time, or while the budget pays for it. No torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from actions.console import Console
from actions.down import end_run
from actions.limits import stay_s
from actions.origin import TOKENIZER
from actions.target import saved_config
from actions.train import train_here
from provision.orders import OrderBook, cluster_stem
from provision.sky_launcher import SkyLauncher, SkyProcess
from sailor.config import Config
from sailor.config_keys import plain
from sailor.errors import SailorError
from sailor.observe.redact import redact
from sailor.runtime.door import Door, Seen
from sailor.runtime.identity import load_identity

log = logging.getLogger(__name__)

DOOR = "door.json"
LOG = "controller.log"
MOST_STARTS = 20
AGAIN_S = 1.0
_TOLD_BYTES = 2000


@dataclass(kw_only=True)
class RunProcess:
    """Implements sailor.runtime.door.Lodger. ``folder`` is the run's."""

    house: Path
    folder: Path
    options: tuple[str, ...] = ()
    starts: int = 0
    exit_code: int | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: bool = False
    _process: asyncio.subprocess.Process | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def live(self) -> None:
        """From the first start to the end; again when it was killed and not told to stop. What one
        that died of being told has rented, and could not give back, is given back here."""
        while True:
            self.starts += 1
            with (self.house / LOG).open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "actions.hosted", "train", str(self.house), *self.options,
                    stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
            if self._stopping:
                self._signal()
            code = await self._process.wait()
            if code >= 0 or self._stopping or self.starts >= MOST_STARTS:
                await give_back(self.folder)
                self.exit_code = code if code >= 0 else 128 - code
                return
            await asyncio.sleep(AGAIN_S)

    def seen(self) -> Seen:
        """How it is. Any thread may ask."""
        return Seen(
            run=self.folder.name, exit_code=self.exit_code, starts=self.starts,
            told=_end_of(self.house / LOG), stem=cluster_stem(self.folder),
        )  # fmt: skip

    def stop(self) -> None:
        """Have it save and end; a second word changes nothing. Any thread may say it."""
        if not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._signal)

    def leave(self) -> None:
        """Nobody comes again. Any thread may say it."""
        self._loop.call_soon_threadsafe(self.left.set)

    def _signal(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)


async def give_back(folder: Path) -> None:
    """End whatever the run of a folder has left rented; the log says how that was seen. With what
    it does not end the door is shut all the same: whoever comes for the log finds it there."""
    sky = None
    if OrderBook(folder).remaining():
        sky = SkyProcess(log_path=folder / "logs" / "skypilot.log")
    launcher = None if sky is None else SkyLauncher(cloud="", run=folder.name, sky=sky)
    try:
        for proof in await end_run(folder, launcher=launcher):
            log.warning("%s was left: %s", proof.node, proof.proof)
    finally:
        if sky is not None:
            await sky.close()


async def keep_open(options: argparse.Namespace) -> None:
    """The door, from its opening to its end."""
    house = Path(options.house)
    folder = house / "runs" / options.run
    more = ("--address", options.address) if options.address else ()
    lodger = RunProcess(house=house, folder=folder, options=more)

    def goes() -> None:  # the machine is taken, or given back: nobody can fetch anything later
        lodger.stop()
        lodger.leave()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, goes)
    server = await Door(folder=folder, lodger=lodger).open(
        options.host, options.port, identity=load_identity(Path(options.identity))
    )
    host, port = server.address
    _write(house / DOOR, {"host": host, "port": port, "pid": os.getpid(), "since": time.time()})
    async with server:
        await lodger.live()
        keeps_s = stay_s(
            saved_config(house), log=folder / "events.jsonl", wish_s=options.keeps_s
        )  # fmt: skip
        with suppress(TimeoutError):
            async with asyncio.timeout(keeps_s):
                await lodger.left.wait()
        # Whoever said so has its answer before the door is shut.
        await asyncio.sleep(0.2)
    (house / DOOR).unlink(missing_ok=True)


def run_there(house: Path, *, address: str) -> int:
    """The run of a house, its exit code. What is refused is printed, as run.py would."""
    config = settled(saved_config(house), house=house, address=address)
    command = command_of(house / "config.yaml")
    keep(config, house=house, command=command)
    console = Console(output=config.output, command=command)
    try:
        return train_here(config, console)
    except SailorError as error:
        sys.stderr.write(redact(error.render()) + "\n")
        return error.exit_code
    except Exception:  # the last line of defence, as in run.py: a bug is ours
        sys.stderr.write(redact(traceback.format_exc()))
        return 1


def settled(config: Config, *, house: Path, address: str) -> Config:
    """A configuration that was sent, for the machine it has come to. Text is not read again, which
    may not be there, nor a tokenizer learned: both come made. What lies in the house was sent along
    because that machine does not see our files: tokens, first weights."""
    config.runs_dir = str(house / "runs")
    if address:
        config.runtime.host = config.runtime.address = address
    if (house / "tokens").is_dir():
        config.data.prepared = str(house / "tokens")
    if config.data.prepared is not None:
        words = house / "runs" / str(config.run.name) / TOKENIZER
        if words.is_dir():
            config.tokenizer.name, config.tokenizer.path = "file", str(words)
    if (house / "model").is_dir():
        config.model.init_from = str(house / "model")
    return config


def keep(config: Config, *, house: Path, command: str) -> None:
    """A run that goes on is of this configuration: whether it is the same one was asked where it
    was sent from, before the tokenizer became a file of this machine."""
    saved = house / "runs" / str(config.run.name) / "config.yaml"
    if saved.exists():
        text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
        saved.write_text(f"# {command}\n{text}")


def command_of(config: Path) -> str:
    """What was typed, as the first line of a run's configuration has it."""
    with config.open() as file:
        return file.readline().removeprefix("#").strip()


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TOLD_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _write(path: Path, document: dict[str, object]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document))
    partial.replace(path)


def main() -> None:
    """One of the two commands; see above."""
    parser = argparse.ArgumentParser(prog="actions.hosted")
    parser.add_argument("what", choices=("door", "train"))
    parser.add_argument("house")
    parser.add_argument("run", nargs="?", default="")
    parser.add_argument("--identity", default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--address", default="")  # by which machines reach this one
    parser.add_argument("--keeps-s", type=float, default=24 * 3600.0)
    options = parser.parse_args()
    if options.what == "train":
        raise SystemExit(run_there(Path(options.house), address=options.address))
    asyncio.run(keep_open(options))


if __name__ == "__main__":
    main()
