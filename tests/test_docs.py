"""What the documents say is what the code does."""

from __future__ import annotations

import re

import pytest

from actions import ACTIONS
from sailor import errors
from tests.helpers.compose import ROOT, a_config
from tests.test_architecture import MODULES

CATALOGUE = (ROOT / "docs" / "errors.md").read_text()
CODE = re.compile(r"\bcode=\s*\"(E\d+)\"")
SHELL_BLOCK = re.compile(r"```(?:sh|console)\n(.*?)```", re.S)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def codes_in_code() -> set[str]:
    return {code for path in MODULES.values() for code in CODE.findall(path.read_text())}


def test_every_exit_code_is_documented():
    kinds = [kind for kind in vars(errors).values()
             if isinstance(kind, type) and issubclass(kind, errors.SailorError)]  # fmt: skip
    for page in (CATALOGUE, (ROOT / "docs" / "architecture.md").read_text()):
        for kind in kinds:
            assert re.search(rf"\b{kind.exit_code}\b", page), kind


def commands(page) -> list[str]:
    """The command lines of a page's shell blocks."""
    lines = [line for block in SHELL_BLOCK.findall(page.read_text()) for line in block.splitlines()]
    commands = (line.removeprefix("$ ").partition("   #")[0].strip() for line in lines)
    return [command for command in commands if command and not command.startswith("#")]


@pytest.fixture(scope="module")
def a_model(tmp_path_factory):
    """What a page calls /models/NAME: a Hugging Face folder, of which the weights are not read."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_composes(page, a_model):
    for command in commands(page):
        for part in command.split(" && "):
            if not part.startswith("python run.py"):
                continue
            arguments = part.split()[2:]
            if any(argument.startswith("-") for argument in arguments):
                continue  # flags of Hydra
            config = a_config(*(re.sub(r"/models/[\w.-]+", str(a_model), a) for a in arguments))
            assert set(config.actions) <= set(ACTIONS), part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_a_page_exist(page):
    roots = "sailor|provision|actions|conf|recipes|docs|tests|benchmarks"
    for name in re.findall(rf"`((?:{roots})/[\w./-]+\.\w+)`", page.read_text()):
        placeholder = "NAME" in name or "Not built yet" in page.read_text()
        assert placeholder or (ROOT / name).exists(), name
