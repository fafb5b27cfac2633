"""The arrows of docs/architecture.md: who may import whom, and who must do without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.compose import ROOT

WIRE = ("sailor.runtime.messages", "sailor.runtime.identity", "sailor.runtime.transport")

# Room -> rooms it may import, itself aside. A room is the longest entry that starts a module's
# name. Everybody may import the small change at the end of this table.
MAY_IMPORT: dict[str, set[str]] = {
    "run": {
        "actions", "sailor.config", "sailor.config_keys", "sailor.rules", "sailor.observe.redact",
    },
    "actions": {
        "provision", "sailor.config", "sailor.config_keys", "sailor.rules", "sailor.faults",
        "sailor.planner",
        "sailor.profile", "sailor.plan", "sailor.models.spec", "sailor.cluster", "sailor.data",
        "sailor.runtime", "sailor.checkpoint", "sailor.training.settings", "sailor.observe",
        "sailor.parallel", "sailor.log", "sailor.models.hf", "sailor.models.dcp",
        "sailor.training.evaluate", "sailor.training.inference", "sailor.training.initial",
        "sailor.simulate",
    },
    "provision": {"sailor.cluster", "sailor.faults", "sailor.observe"},
    "sailor.config": {"sailor.models.spec"},
    "sailor.config_keys": {"sailor.config"},
    "sailor.rules": {"sailor.config", "sailor.config_keys"},
    "sailor.faults": set(),
    "sailor.plan": {"sailor.models.spec"},
    "sailor.cluster": set(),
    "sailor.models.spec": set(),
    "sailor.models": {"sailor.models.spec", "sailor.parallel"},
    "sailor.profile": {"sailor.plan", "sailor.models.spec", "sailor.cluster"},
    "sailor.measure": {"sailor.models", "sailor.models.spec", "sailor.parallel"},
    "sailor.planner": {
        "sailor.profile", "sailor.plan", "sailor.models.spec", "sailor.cluster",
        "sailor.parallel.boxes", "sailor.parallel.schedule", "sailor.parallel.layout",
    },
    "sailor.parallel": {"sailor.plan", "sailor.models.spec"},
    "sailor.data": {"sailor.data.blend"},
    "sailor.data.blend": set(),  # how many samples are of which source, by arithmetic
    "sailor.training.settings": set(),
    "sailor.training": {
        "sailor.parallel", "sailor.models", "sailor.models.spec", "sailor.data", "sailor.plan",
        "sailor.training.settings",
    },
    "sailor.checkpoint": {
        "sailor.parallel", "sailor.models.spec", "sailor.plan", *WIRE,
    },
    # The wire lies below both: what is said, how, and who may speak.
    "sailor.runtime.messages": {
        "sailor.models.spec", "sailor.parallel.layout", "sailor.plan", "sailor.training.settings",
    },
    "sailor.runtime.identity": set(),
    "sailor.runtime.transport": {"sailor.runtime.messages", "sailor.runtime.identity"},
    "sailor.runtime": {
        *WIRE, "sailor.log",
        "sailor.training", "sailor.training.settings", "sailor.checkpoint", "sailor.parallel",
        "sailor.plan", "sailor.models.spec", "sailor.models", "sailor.data", "sailor.cluster",
        "sailor.faults",
    },
    "sailor.observe": {"sailor.plan", "sailor.observe.redact", "sailor.data.blend"},
    "sailor.observe.redact": set(),
    # The life cycle's own values, and the decisions that go with it; of observe: what measured runs
    # cost, how time is named, charts.
    "sailor.simulate": {
        "sailor.runtime.lifecycle", "sailor.runtime.state", "sailor.runtime.happenings",
        "sailor.runtime.commands", "sailor.checkpoint.placement",
        "sailor.parallel.layout", "sailor.plan", "sailor.planner", "sailor.observe",
        "sailor.profile", "sailor.models.spec", "sailor.cluster",
    },
    "sailor.addresses": set(),
    "sailor.errors": set(),
    "sailor.units": set(),
    "sailor.clock": set(),
    "sailor.log": {"sailor.observe.redact"},
}  # fmt: skip
SMALL_CHANGE = {"sailor", "sailor.addresses", "sailor.errors", "sailor.units", "sailor.clock"}

# Library -> the only places that may import it.
ONLY_IN: dict[str, set[str]] = {
    "hydra": {"run"},
    "omegaconf": {"run"},
    # Through importlib, in a process of its own: no import statement of it is anywhere.
    "sky": set(),
    "boto3": {"provision.aws", "actions.account"},
    "google": {"provision.gcp"},
    "torch": {
        "sailor.models", "sailor.parallel.comm", "sailor.parallel.groups", "sailor.parallel.tensor",
        "sailor.parallel.pipeline", "sailor.parallel.reduce", "sailor.parallel.state",
        "sailor.parallel.spread", "sailor.training", "sailor.measure", "sailor.runtime.zygote",
        "sailor.runtime.worker", "sailor.runtime.builder", "sailor.runtime.side_copy",
        "sailor.runtime.seat", "sailor.runtime.seats", "sailor.runtime.rehearsal",
        "sailor.parallel.sandbox", "sailor.parallel.near", "sailor.parallel.words",
        "sailor.parallel.shared_buffers", "sailor.parallel.products",
        "sailor.parallel.buckets",
        "sailor.runtime.store_client", "sailor.runtime.understudy", "actions.eval",
    },
    # The table of contents of torch's checkpoints is one; read there with a list of allowed names.
    "pickle": {"sailor.models.dcp"},
    "datasets": set(),  # through importlib, where it is installed
    "tokenizers": {"sailor.data.tokenizer_json"},
    "sentencepiece": {"sailor.data.tokenizer_pieces"},
    "transformers": set(),  # the oracle of tests, and what exported folders are for
}  # fmt: skip

# Modules and packages that may import torch, directly or not: the rest must do without.
WITH_TORCH = ONLY_IN["torch"]
TORCH_FREE_IN_THEM = {
    "sailor.models", "sailor.models.spec", "sailor.models.hf", "sailor.models.hf.config",
    "sailor.models.hf.tensors", "sailor.models.hf.read", "sailor.models.hf.write",
    "sailor.training", "sailor.training.settings", "sailor.training.schedule",
    "sailor.training.evaluate", "sailor.training.guard",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of ours, by dotted name."""
    found = {"run": ROOT / "run.py"}
    for top in ("sailor", "provision", "actions"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """Dotted names a file imports anywhere in it; ``from a import b`` counts as a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


MODULES = modules()


def room(module: str) -> str | None:
    """The longest entry of MAY_IMPORT that a module lies in."""
    return max((r for r in MAY_IMPORT if lies_in(module, {r})), key=len, default=None)


def lies_in(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def ours(names: set[str]) -> set[str]:
    """Of the names imported, the modules of ours they mean."""
    return {name for name in names if name in MODULES}


@pytest.mark.parametrize("module", [m for m in MODULES if room(m)])
def test_a_room_imports_only_what_the_table_allows(module):
    here = room(module)
    allowed = MAY_IMPORT[here] | SMALL_CHANGE
    strangers = {
        name
        for name in ours(imports(MODULES[module]))
        if name not in SMALL_CHANGE
        and room(name) != here
        and not lies_in(name, {place for place in allowed if place != "sailor"})
        # ``from sailor.x import y`` names the package too; its __init__ is nearly empty
        and not any(place.startswith(f"{name}.") for place in allowed)
    }
    assert strangers == set(), f"{here} may import {sorted(MAY_IMPORT[here])}"


def test_every_module_belongs_to_a_room():
    bare = {"sailor"}
    assert [module for module in MODULES if room(module) is None and module not in bare] == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_is_wrapped(library):
    users = {
        module
        for module, path in MODULES.items()
        if any(lies_in(name, {library}) for name in imports(path))
    }
    assert [m for m in sorted(users) if not lies_in(m, ONLY_IN[library])] == []


# Modules that import a library of an extra, and are themselves imported when it is wished for.
OF_EXTRAS = {
    f"sailor.observe.trackers.{name}_" for name in ("tensorboard", "mlflow", "wandb", "prometheus")
}


def torch_free() -> list[str]:
    free = [m for m in MODULES if m in TORCH_FREE_IN_THEM or not lies_in(m, WITH_TORCH)]
    return [m for m in free if m not in OF_EXTRAS]


def test_what_plans_and_controls_never_imports_torch():
    """One process imports all of them: torch, or a cloud's library, would show."""
    code = "import importlib, sys\n"
    code += (
        f"for name in {[m for m in torch_free() if m != 'run']!r}: importlib.import_module(name)\n"
    )
    code += "found = {'torch', 'sky', 'hydra', 'boto3', 'google.cloud'} & set(sys.modules)\n"
    code += "assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_configuration_needs_the_standard_library_only():
    code = "import sys; before = set(sys.modules); import sailor.config, sailor.rules\n"
    code += "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
    code += "assert new - set(sys.stdlib_module_names) == {'sailor'}, new"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_there_is_no_drawer_for_odds_and_ends():
    assert [name for name in MODULES if name.endswith((".utils", ".helpers", ".misc"))] == []
