"""Folders that Hugging Face datasets saved, as text."""

import pytest

from actions.prepare import prepare_tokens
from sailor.data.datasets_ import SavedDataset
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import ByteTokenizer
from sailor.errors import DataError
from tests.helpers.compose import a_config

TEXTS = [f"row {i}: {'la ' * (i % 9)}" for i in range(300)]


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="pip install 'sailor-train[datasets]'")


@pytest.fixture
def saved(datasets, tmp_path):
    """Two splits; one row of the first is no document."""
    rows = {"text": [*TEXTS, "", None], "number": list(range(302))}
    both = datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict(rows),
         "test": datasets.Dataset.from_dict({"text": TEXTS[:120], "number": [0] * 120})}
    )  # fmt: skip
    both.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_every_row_of_the_split_is_a_document_whatever_the_pieces(saved, tmp_path):
    texts = SavedDataset(saved, field="text", split="train")
    assert [d.decode() for d in texts.documents()] == TEXTS
    assert len(texts.pieces(most_bytes=1 << 10)) > 3
    pieces = [d for piece in texts.pieces(most_bytes=1 << 10) for d in texts.documents(piece)]
    assert pieces == list(texts.documents())
    many = prepare(
        TextSource(texts, ByteTokenizer(), piece_bytes=1 << 10), directory=tmp_path / "c"
    )
    assert many.num_documents == 300
    assert many.skipped == {"empty": 1, "no field 'text'": 1}
    assert len(many.train) > 3


def test_it_is_named_on_the_command_line(saved, tmp_path):
    words = ("data=datasets", f"data.path={saved}", f"data.cache={tmp_path / 'cache'}")
    assert prepare_tokens(a_config(*words, "data.split=test")).num_documents == 120
    assert prepare_tokens(a_config(*words, f"data.path={saved / 'test'}")).num_documents == 120
    with pytest.raises(DataError, match="too little") as raised:
        prepare_tokens(a_config(*words, "data.field=txt"))
    assert "no field 'txt'" in raised.value.why


def test_a_split_that_is_not_there_is_answered_with_those_that_are(saved):
    with pytest.raises(DataError, match="no split 'validation'") as raised:
        SavedDataset(saved, field="text", split="validation")
    assert (raised.value.code, raised.value.fix) == ("E501", "data.split=test")


def test_a_file_that_is_cut_off_is_named(saved):
    (file,) = (saved / "train").glob("*.arrow")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    texts = SavedDataset(saved, field="text", split="train")
    with pytest.raises(DataError, match="cannot read the dataset") as raised:
        list(texts.documents())
    assert raised.value.code == "E502"


def test_a_folder_without_a_dataset_is_refused(tmp_path):
    with pytest.raises(DataError, match="no saved dataset") as raised:
        SavedDataset(tmp_path, field="text", split="train")
    assert raised.value.exit_code == 5
