"""What a step has made, and whether it is still there as it was made. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from actions.origin import tokens_digest
from actions.run_folder import read_summary, run_name
from sailor.checkpoint.files import place, read
from sailor.checkpoint.store import COMPLETE, newest
from sailor.config import Config
from sailor.data.tokens import load_manifest
from sailor.errors import SailorError

FILE, PRESENT, TOKENS, RUN = "file", "present", "tokens", "run"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a step left. ``digest`` is what steps after it see of it.

    ``kind``: a file as it is, one that only has to be there, a folder of tokens, a run that is done
    (``path`` is its folder, ``store`` where its checkpoints are).
    """

    kind: str
    path: str
    digest: str
    store: str = ""


def outputs_of(step: str, config: Config, document: Any) -> tuple[Output, ...]:
    """What a step that has ended well left behind; ``document`` is what it told a program."""
    told: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
    folder = Path(config.runs_dir).expanduser() / run_name(config)
    match step:
        case "prepare":
            found = [_output(TOKENS, told["path"])]
        case "plan":
            found = [_output(FILE, told["plan_path"])]
        case "train":
            found = [_output(RUN, folder, store=_store(config, folder))]
        case "eval":
            kept = folder / "eval" / f"step-{told['step']:08d}.json"
            found = [_output(FILE, kept)] if kept.exists() else []
        case "export":
            found = [_output(FILE, Path(told["directory"]) / "sailor.json")]
        case "report":
            found = [_output(PRESENT, folder / "report.html")]
        case _:
            found = []
    return tuple(output for output in found if output.digest)


def missing(outputs: tuple[Output, ...]) -> str:
    """Why what a step made cannot be used any more; "" when it can."""
    for output in outputs:
        now = _digest(output.kind, output.path, output.store)
        if now != output.digest:
            what = {RUN: "the run in ", TOKENS: "the tokens in "}.get(output.kind, "")
            return f"{what}{output.path} {'is not what it was' if now else 'is gone'}"
    return ""


def _output(kind: str, path: Path | str, *, store: str = "") -> Output:
    return Output(kind=kind, path=str(path), digest=_digest(kind, str(path), store), store=store)


def _digest(kind: str, path: str, store: str) -> str:
    """ "" when it is not there."""
    try:
        match kind:
            case "tokens":
                return tokens_digest(load_manifest(Path(path)))
            case "run":
                return _of_run(Path(path), store)
            case "present":
                return "present" if Path(path).is_file() else ""
            case _:
                return xxhash.xxh3_64_hexdigest(Path(path).read_bytes())
    except (OSError, SailorError):
        return ""


def _of_run(folder: Path, store: str) -> str:
    """Its newest checkpoint's marker, which has the digest of everything in it."""
    if read_summary(folder).get("status") != "done":
        return ""
    found = newest(place(store))
    return "" if found is None else read(found.path / COMPLETE).decode(errors="replace").strip()


def _store(config: Config, folder: Path) -> str:
    return config.checkpoint.directory or str((folder / "checkpoints").absolute())
