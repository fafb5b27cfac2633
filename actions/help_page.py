"""What --help prints. Made without Hydra, in a tenth of a second."""

from __future__ import annotations

import textwrap
from pathlib import Path

from actions import ACTIONS
from actions.arguments import PROGRAM, options
from sailor.config_keys import groups

_OPENING = f"""\
Sailor trains language models on preemptible machines without losing work when they vanish.

  {PROGRAM}                                    the demonstration: here, in minutes
  {PROGRAM} action=plan model=gpt_1b cloud=gcp budget.total_usd=300
  {PROGRAM} train.steps=500 cloud.nodes=2 faults=none run.name=quiet
  {PROGRAM} -m action=plan model=gpt_125m,gpt_1b cloud=gcp
  {PROGRAM} recipe=gpt_125m_laptop             a pipeline, from text to report; again: the rest
  {PROGRAM} action=watch run=NAME              look at a run from another terminal
  {PROGRAM} --cfg job --resolve                print the configuration and stop
"""

_CLOSING = f"""
Any key can be set with group.key=value; sailor/config.py says what each means.
model=FOLDER starts from a Hugging Face model, tokenizer=PATH reads text with a tokenizer you have,
checkpoint=PATH names one step for export, eval and check, faults=PATH reads a script of faults,
recipe=NAME does the steps of recipes/NAME.yaml, or with action= one of them; with
recipe.smoke=true it does so here, in seconds. output=json prints one JSON document. -m runs several
values of a key one after the other and ends with a table. --info defaults shows which files are
read, eval "$({PROGRAM} -sc install=bash)" completes keys and options, --hydra-help has the rest.

Ctrl-C finishes the step, saves and exits 75; the same command goes on. A second one stops at once.
Exit codes: 0 done, 1 our bug, 2 usage, 3 no plan, 4 cloud, 5 data, 6 diverged, 7 limit reached,
75 interrupted and saved, 130/143 stopped without saving."""


def text(*, root: Path) -> str:
    """The whole page. ``root`` is the folder that holds conf/."""
    actions = [f"  {name:<13} {what}" for name, what in ACTIONS.items()]
    choices = [
        _wrapped(f"  {group:<10} ", ", ".join(options(group, root=root)))
        for group in groups()
        if (root / "conf" / group).is_dir()
    ]
    heading = "Actions (action=NAME, or a list in order: action=[prepare,train])"
    return "\n".join([_OPENING, heading, *actions, "", "Groups (group=option)", *choices, _CLOSING])


def _wrapped(label: str, words: str) -> str:
    indent = " " * len(label)
    return textwrap.fill(words, width=98, initial_indent=label, subsequent_indent=indent)
