"""SentencePiece models (Kudo and Richardson 2018), as the older Llama and Mistral have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece
import xxhash

from sailor.data.tokenizer import (
    PIECES_FILE,
    SETTINGS_FILE,
    Tokens,
    files_beside,
    json_file,
    settings_beside,
    unreadable,
    without_end,
)


class PiecesTokenizer:
    """A SentencePiece .model. What ends a text is its own end-of-sentence piece, if not said."""

    def __init__(self, path: Path, *, end_of_text: str | None = None) -> None:
        try:
            self._content = path.read_bytes()
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=self._content)
        except (OSError, RuntimeError) as error:
            raise unreadable(path, str(error)) from error
        unknown = self._pieces.unk_id()
        end = self._pieces.eos_id() if end_of_text is None else self._pieces.PieceToId(end_of_text)
        if end < 0 or (end_of_text is not None and end == unknown):
            raise without_end(path, wanted=end_of_text)
        self.end_of_text = int(end)
        self.vocab_size = int(self._pieces.GetPieceSize())
        piece = self._pieces.IdToPiece(self.end_of_text)
        self._beside = files_beside(path, end=piece)
        if not settings_beside(path):  # the class that reads such files
            settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
            self._beside[SETTINGS_FILE] = json_file({**settings, "eos_token": piece})
        digest = xxhash.xxh3_64_hexdigest(self._content + str(end).encode())
        self.name = f"pieces-{digest[:12]}"

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        documents = [text.decode("utf-8", errors="replace") for text in texts]
        found = self._pieces.encode(documents, out_type=int)
        return [np.array(numbers, dtype=np.uint32) for numbers in found]

    def decode(self, tokens: npt.NDArray[np.integer]) -> bytes:
        text: str = self._pieces.decode(tokens[tokens != self.end_of_text].tolist())
        return text.encode()

    def files(self) -> dict[str, bytes]:
        return {PIECES_FILE: self._content, **self._beside}
