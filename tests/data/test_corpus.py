"""Which text is read, and as which documents."""

import pytest

from sailor.data.corpus import MAX_DOCUMENT_BYTES, Corpus, standard_library, text_at
from sailor.errors import DataError


def test_the_standard_library_is_here_and_without_its_tests():
    corpus = standard_library()
    names = {file.as_posix() for file in corpus.files}
    assert "argparse.py" in names
    assert not any({"test", "tests", "site-packages"} & set(name.split("/")) for name in names)
    assert list(corpus.files) == sorted(corpus.files)
    assert sum(len(document) for document in corpus.documents()) > 5_000_000


def test_a_folder_is_read_in_order_without_hidden_and_empty_files(tmp_path):
    (tmp_path / "b.txt").write_text("second\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("first\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden\n")
    assert list(text_at(tmp_path).documents()) == [b"first\n", b"second\n"]


def test_a_large_file_is_many_documents_that_end_at_line_ends_and_lose_nothing(tmp_path):
    text = b"".join(b"line %d of a long file\n" % i for i in range(20_000))
    file = tmp_path / "long.txt"
    file.write_bytes(text)
    documents = list(text_at(file).documents())
    assert b"".join(documents) == text
    assert len(documents) > 100
    assert all(document.endswith(b"\n") for document in documents)
    assert max(map(len, documents)) <= MAX_DOCUMENT_BYTES


def test_a_line_without_an_end_is_cut_all_the_same(tmp_path):
    file = tmp_path / "one_line.txt"
    file.write_bytes(b"x" * 300_000)
    documents = list(text_at(file).documents())
    assert b"".join(documents) == b"x" * 300_000
    assert len(documents) > 1


def test_a_file_with_a_nul_byte_is_not_text(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"ab\0cd")
    (tmp_path / "text.txt").write_bytes(b"text")
    assert list(text_at(tmp_path).documents()) == [b"text"]


@pytest.mark.parametrize("make", ["nothing", "empty folder", "empty file"])
def test_a_path_without_text_is_one_clear_error(tmp_path, make):
    path = tmp_path / "here"
    if make == "empty folder":
        path.mkdir()
    elif make == "empty file":
        path.touch()
    with pytest.raises(DataError) as raised:
        text_at(path)
    assert raised.value.code == "E501"
    assert raised.value.exit_code == 5
    assert "data.path" in raised.value.render()


def test_a_file_that_vanishes_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    corpus = text_at(tmp_path)
    gone = Corpus(name="gone", root=tmp_path, files=(*corpus.files, tmp_path / "b.txt"))
    for use in (gone.fingerprint, lambda: list(gone.documents())):
        with pytest.raises(DataError, match=r"b\.txt") as raised:
            use()
        assert raised.value.code == "E502"


def test_the_fingerprint_follows_what_is_in_the_folder(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("text")
    first = text_at(tmp_path).fingerprint()
    assert text_at(tmp_path).fingerprint() == first
    file.write_text("other text")
    assert text_at(tmp_path).fingerprint() != first
