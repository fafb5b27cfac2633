"""action=recipe: the steps in order, each left out if it need not be done again.

Every step is an action with a configuration of its own; all are composed and checked before the
first begins. A step that fails ends the pipeline with its exit code, and the same command goes on
from there.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actions.console import Console
from actions.recipe import Compose
from actions.recipe.book import Recipe, find, read
from actions.recipe.due import earlier_results, why_due
from actions.recipe.inputs import inputs_of
from actions.recipe.outputs import Output, missing, outputs_of
from actions.recipe.record import (
    DONE,
    FAILED,
    RUNNING,
    SKIPPED,
    STOPPED,
    Record,
    StepRecord,
    held,
    record_path,
)
from actions.recipe.smoke import make
from actions.run_folder import differences, run_name
from actions.target import saved_config
from sailor.checkpoint.files import place
from sailor.checkpoint.store import newest
from sailor.config import Config
from sailor.config_keys import flatten, plain
from sailor.errors import ConfigError, SailorError
from sailor.units import duration

ROOT = Path(__file__).resolve().parents[2]
_SAVED = 75
_KILLED = (130, 143)


def run(config: Config, console: Console, *, compose: Compose) -> int:
    """Do what is to be done. Raises ConfigError before anything starts, and what a step raises."""
    recipe = named(config)
    steps = {step: compose(f"action={step}") for step in recipe.actions}
    with held(record_path(config), recipe=recipe.name) as record:
        pipeline = _Pipeline(recipe=recipe, steps=steps, record=record, console=console)
        if config.run.fresh:
            record.steps.clear()
        if config.recipe.smoke:
            make(next(iter(steps.values())))
        try:
            return pipeline.run()
        finally:
            console.documents.clear()
            console.document(pipeline.document())


def named(config: Config) -> Recipe:
    """The recipe of a configuration. Raises ConfigError E102, E109 and those of reading it."""
    if config.recipe.name is None:
        raise ConfigError(
            "no recipe is named", code="E104", where="recipe", fix="python run.py recipe=NAME",
            why="python run.py action=recipe.list   shows those there are",
        )  # fmt: skip
    return read(find(config.recipe.name, root=ROOT, typed=f"recipe={config.recipe.name}"))


@dataclass(kw_only=True)
class _Pipeline:
    recipe: Recipe
    steps: dict[str, Config]
    record: Record
    console: Console
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.made: dict[str, tuple[Output, ...]] = {}
        self.told: dict[str, Any] = {}

    def run(self) -> int:
        began = time.monotonic()
        self._say(f"recipe {self.recipe.name}: {', '.join(self.steps)}")
        for number, (step, config) in enumerate(self.steps.items(), start=1):
            before = self.record.steps.get(step)
            inputs = dict(inputs_of(step, config))
            earlier = earlier_results(step, self.made)
            why = why_due(step, before, inputs=inputs, earlier=earlier, missing=missing)
            label = f"[{number}/{len(self.steps)}] {step:<8}"
            if before is not None and not why:
                same = f"unchanged since it was done at {clock_time(before.done_at)}"
                self._say(f"{label} skipped: {same}")
                self._put(before, state=SKIPPED, why=same, since=self.clock())
                self.made[step] = before.outputs
                continue
            self._say(f"{label} {why}")
            code = self._do(
                step, config,
                StepRecord(
                    step=step, state=RUNNING, why=why, since=self.clock(), inputs=inputs,
                    earlier=earlier,
                ),
            )  # fmt: skip
            if code:
                return code
        states = [self.record.steps[step].state for step in self.steps]
        self._say(
            f"recipe {self.recipe.name} is done: {states.count(DONE)} steps done, "
            f"{states.count(SKIPPED)} skipped, {duration(time.monotonic() - began)}"
        )
        return 0

    def _do(self, step: str, config: Config, record: StepRecord) -> int:
        """One step, and what became of it. Returns its exit code; raises what it raises."""
        config = self._anew(step, config, record)
        self._put(record)
        start = time.monotonic()
        told = len(self.console.documents)

        def spent() -> float:
            return time.monotonic() - start

        try:
            code = importlib.import_module(f"actions.{step}").run(config, self.console)
        except KeyboardInterrupt:
            self._put(record, state=STOPPED, why="interrupted", seconds=spent(), exit_code=130)
            raise
        except SailorError as error:
            state = STOPPED if error.exit_code == _SAVED else FAILED
            said = f"{error.code} {error.what}"
            self._put(record, state=state, why=said, seconds=spent(), exit_code=error.exit_code)
            raise _in_step(error, step=step, recipe=self.recipe) from error
        except Exception as error:
            said = f"E901 {type(error).__name__}"
            self._put(record, state=FAILED, why=said, seconds=spent(), exit_code=1)
            raise
        documents = self.console.documents[told:]
        self.told[step] = documents[-1] if documents else None
        if code:
            stopped = code in (_SAVED, *_KILLED)
            why = "interrupted" if stopped else f"ended with exit {code}"
            self._put(
                record, state=STOPPED if stopped else FAILED, why=why, seconds=spent(),
                exit_code=code,
            )  # fmt: skip
            self._say(
                f"recipe {self.recipe.name}: the step {step} {why} (exit {code}); the same command "
                "goes on from there"
            )
            return int(code)
        self.made[step] = outputs_of(step, config, self.told[step])
        self._put(
            record, state=DONE, seconds=spent(), done_at=self.clock(), outputs=self.made[step]
        )
        return 0

    def _anew(self, step: str, config: Config, record: StepRecord) -> Config:
        """Training from other settings or tokens begins again; the old run's folder is kept."""
        before = self.record.steps.get(step)
        if step != "train" or config.run.fresh or before is None:
            return config
        folder = Path(config.runs_dir).expanduser() / run_name(config)
        if not (folder / "events.jsonl").exists():
            return config
        saved = flatten(plain(saved_config(folder)))
        if not differences(saved, flatten(config)) and before.earlier == record.earlier:
            return config
        _refuse_old_checkpoints(config, step=step, recipe=self.recipe)
        self._say(f"train begins again; what was trained is set aside as {folder.name}.old-N")
        return dataclasses.replace(config, run=dataclasses.replace(config.run, fresh=True))

    def _put(self, record: StepRecord, **changes: Any) -> None:
        import msgspec

        self.record.put(msgspec.structs.replace(record, **changes))

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False, style="bold")

    def document(self) -> dict[str, Any]:
        """What became of it, in JSON types."""
        return {
            "action": "recipe",
            "recipe": self.recipe.name,
            "run": self.record.path.stem,
            "steps": [
                {
                    **({"step": step, "state": "to do", "why": "", "exit_code": 0}
                       if (kept := self.record.steps.get(step)) is None else
                       {"step": step, "state": kept.state, "why": kept.why,
                        "exit_code": kept.exit_code, "seconds": round(kept.seconds, 3)}),
                    "document": self.told.get(step),
                }
                for step in self.steps
            ],
        }  # fmt: skip


def _refuse_old_checkpoints(config: Config, *, step: str, recipe: Recipe) -> None:
    """A folder of checkpoints outside of the run's is not set aside with it: the new run would go
    on from the old one's. Raises ConfigError E603."""
    address = config.checkpoint.directory
    if address is None or newest(place(address)) is None:
        return
    raise ConfigError(
        f"the step {step} of recipe {recipe.name} begins again, but not into old checkpoints",
        code="E603", where=f"checkpoint.directory={address}",
        why="it has those of the run that was made with other settings",
        fix="checkpoint.directory=ANOTHER/FOLDER",
    )  # fmt: skip


def clock_time(seconds: float) -> str:
    """A moment for people, in their own time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _in_step(error: SailorError, *, step: str, recipe: Recipe) -> SailorError:
    """The same error, which also says where in the recipe and how to go on."""
    where = f"step {step} of recipe {recipe.name}"
    again = f"then the same command goes on with the step {step}"
    kind = type(error)
    told = SailorError.__new__(kind)
    SailorError.__init__(
        told, error.what, code=error.code, why=error.why,
        where=f"{where}, {error.where}" if error.where else where,
        fix=f"{error.fix}\n{again}" if error.fix else again,
    )  # fmt: skip
    return told
