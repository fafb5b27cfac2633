"""Each error has its page, the page shows what is printed, and what it says to do can be done."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest

from actions import ACTIONS
from sailor.errors import ConfigError
from tests.errors.examples import EXAMPLES
from tests.errors.pages import PAGES, example, shown
from tests.helpers.compose import ROOT, a_config
from tests.test_docs import codes_in_code

INDEX = (ROOT / "docs" / "errors.md").read_text()
ROWS = re.findall(r"^\| \[(E\d+)\]\(errors/(E\d+)\.md\) \| (\d+) \| (.+) \|$", INDEX, re.M)

# What else a fix may tell people to type, besides our own command and its settings.
PROGRAMS = ("pip", "gcloud", "aws", "az", "sky", "runpod", "kubectl", "kill", "rm", "mount")
# Errors that only a person can do something about: no command brings back a file that is broken.
ADVICE = {"E107", "E502", "E511", "E512", "E513", "E519", "E604", "E611"}

# What ux.md calls each of the mistakes that a message must be good at, by what is ours: code, exit.
PROMISED = {
    "model too big": ("E301", 3), "budget too small": ("E302", 3), "deadline": ("E303", 3),
    "does not divide": ("E304", 3), "unknown key": ("E101", 2), "unknown option": ("E102", 2),
    "grammar": ("E103", 2), "type or unit": ("E104", 2), "no credentials": ("E401", 4),
    "no permission": ("E402", 4), "no quota": ("E403", 4), "not in that zone": ("E404", 4),
    "no capacity": ("E405", 4), "data path": ("E501", 5), "tokenizer and data": ("E505", 5),
    "disk full": ("E601", 1), "port": ("E602", 2), "run exists": ("E603", 2),
    "checkpoint corrupt": ("E604", 1), "package missing": ("E605", 2), "diverged": ("E701", 6),
    "budget reached": ("E702", 7), "worker dead": ("E801", 75), "bug": ("E901", 1),
}  # fmt: skip


@pytest.fixture
def a_folder(tmp_path, tmp_path_factory, monkeypatch):
    """An empty one; what the computer can do is measured once for all of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    return tmp_path


def page(code):
    return (PAGES / f"{code}.md").read_text()


def fixes_of(text):
    """What an error as printed tells to do: lines, and on each of them alternatives."""
    block = re.search(r"^  fix   (.*)", text, re.M | re.S)
    lines = block[1].splitlines() if block else []
    for line in lines:
        for alternative in re.split(r" {3}or {3}", line.strip()):
            yield re.split(r" {3}", alternative)[0].strip()


def kind_of(fix):
    """ "command", "settings", "program" or "advice"."""
    words = fix.split()
    if fix.startswith("python run.py"):
        return "command"
    if words and all(re.match(r"~?[a-z_]+(\.[\w-]+)*=?", word) and "=" in word for word in words):
        return "settings"
    return "program" if words and words[0] in PROGRAMS or fix.startswith("https://") else "advice"


def test_every_code_has_an_example_a_page_and_a_row_and_nothing_else_has():
    codes = codes_in_code()
    assert set(EXAMPLES) == codes
    assert {path.stem for path in PAGES.glob("*.md")} == codes
    assert [row[0] for row in ROWS] == sorted(codes)
    assert all(first == second for first, second, *_ in ROWS)


@pytest.mark.parametrize(("code", "_", "exit_code", "title"), ROWS, ids=[row[0] for row in ROWS])
def test_index_page_and_example_agree(code, _, exit_code, title):
    text = page(code)
    assert text.startswith(f"# {code}: {title}\n\nExit code {exit_code} ([all codes]")
    for part in ("## As printed", "## Why it happens", "## What to do"):
        assert text.count(part) == 1
    told = re.search(r"^error\[(\w+)\] .+   \(exit (\d+)\)$", shown(text), re.M)
    assert told is not None
    assert told.groups() == (code, exit_code)


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_page_shows_what_is_printed(code, a_folder):
    if code == "E406" and importlib.util.find_spec("sky") is not None:
        pytest.skip("SkyPilot is installed here, so that nobody can be told that it is not")
    assert example(code, a_folder) == shown(page(code)), "python -m tests.errors.pages"
    assert "Traceback" not in shown(page(code))


@pytest.mark.parametrize("code", EXAMPLES)
def test_what_an_error_says_to_do_can_be_typed(code, a_folder):
    kinds = []
    for fix in fixes_of(shown(page(code))):
        kinds.append(kind := kind_of(fix))
        if kind == "command":
            words = shlex.split(fix)[2:]
        elif kind == "settings":
            words = shlex.split(fix)
        else:
            assert kind == "program" or fix
            continue
        words = [re.sub(r"^(tokenizer|model)=[/A-Z].*", r"\1=gpt_tiny", word) for word in words]
        words = [word.replace("tokenizer=gpt_tiny", "tokenizer=bytes") for word in words]
        words = [word for word in words if not word.startswith("-") and "=PORT" not in word]
        try:
            config = a_config(*words)
        except ConfigError as error:
            pytest.fail(f"{fix}\n{error.render()}")
        assert set(config.actions) <= set(ACTIONS)
    assert kinds, "nothing is told to do"
    if code not in ADVICE:
        assert set(kinds) - {"advice"}, "only words, nothing to paste"


@pytest.mark.parametrize("mistake", PROMISED)
def test_each_promised_mistake_has_its_error(mistake):
    code, exit_code = PROMISED[mistake]
    text = shown(page(code))
    assert f"error[{code}] " in text
    assert f"(exit {exit_code})" in text
    assert re.search(r"^  (why  |where) \S", text, re.M)
    assert re.search(r"^  fix   \S", text, re.M)
