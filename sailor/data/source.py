"""What tokens are prepared from: text with a tokenizer, or tokens somebody made before.

A source comes in pieces, which are worked on side by side and each written once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import xxhash

from sailor.data.corpus import PIECE_BYTES, Range
from sailor.data.documents import Skipped
from sailor.data.shards import Tokens
from sailor.data.tokenizer import Tokenizer
from sailor.data.tokenizer import Tokens as Encoded

_BATCH_DOCUMENTS = 128  # encoded at once, on as many cores as the tokenizer uses
_AHEAD = 2  # batches encoded side by side
_HELD_OUT_ONE_IN = 50  # documents

Document = tuple[int, Tokens]
"""Hash of a document's content, and its tokens without what ends it."""


class Source(Protocol):
    """Documents as tokens, in a fixed order."""

    name: str
    """For people and logs."""
    tokenizer: str
    """Name of the tokenizer its numbers are of."""
    vocab_size: int
    end_of_text: int
    """Token written after each document."""
    num_pieces: int

    def fingerprint(self) -> str:
        """Changes when what is read changes."""
        ...

    def documents(self, piece: int, *, skipped: Skipped) -> Iterator[Document]:
        """The documents of a piece; what is none is counted in ``skipped``."""
        ...


class Texts(Protocol):
    """Text that comes in documents, and in pieces to be read side by side: a Corpus is one."""

    @property
    def name(self) -> str:
        """For people and logs."""
        ...

    def fingerprint(self) -> str:
        """Changes when what is read changes."""
        ...

    def pieces(self, *, most_bytes: int = ...) -> tuple[tuple[Range, ...], ...]:
        """All of it, in portions of about so many bytes."""
        ...

    def documents(
        self, piece: tuple[Range, ...] | None = None, *, skipped: Skipped | None = None
    ) -> Iterator[bytes]:
        """The documents of a piece, or of all; what is none is counted in ``skipped``."""
        ...


class TextSource:
    """A text, read by a tokenizer."""

    def __init__(
        self, corpus: Texts, tokenizer: Tokenizer, *, piece_bytes: int = PIECE_BYTES
    ) -> None:
        self.name = corpus.name
        self.tokenizer = tokenizer.name
        self.vocab_size = tokenizer.vocab_size
        self.end_of_text = tokenizer.end_of_text
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._pieces = corpus.pieces(most_bytes=piece_bytes)
        self.num_pieces = len(self._pieces)

    def fingerprint(self) -> str:
        """Of the corpus: the tokenizer's name stands beside it."""
        return self._corpus.fingerprint()

    def documents(self, piece: int, *, skipped: Skipped) -> Iterator[Document]:
        """Batch by batch through the tokenizer, which is a few batches ahead: cores that have done
        their part of one go on with the next, and reading and writing happen meanwhile."""
        texts = self._corpus.documents(self._pieces[piece], skipped=skipped)
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="encode") as threads:
            under_way: deque[tuple[list[bytes], Future[list[Encoded]]]] = deque()
            while (batch := list(islice(texts, _BATCH_DOCUMENTS))) or under_way:
                if batch:
                    under_way.append((batch, threads.submit(self._tokenizer.encode, batch)))
                if len(under_way) > _AHEAD or not batch:
                    done, encoded = under_way.popleft()
                    hashes = map(xxhash.xxh3_64_intdigest, done)
                    yield from zip(hashes, encoded.result(), strict=True)


def is_held_out(hash_: int) -> bool:
    """Whether a document is kept for evaluation: by content, so that two copies of a text are
    never on both sides."""
    return hash_ % _HELD_OUT_ONE_IN == 0


def training_texts(corpus: Texts) -> Iterator[bytes]:
    """The documents that are trained on, as prepare() will divide them."""
    hashes = [xxhash.xxh3_64_intdigest(document) for document in corpus.documents()]
    least = least_hash(hashes)
    for document in corpus.documents():
        hash_ = xxhash.xxh3_64_intdigest(document)
        if not is_held_out(hash_) and hash_ != least:
            yield document


def least_hash(hashes: Sequence[int]) -> int | None:
    """The document to hold out when the rule holds out none; None when it does."""
    if any(map(is_held_out, hashes)):
        return None
    return min(hashes, default=None)
