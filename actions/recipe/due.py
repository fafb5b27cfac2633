"""Whether a step must be done: a pure rule over what it is made from, was made from, and has made.

A step is left out if it was done from the same settings, files and results of the steps before it,
and what it made is still there. Of the steps before it training looks at the tokens alone: a plan
or an evaluation that is made anew is no reason to throw a trained model away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import xxhash

from actions.recipe.inputs import LOOKS_OUTSIDE, Inputs, changed
from actions.recipe.outputs import Output
from actions.recipe.record import FAILED, RUNNING, STOPPED, StepRecord

_EARLIER: dict[str, tuple[str, ...]] = {"train": ("prepare",)}


def earlier_results(step: str, done: Mapping[str, Iterable[Output]]) -> str:
    """A digest of what the steps before have made, as far as this step looks at it."""
    seen = {name: made for name, made in done.items() if name in _EARLIER.get(step, done)}
    digest = xxhash.xxh3_64()
    for name, made in seen.items():
        for output in made:
            digest.update(f"{name}\0{output.digest}\0".encode())
    return digest.hexdigest()


def why_due(
    step: str,
    record: StepRecord | None,
    *,
    inputs: Inputs,
    earlier: str,
    missing: Callable[[tuple[Output, ...]], str],
) -> str:
    """Why the step must be done, in words; "" when it need not be."""
    if record is None:
        return "not done yet"
    if record.state == FAILED:
        return f"failed before (exit {record.exit_code}): {record.why}"
    if record.state in (RUNNING, STOPPED):
        different = changed(record.inputs, inputs)
        if different:
            return "; ".join(different)
        return "goes on where it stopped" if record.state == STOPPED else "was ended by force"
    if step in LOOKS_OUTSIDE:
        return "looks at things as they are now"
    different = changed(record.inputs, inputs)
    if different:
        return "; ".join(different[:4]) + (
            f"; and {len(different) - 4} more" * (len(different) > 4)
        )
    if record.earlier != earlier:
        return "a step before it made something else"
    return missing(record.outputs)
