"""Secrets do not reach the log; ordinary words and numbers do."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.observe.events import EventLog, read_events
from sailor.observe.redact import REDACTED, redact, redact_fields

# Made up and put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "aws id": "AKIA" + "Q3EGSJ7RT5X2LMNP",
    "aws secret": "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYzz9rQk3vT8",
    "google": "AIza" + "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"[:35],
    "hugging face": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwX",
    "github": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "vendor": "sk-" + "proj-abcDEF123456abcDEF123456",
    "jwt": "eyJhbGciOiJI" + ".eyJzdWIiOiIx" + ".c2lnbmF0dXJl",
    "pem": "-----BEGIN PRIVATE KEY-----\nMIIEvQ\nIBADANBg\n-----END PRIVATE KEY-----",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=list(SECRETS))
def test_what_looks_like_a_key_goes_and_the_rest_stays(secret: str) -> None:
    cleaned = redact(f"copying with {secret} to the bucket")
    assert cleaned == f"copying with {REDACTED} to the bucket"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("run.py cloud.password=hunter2 seed=1", f"run.py cloud.password={REDACTED} seed=1"),
        ("s3://user:hunter2@host/x", f"s3://user:{REDACTED}@host/x"),
        ("GET /x?X-Amz-Signature=ab12&n=1", f"GET /x?X-Amz-Signature={REDACTED}&n=1"),
        ("Authorization: Bearer abcdefgh1234", f"Authorization: Bearer {REDACTED}"),
        ("HF_TOKEN=abc run.py", f"HF_TOKEN={REDACTED} run.py"),
    ],
)
def test_a_named_secret_in_a_text_goes(text: str, cleaned: str) -> None:
    assert redact(text) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "python run.py model=gpt_tiny data.tokens=20B tokenizer=bytes max_tokens=5",
        "0123456789abcdef0123456789abcdef01234567",  # a git commit
        "runs/swift-otter/checkpoints/step-00000120/node-1",
        "node-1/0.1",
        "http://127.0.0.1:8642/metrics",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_a_telling_name_hides_its_string_at_any_depth_but_never_a_number() -> None:
    fields = {"step": 3, "tokens": 12, "env": [{"api_key": "x", "name": "y"}], "token": "z"}
    assert redact_fields(fields) == {
        "step": 3, "tokens": 12, "env": [{"api_key": REDACTED, "name": "y"}], "token": REDACTED,
    }  # fmt: skip


@given(st.text(alphabet=string.printable, max_size=200))
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_the_log_applies_it_to_every_field(tmp_path: Path) -> None:
    secret = SECRETS["aws id"]
    with EventLog(tmp_path / "events.jsonl", run="otter") as log:
        log.write("parked", why=f"refused: {secret}")
    assert secret not in (tmp_path / "events.jsonl").read_text()
    assert read_events(tmp_path / "events.jsonl")[0]["why"] == f"refused: {REDACTED}"
