"""What a run starts from and reads with is looked at before it starts, kept, and held to."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from actions.begin import begin
from actions.console import Console
from actions.origin import read_tokens
from actions.prepare import prepare_tokens
from actions.sources import tokenizer_of
from sailor.data.tokenizer import ByteTokenizer, open_tokenizer, train_tokenizer
from sailor.errors import DataError
from tests.helpers.compose import a_config
from tests.helpers.hf import a_folder

LONG = "train.steps=3"


@pytest.fixture
def said(tmp_path):
    """A run on a little text of its own."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        (text / f"{number}.txt").write_text(f"file {number}: " + "ahoy there " * (200 + number))
    return [f"runs_dir={tmp_path / 'runs'}", "run.name=it", "data=text", f"data.path={text}",
            f"data.cache={tmp_path / 'cache'}", LONG]  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A Llama with byte tokens; never written to."""
    return with_bytes(a_folder(tmp_path_factory.mktemp("hf") / "llama", "llama"))


@pytest.fixture
def model(original, tmp_path):
    """A copy of it, to be broken."""
    path = tmp_path / "llama"
    path.mkdir()
    for file in original.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def with_bytes(folder):
    for name, content in ByteTokenizer().files().items():
        (folder / name).write_bytes(content)
    return folder


def refusal(*arguments) -> DataError:
    with pytest.raises(DataError) as caught, begin(a_config(*arguments), Console()):
        pass
    assert caught.value.exit_code == 5
    return caught.value


def test_what_is_small_of_the_origin_is_kept_in_the_runs_folder(said, model):
    with begin(a_config(*said, f"model={model}"), Console()) as beginning:
        folder = beginning.folder.path
        assert beginning.settings.init_from == str(model)
    for name in ("config.json", "generation_config.json"):
        assert (folder / "origin" / name).read_bytes() == (model / name).read_bytes()
    assert not list((folder / "origin").glob("*.safetensors"))
    kept = open_tokenizer(folder / "tokenizer")
    assert read_tokens(folder).tokenizer == kept.name
    assert read_tokens(folder).end_of_text == kept.end_of_text == 0


def test_a_run_that_never_began_leaves_no_origin_to_another(said, model):
    with begin(a_config(*said, f"model={model}"), Console()) as beginning:
        assert (beginning.folder.path / "origin").exists()
    with begin(a_config(*said), Console()) as beginning:
        assert not (beginning.folder.path / "origin").exists()


def test_a_run_from_the_seed_keeps_its_tokenizer_alone(said):
    with begin(a_config(*said), Console()) as beginning:
        folder = beginning.folder.path
        assert beginning.settings.init_from == ""
    assert not (folder / "origin").exists()
    assert (folder / "tokenizer" / "tokenizer.json").exists()


@pytest.mark.parametrize("broken", ["missing", "half written"])
def test_weights_that_are_not_whole_are_refused_before_anything_starts(said, model, broken):
    file = model / "model.safetensors"
    if broken == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-64])
    assert refusal(*said, f"model={model}").code == "E513"


def test_a_folder_with_another_model_than_the_one_described_is_refused(said, model):
    error = refusal(*said, f"model={model}", "model.num_heads=8", "model.head_size=4")
    assert error.code == "E510"
    assert "num_heads: 4 there, 8 here" in error.why
    assert error.fix.startswith(f"model={model}")


def test_idle_rows_and_the_longest_sequence_may_differ(said, tmp_path):
    gpt = with_bytes(a_folder(tmp_path / "gpt", "gpt2"))  # 257 tokens, padded to 320 rows
    padded = ["model.vocab_size=384", "model.vocab_padding=127"]
    with begin(a_config(*said, f"model={gpt}", *padded), Console()) as beginning:
        assert beginning.settings.init_from == str(gpt)
    assert refusal(*said, f"model={gpt}", "model.max_positions=32", "run.name=b").code == "E510"


def test_another_tokenizer_than_the_models_own_is_refused(said, model):
    error = refusal(*said, f"model={model}", "tokenizer=bytes")
    assert error.code == "E509"
    assert error.fix == f"tokenizer={model}"


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(said, model, tmp_path):
    path = tmp_path / "large.json"
    train_tokenizer([b"some words of text"], vocab_size=270, path=path)
    error = refusal(*said, f"model={model}", f"tokenizer={path}")
    assert error.code == "E505"
    assert "the model has 256 rows" in error.why


def test_a_run_that_goes_on_reads_the_same_text_with_the_same_tokens(said, tmp_path):
    path = tmp_path / "words.json"
    train_tokenizer([b"ahoy there, ahoy"], vocab_size=260, path=path)
    said = [*said, f"tokenizer={path}", "model.vocab_size=320"]
    with begin(a_config(*said), Console()) as beginning:
        beginning.folder.events.write_text("")  # it has begun
    with begin(a_config(*said), Console()) as beginning:
        assert beginning.folder.resumed
    text = tmp_path / "text" / "1.txt"
    before = text.read_text()
    text.write_text(before + "more")
    error = refusal(*said)
    assert error.code == "E509"
    assert error.what.startswith("the text is not the one")
    text.write_text(before)  # touched, but as it was
    with begin(a_config(*said), Console()):
        pass
    train_tokenizer([b"other words altogether"], vocab_size=262, path=path)
    error = refusal(*said)
    assert error.code == "E509"
    assert error.what.startswith("the tokenizer is not the one")


def test_a_bpe_is_learned_once_from_what_is_trained_on(said, tmp_path):
    config = a_config(*said, "tokenizer=bpe", "model.vocab_size=300")
    first = prepare_tokens(config)
    learned = list((tmp_path / "cache" / "tokenizers").glob("bpe-300-*/tokenizer.json"))
    assert len(learned) == 1
    stamp = learned[0].stat().st_mtime_ns
    assert prepare_tokens(config) == first
    assert learned[0].stat().st_mtime_ns == stamp
    words = tokenizer_of(config)
    assert words.vocab_size == 300
    assert first.tokenizer == words.name
    as_bytes = prepare_tokens(a_config(*said))
    assert first.train_tokens < as_bytes.train_tokens / 3


@pytest.mark.parametrize(
    ("wish", "fix"),
    [
        (["tokenizer=bpe"], "model.vocab_size=4096"),  # 256 rows
        (["tokenizer=bpe", "tokenizer.vocab_size=512"], "model.vocab_size=512"),
    ],
    ids=str,
)
def test_a_bpe_that_cannot_fit_is_refused_before_it_is_learned(said, tmp_path, wish, fix):
    error = refusal(*said, *wish)
    assert error.code == "E505"
    assert fix in error.fix
    assert not list((tmp_path / "cache").rglob("tokenizer.json"))


def test_a_folder_whose_weights_have_another_shape_is_refused(said, model):
    file = model / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()
    save_file(weights, file, metadata={"format": "pt"})
    error = refusal(*said, f"model={model}")
    assert error.code == "E513"
    assert "(31,)" in error.what
    assert json.loads((model / "config.json").read_text())["hidden_size"] == 32
