"""One crew of worker processes and one folder of tokens for all tests here."""

import pytest

from tests.helpers.engine import Crew, some_tokens


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    return some_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="session")
def crew(tmp_path_factory):
    crew = Crew(tmp_path_factory.mktemp("runs"))
    yield crew
    crew.dismiss()
