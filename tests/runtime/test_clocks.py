"""Nobody's wall clock decides anything: steps and generations order what happened (fault 28)."""

from __future__ import annotations

import ast

import pytest

from tests.test_architecture import MODULES

# Who may read the time of day: certificates are valid from two days ago, for nodes' clocks may be
# behind, and a cloud's notice names the time of day at which the machine goes.
READERS = {"sailor.runtime.identity", "sailor.runtime.notices"}
DECIDING = ("sailor.runtime.", "sailor.checkpoint.", "sailor.parallel.", "sailor.training.")
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}


@pytest.mark.parametrize(
    "name", sorted(n for n in MODULES if n.startswith(DECIDING) and n not in READERS)
)
def test_a_clock_that_is_set_changes_no_decision(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    read = {
        (node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name)
    }
    assert read & WALL == set()
