"""Text to token numbers and back. Bytes are their own tokens; others may be entered below."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from sailor.errors import ConfigError


class Tokenizer(Protocol):
    """``end_of_text`` ends every document. ``name`` goes into the manifest of what it wrote."""

    name: str
    vocab_size: int
    end_of_text: int

    def encode(self, text: bytes) -> npt.NDArray[np.unsignedinteger]:
        """Token numbers of one document, without its end."""

    def decode(self, tokens: npt.NDArray[np.integer]) -> bytes:
        """The text again."""


class ByteTokenizer:
    """Every byte is a token. 0 never occurs in text and ends a document."""

    name = "bytes"
    vocab_size = 256
    end_of_text = 0

    def encode(self, text: bytes) -> npt.NDArray[np.unsignedinteger]:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: npt.NDArray[np.integer]) -> bytes:
        return tokens.astype(np.uint8).tobytes()


TOKENIZERS: dict[str, type[ByteTokenizer]] = {"bytes": ByteTokenizer}


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name. Raises ConfigError."""
    if name not in TOKENIZERS:
        raise ConfigError(
            f"there is no tokenizer {name!r}", code="E205", where="tokenizer",
            fix=f"one of {', '.join(sorted(TOKENIZERS))}",
        )  # fmt: skip
    return TOKENIZERS[name]()
