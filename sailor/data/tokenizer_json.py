"""Tokenizers of the ``tokenizers`` library: tokenizer.json files, and training one on a text."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
import xxhash

from sailor.data.tokenizer import (
    JSON_FILE,
    SMALLEST_BPE,
    Tokens,
    files_beside,
    settings_beside,
    unreadable,
    without_end,
)

END = "<|endoftext|>"
_ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")


class JsonTokenizer:
    """A tokenizer.json. What ends a text is said by tokenizer_config.json beside it, or by name."""

    def __init__(self, path: Path, *, end_of_text: str | None = None) -> None:
        try:
            self._content = path.read_bytes()
            self._tokenizer = tokenizers.Tokenizer.from_str(self._content.decode())
        except Exception as error:  # the library raises nothing narrower
            raise unreadable(path, str(error)) from error
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise unreadable(path, "its vocabulary is empty")
        said = end_of_text or settings_beside(path).get("eos_token")
        if isinstance(said, dict):  # an older form
            said = said.get("content")
        names = (said,) if said else _ENDS
        end = next((name for name in names if name in vocabulary), None)
        if end is None:
            raise without_end(path, wanted=said)
        self._end = str(end)
        self.end_of_text = int(vocabulary[end])
        self.vocab_size = max(vocabulary.values()) + 1  # numbers may have gaps
        self._beside = files_beside(path, end=self._end)
        digest = xxhash.xxh3_64_hexdigest(self._content + self._end.encode())
        self.name = f"json-{digest[:12]}"

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        documents = [text.decode("utf-8", errors="replace") for text in texts]
        found = self._tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        # By way of array: numpy alone takes twice as long over a list of Python's own integers.
        return [np.frombuffer(array("I", encoding.ids), dtype=np.uint32) for encoding in found]

    def decode(self, tokens: npt.NDArray[np.integer]) -> bytes:
        kept = tokens[tokens != self.end_of_text].tolist()
        text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
        return text.encode()

    def files(self) -> dict[str, bytes]:
        return {JSON_FILE: self._content, **self._beside}


def train_bpe(documents: Iterable[bytes], *, vocab_size: int, path: Path) -> None:
    """Learn a byte-level BPE (Sennrich et al. 2016) of a text and write it to ``path``.

    Token 0 ends a text. A small text may give fewer tokens than asked for. Raises ValueError for
    fewer than SMALLEST_BPE.
    """
    if vocab_size < SMALLEST_BPE:
        raise ValueError(f"a vocabulary of {vocab_size} has no room for every byte and an end")
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    texts = (document.decode("utf-8", errors="replace") for document in documents)
    learned.train_from_iterator(texts, trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(learned.to_str(pretty=True))
    os.replace(partial, path)
