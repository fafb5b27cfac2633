"""docs/faults.md names, for every fault that a serious user injects, a test that exists."""

from __future__ import annotations

import ast
import re

from tests.helpers.compose import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text()
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.M)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_fault_has_a_row() -> None:
    assert {int(number) for number, _ in ROW.findall(PAGE)} == set(range(1, 38))


def test_every_report_names_tests_that_exist() -> None:
    reports = PAGE.partition("## What has been reported of other systems")[2]
    rows = [line for line in reports.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        named = TEST.findall(row)
        assert named, f"names no test: {row[:60]}"
        for path, test in named:
            assert test in functions(path), f"{path} has no {test}"


def test_every_row_names_tests_that_exist() -> None:
    for number, row in ROW.findall(PAGE):
        named = TEST.findall(row)
        assert named or "not built" in row, f"fault {number} names no test"
        for path, test in named:
            assert test in functions(path), f"fault {number}: {path} has no {test}"
