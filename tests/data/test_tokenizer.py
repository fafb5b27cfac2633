"""Tokenizers: bytes, files of others, one learned from a text; transformers agrees with each."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sailor.data.tokenizer import (
    SMALLEST_BPE,
    ByteTokenizer,
    has_tokenizer,
    open_tokenizer,
    tokenizer,
    train_tokenizer,
)
from sailor.errors import ConfigError, DataError
from tests.helpers.compose import ROOT

TEXTS = [
    b"def main() -> None:\n    return  'tabs\tand  spaces'\n",
    "Grüße aus Zürich – naïve café, 東京, 🙂\n".encode(),
    b"",
    b"\x01\x02 bytes that nobody types \x7f",
]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A BPE of 300 tokens, learned from our own sources."""
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    sources = [file.read_bytes() for file in sorted((ROOT / "sailor" / "data").glob("*.py"))]
    train_tokenizer(sources, vocab_size=300, path=path)
    return path


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A SentencePiece model of the same text, learned by a process of its own: it prints a lot."""
    folder = tmp_path_factory.mktemp("pieces")
    code = (
        "import sentencepiece, sys\n"
        "sentencepiece.SentencePieceTrainer.train(input=sys.argv[1], model_prefix=sys.argv[2], "
        "vocab_size=400, byte_fallback=True, model_type='bpe')"
    )
    source, prefix = str(ROOT / "sailor" / "config.py"), str(folder / "tokenizer")
    done = subprocess.run([sys.executable, "-c", code, source, prefix], capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder / "tokenizer.model"


def read_by_transformers(kept, folder):
    """The tokenizer's own files, as anybody would load them."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    for name, content in kept.files().items():
        (folder / name).write_bytes(content)
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_bytes_are_their_own_tokens_in_transformers_too(tmp_path):
    kept = tokenizer("bytes")
    theirs = read_by_transformers(kept, tmp_path / "files")
    assert len(theirs) == kept.vocab_size == 256
    assert theirs.eos_token_id == kept.end_of_text == 0
    for text in TEXTS:
        (tokens,) = kept.encode([text])
        assert tokens.tolist() == list(text)
        assert theirs(text.decode())["input_ids"] == list(text)
        assert kept.decode(tokens) == text
    every = np.arange(1, 256)
    assert kept.encode([bytes(range(1, 256))])[0].tolist() == every.tolist()
    assert theirs(bytes(range(1, 128)).decode())["input_ids"] == every[:127].tolist()


def test_a_text_survives_a_learned_tokenizer_and_transformers_reads_it_alike(bpe, tmp_path):
    kept = open_tokenizer(bpe)
    theirs = read_by_transformers(kept, tmp_path / "files")
    assert (kept.vocab_size, len(theirs)) == (300, 300)
    assert (kept.end_of_text, theirs.eos_token_id) == (0, 0)
    for text, tokens in zip(TEXTS, kept.encode(TEXTS), strict=True):
        assert kept.decode(tokens) == text
        assert tokens.tolist() == theirs(text.decode())["input_ids"]
        assert len(tokens) <= len(text)
    together = np.concatenate([kept.encode([TEXTS[0]])[0], [kept.end_of_text]])
    assert kept.decode(together) == TEXTS[0]


def test_what_is_not_utf8_is_replaced_and_never_fatal(bpe):
    kept = open_tokenizer(bpe)
    (tokens,) = kept.encode([b"before \xff\xfe after"])
    assert kept.decode(tokens).decode() == "before \ufffd\ufffd after"


def test_learning_again_gives_the_same_tokenizer(bpe, tmp_path):
    sources = [file.read_bytes() for file in sorted((ROOT / "sailor" / "data").glob("*.py"))]
    train_tokenizer(sources, vocab_size=300, path=tmp_path / "again.json")
    assert open_tokenizer(tmp_path / "again.json").name == open_tokenizer(bpe).name


def test_a_name_changes_with_the_tokens_and_with_their_end(bpe, tmp_path):
    other = tmp_path / "tokenizer.json"
    train_tokenizer([TEXTS[0]], vocab_size=SMALLEST_BPE + 3, path=other)
    names = {open_tokenizer(bpe).name, open_tokenizer(other).name, ByteTokenizer.name}
    names.add(open_tokenizer(bpe, end_of_text="!").name)
    assert len(names) == 4


def test_a_vocabulary_needs_room_for_every_byte(tmp_path):
    with pytest.raises(ValueError, match="256"):
        train_tokenizer([b"text"], vocab_size=256, path=tmp_path / "tokenizer.json")


def test_the_end_of_a_text_is_what_the_settings_beside_it_say(bpe, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(bpe.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "!"}}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    kept = open_tokenizer(tmp_path)
    assert kept.end_of_text == json.loads(bpe.read_text())["model"]["vocab"]["!"]
    assert set(kept.files()) == {path.name for path in tmp_path.iterdir()}
    assert json.loads(kept.files()["tokenizer_config.json"]) == {"eos_token": "!"}
    assert open_tokenizer(tmp_path, end_of_text="<|endoftext|>").end_of_text == 0


def test_sentencepiece_models_are_read_and_survive_a_round_trip(pieces, tmp_path):
    kept = open_tokenizer(pieces)
    assert has_tokenizer(pieces.parent)
    assert open_tokenizer(pieces.parent).name == kept.name
    assert kept.vocab_size == 400
    text = b"def validate(config: Config) -> list"
    (tokens,) = kept.encode([text])
    assert kept.decode(tokens) == text
    assert kept.end_of_text not in tokens
    theirs = read_by_transformers(kept, tmp_path / "files")
    assert theirs(text.decode(), add_special_tokens=False)["input_ids"] == tokens.tolist()
    assert theirs.eos_token_id == kept.end_of_text


def refusal(path, **said):
    with pytest.raises(DataError) as caught:
        open_tokenizer(path, **said)
    assert caught.value.code == "E507"
    assert caught.value.exit_code == 5
    assert "okenizer" in caught.value.fix
    return caught.value


def test_what_is_no_tokenizer_is_refused(bpe, pieces, tmp_path):
    assert "no such file" in refusal(tmp_path / "nowhere").why
    refusal(tmp_path)
    for name in ("broken.json", "broken.model"):
        (tmp_path / name).write_bytes(b"{}")
        refusal(tmp_path / name)
    assert "<end>" in refusal(bpe, end_of_text="<end>").why
    assert "<end>" in refusal(pieces, end_of_text="<end>").why
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    assert "AutoTokenizer" in refusal(tmp_path).fix


def test_a_tokenizer_without_a_known_end_asks_for_it(bpe, tmp_path):
    document = json.loads(bpe.read_text().replace("<|endoftext|>", "<over>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert refusal(tmp_path / "tokenizer.json").fix == "tokenizer.end_of_text=TOKEN"
    assert open_tokenizer(tmp_path / "tokenizer.json", end_of_text="<over>").end_of_text == 0


def test_without_the_library_the_way_to_install_it_is_named(bpe):
    code = (
        "import sys; from pathlib import Path\n"
        "sys.modules['tokenizers'] = None\n"
        "from sailor.data.tokenizer import open_tokenizer\n"
        "from sailor.errors import ConfigError\n"
        "try: open_tokenizer(Path(sys.argv[1]))\n"
        "except ConfigError as error: print(error.code, error.fix)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bpe)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "E605 pip install -e '.[hf]'\n", done.stderr


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ConfigError) as caught:
        tokenizer("byte")
    assert (caught.value.code, caught.value.exit_code) == ("E205", 2)
