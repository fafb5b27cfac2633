"""Text to token numbers and back. Bytes are their own tokens; others come in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sailor.errors import ConfigError, DataError

Tokens = npt.NDArray[np.unsignedinteger]

JSON_FILE = "tokenizer.json"
PIECES_FILE = "tokenizer.model"
SMALLEST_BPE = 257  # every byte, and the end of a text
SETTINGS_FILE = "tokenizer_config.json"


class Tokenizer(Protocol):
    """``end_of_text`` ends every document.

    ``name`` goes into the manifest of what it wrote, and is another one whenever one token would be
    another one. It can be part of a file's name.
    """

    name: str
    vocab_size: int
    end_of_text: int

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """Token numbers of some documents, without their ends. What is not UTF-8 is replaced."""

    def decode(self, tokens: npt.NDArray[np.integer]) -> bytes:
        """The text again. The end-of-text token is no text."""

    def files(self) -> dict[str, bytes]:
        """Name -> content of the files transformers.AutoTokenizer reads it from."""


class ByteTokenizer:
    """Every byte is a token. 0 never occurs in text and ends a document."""

    name = "bytes"
    vocab_size = 256
    end_of_text = 0

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def decode(self, tokens: npt.NDArray[np.integer]) -> bytes:
        text: bytes = tokens[tokens != self.end_of_text].astype(np.uint8).tobytes()
        return text

    def files(self) -> dict[str, bytes]:
        """A byte-level BPE that merges nothing, its alphabet in the order of bytes."""
        end = "<|endoftext|>"
        vocabulary = {_letter(byte): byte for byte in range(1, 256)} | {end: 0}
        by_letter = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        document: dict[str, Any] = {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
            "added_tokens": [{
                "id": 0, "content": end, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }],
            "pre_tokenizer": by_letter | {"use_regex": False}, "post_processor": None,
            "decoder": by_letter | {"use_regex": False},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None,
                "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": [],
            },
        }  # fmt: skip
        return {JSON_FILE: json_file(document), SETTINGS_FILE: settings_file(end)}


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name, which needs no file. Raises ConfigError E205."""
    if name != ByteTokenizer.name:
        raise ConfigError(
            f"there is no tokenizer {name!r}", code="E205", where="tokenizer",
            fix="tokenizer=bytes   or   tokenizer=bpe   or   tokenizer=PATH/TO/tokenizer.json",
        )  # fmt: skip
    return ByteTokenizer()


def open_tokenizer(path: Path, *, end_of_text: str | None = None) -> Tokenizer:
    """The tokenizer in a tokenizer.json, a SentencePiece .model, or a folder with one of them.

    ``end_of_text`` is the token that ends a document; None finds it. Raises DataError E507 for a
    file that is none, and ConfigError E605 when the library for it is missing.
    """
    file = _file_at(path)
    try:
        if file.suffix == ".model":
            from sailor.data.tokenizer_pieces import PiecesTokenizer

            return PiecesTokenizer(file, end_of_text=end_of_text)
        from sailor.data.tokenizer_json import JsonTokenizer

        return JsonTokenizer(file, end_of_text=end_of_text)
    except ImportError as error:
        raise _library_missing(error) from error


def train_tokenizer(documents: Iterable[bytes], *, vocab_size: int, path: Path) -> None:
    """Learn a byte-level BPE of a text and write it to ``path``, a tokenizer.json.

    Raises ConfigError E605 when the library for it is missing.
    """
    try:
        from sailor.data.tokenizer_json import train_bpe
    except ImportError as error:
        raise _library_missing(error) from error
    train_bpe(documents, vocab_size=vocab_size, path=path)


def has_tokenizer(folder: Path) -> bool:
    """Whether open_tokenizer finds a file there."""
    return any((folder / name).is_file() for name in (JSON_FILE, PIECES_FILE))


def _file_at(path: Path) -> Path:
    if path.is_dir():
        for name in (JSON_FILE, PIECES_FILE):
            if (path / name).is_file():
                return path / name
        legacy = [name for name in ("vocab.json", "merges.txt") if (path / name).is_file()]
        raise DataError(
            f"there is no tokenizer in {path}", code="E507", where=str(path),
            why=f"neither {JSON_FILE} nor {PIECES_FILE} is there"
            + (f", but {' and '.join(legacy)} of an older form" if legacy else ""),
            fix="load and save it once with transformers: AutoTokenizer."
            "from_pretrained(OLD).save_pretrained(NEW)"
            if legacy
            else "tokenizer=PATH/TO/tokenizer.json",
        )  # fmt: skip
    if not path.is_file():
        raise unreadable(path, "there is no such file or folder")
    return path


def unreadable(path: Path, why: str) -> DataError:
    """E507 for a file that is no tokenizer."""
    return DataError(
        f"{path} is no tokenizer", code="E507", where=str(path), why=why,
        fix="tokenizer=PATH   of a tokenizer.json, a SentencePiece .model, or a folder with one",
    )  # fmt: skip


def without_end(path: Path, *, wanted: str | None) -> DataError:
    """E507 for a tokenizer of which nobody knows what ends a document."""
    return DataError(
        f"{path} does not say which token ends a document", code="E507", where=str(path),
        why=f"it has no token {wanted!r}" if wanted else "none of its tokens is called like it",
        fix="tokenizer.end_of_text=TOKEN",
    )  # fmt: skip


def _library_missing(error: ImportError) -> ConfigError:
    """E605 for one of the two libraries of the extra."""
    return ConfigError(
        f"the library {error.name} is not installed", code="E605", where="tokenizer",
        why="tokenizers other than bytes need it", fix="pip install -e '.[hf]'",
    )  # fmt: skip


def files_beside(path: Path, *, end: str) -> dict[str, bytes]:
    """What lies beside a tokenizer's file and belongs to it, with ``end`` as what ends a text.

    Its settings, made up where there are none, and templates of chats.
    """
    settings = settings_beside(path)
    files = {
        SETTINGS_FILE: json_file({**settings, "eos_token": end}) if settings else settings_file(end)
    }
    for name in ("special_tokens_map.json", "chat_template.jinja"):
        if (path.parent / name).is_file():
            files[name] = (path.parent / name).read_bytes()
    return files


def settings_beside(path: Path) -> dict[str, Any]:
    """tokenizer_config.json in the same folder; empty when there is none."""
    try:
        settings = json.loads((path.parent / SETTINGS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def settings_file(end: str) -> bytes:
    """A tokenizer_config.json that says little: which class, and what ends a document."""
    return json_file(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": end}
    )


def _letter(byte: int) -> str:
    """The character that byte-level BPE writes for a byte (Radford et al. 2019, GPT-2's code)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in shown:
        return chr(byte)
    return chr(256 + [b for b in range(256) if b not in shown].index(byte))


def json_file(document: object) -> bytes:
    """As it is written to a file."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
