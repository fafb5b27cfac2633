"""Recipes for tests: files of a user's own, and a pipeline that needs a second."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.compose import ROOT
from tests.helpers.running import PATIENCE_S, Ended, Place, Running

TWELVE = (
    "gpt_125m_laptop", "gpt_1b_aws_spot", "gpt_1b_gcp_spot", "gpt_2_7b_sailor_paper",
    "gpt_350m_one_gpu", "llama3_1b_continue", "llama3_8b_h100_single_node", "llama3_8b_two_zones",
    "opt_350m_two_zones_mixed", "qwen2_0_5b_continue", "slurm_two_partitions", "spot_chaos_demo",
)  # fmt: skip
FOLDER = ROOT / "recipes"


def a_recipe(folder: Path, text: str, *, name: str = "mine") -> Path:
    """A file of a user's own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@dataclass(kw_only=True)
class Told:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it told a program."""
        return json.loads(self.out)

    @property
    def states(self) -> dict[str, str]:
        """What became of a recipe's steps."""
        return {step["step"]: step["state"] for step in self.document["steps"]}

    @property
    def reasons(self) -> dict[str, str]:
        """Why."""
        return {step["step"]: step["why"] for step in self.document["steps"]}


def words(place: Place, *arguments: str) -> list[str]:
    """The command line of a call in a place of tests."""
    quiet = ["ui.mode=plain", "output=json", f"runs_dir={place.runs}"]
    return [sys.executable, str(ROOT / "run.py"), *quiet, *arguments]


def call(place: Place, *arguments: str, cwd: Path | None = None) -> Told:
    """A command from its start to its end."""
    done = subprocess.run(
        words(place, *arguments), cwd=cwd or place.root, env=place.environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    return Told(code=done.returncode, out=done.stdout, err=done.stderr)


@contextmanager
def started(place: Place, *arguments: str, name: str) -> Iterator[Running]:
    """A command under way; its run is called ``name``, and whatever is left of it is killed."""
    printed = place.root / f"{name}-{secrets.token_hex(2)}.out"
    with printed.open("wb") as out, printed.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            words(place, f"run.name={name}", *arguments), cwd=place.root,
            env=place.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    running = Running(name=name, folder=place.runs / name, process=process, printed=printed)
    try:
        yield running
    finally:
        running.end()


def told(ended: Ended) -> Told:
    """What a command that was started has told."""
    return Told(code=ended.code, out=ended.out, err=ended.err)
