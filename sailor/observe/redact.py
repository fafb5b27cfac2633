"""Keeps secrets out of what is written down: the event log, the report, the live view.

Two rules: a string under a telling name (``password``, ``api_key``) goes whole, and whatever looks
like a key inside any other string goes alone. Numbers are never touched, so ``tokens`` stays.
It is a net under the rule that no secret is passed in at all, not a licence to pass one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

_TELLING_NAME = re.compile(
    r"(password|passwd|passphrase|secret|credential|authorization|api_?key|access_?key|private_?key)"
    r"|(^|[_.-])token$",
    re.IGNORECASE,
)

# Each pattern keeps its group 1, if it has one, and replaces the rest of the match.
_LOOKS_LIKE_A_KEY = [
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[A-Z ]*KEY-----|\Z)", re.S),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),  # AWS access key id
    re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),  # Google API key
    re.compile(r"\bya29\.[0-9A-Za-z_.-]{20,}"),  # Google OAuth token
    re.compile(r"\bhf_[0-9A-Za-z]{20,}\b"),  # Hugging Face
    re.compile(r"\bgh[pousr]_[0-9A-Za-z]{30,}\b|\bgithub_pat_[0-9A-Za-z_]{30,}\b"),
    re.compile(r"\bsk-[0-9A-Za-z_-]{20,}"),  # several API vendors
    re.compile(r"\bxox[abprs]-[0-9A-Za-z-]{10,}"),  # Slack
    re.compile(r"\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*"),  # JSON web token
    re.compile(r"(\bBearer\s+)[0-9A-Za-z._~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE),  # url password
    re.compile(  # name=value inside a command line, an url or an error text
        r"((?:password|passwd|passphrase|secret|credential|api_?key|access_?key(?:_id)?|private_?key"
        r"|signature|[_-]token|\btoken)\s*[=:]\s*)(?!\[redacted\])[^\s,;&'\"]+",
        re.IGNORECASE,
    ),
]  # fmt: skip
_FORTY = re.compile(r"(?<![0-9A-Za-z/+=])[0-9A-Za-z/+]{40}(?![0-9A-Za-z/+=])")


def redact(text: str) -> str:
    """The text with everything that looks like a key replaced by ``[redacted]``."""
    for pattern in _LOOKS_LIKE_A_KEY:
        text = pattern.sub(lambda match: (match[1] if match.re.groups else "") + REDACTED, text)
    return _FORTY.sub(lambda match: REDACTED if _random(match[0]) else match[0], text)


def redact_fields(value: Any, *, name: str = "") -> Any:
    """A JSON value with its strings redacted, at any depth; ``name`` is the key it sits under."""
    if isinstance(value, str):
        return REDACTED if value and _TELLING_NAME.search(name) else redact(value)
    if isinstance(value, Mapping):
        return {key: redact_fields(entry, name=str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [redact_fields(entry, name=name) for entry in value]
    return value


def _random(text: str) -> bool:
    """Whether 40 characters look drawn at random (an AWS secret), not like a path or a digest."""
    upper, lower = sum(c.isupper() for c in text), sum(c.islower() for c in text)
    digits, slashes = sum(c.isdigit() for c in text), text.count("/")
    return upper >= 5 and lower >= 5 and digits >= 2 and slashes <= 3
