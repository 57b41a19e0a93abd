import json

import pytest

from electra_tf.data import vocabulary_file
from electra_tf.data.records import MANIFEST
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.data.vocabulary_file import prepare_vocabulary


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    words = [f"w{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    path.write_text("\n".join([" ".join(words), "\u00c9t\u00e9 Winter"] * 3))
    return path


@pytest.fixture
def prepare(corpus, tmp_path, monkeypatch):
    """`prepare_vocabulary` at one path; its list says for how often it was trained."""
    trained = []
    train = vocabulary_file.train_vocabulary

    def counted(lines, size, **options):
        trained.append(size)
        return train(lines, size, **options)

    def call(size=80, **options):
        options = {"log": lambda message: None, **options}
        path = tmp_path / "made" / "vocab.txt"
        return prepare_vocabulary([str(corpus)], path, size=size, **options)

    monkeypatch.setattr(vocabulary_file, "train_vocabulary", counted)
    call.trained = trained
    return call


def test_it_is_trained_once(prepare):
    vocabulary = prepare()
    assert len(vocabulary) == 80
    assert prepare() == prepare(overwrite=True) == vocabulary
    assert prepare.trained == [80]
    with pytest.raises(ValueError, match="has 80 tokens, asked for 40"):
        prepare(40)


def test_a_stale_one_is_refused_or_trained_anew(prepare, corpus, tmp_path):
    prepare()
    with pytest.raises(ValueError, match="lower_case is True there and False here"):
        prepare(lower_case=False)
    cased = prepare(lower_case=False, overwrite=True)
    assert "W" in cased.tokens
    corpus.write_text("another text, another text")
    with pytest.raises(ValueError, match="the text has changed"):
        prepare(lower_case=False)
    # Records that are there were made with it: they say what their text was.
    (tmp_path / "made" / MANIFEST).write_text("{}")
    assert prepare(lower_case=False) == cased
    corpus.unlink()
    assert prepare(lower_case=False) == cased
    assert prepare.trained == [80, 80]


def test_a_text_that_gives_few_tokens_is_a_warning(prepare):
    told = []
    prepare(5000, log=told.append)
    assert "warning: of 5000 tokens asked for, the text gives" in told[-1]
    told.clear()
    prepare(80, overwrite=True, log=told.append)
    assert not [line for line in told if "warning" in line]


def test_a_file_of_ones_own_is_used_as_it_is(prepare, corpus, tmp_path):
    own = prepare()
    settings = tmp_path / "made" / "vocab.txt.json"
    assert json.loads(settings.read_text())["vocabulary_sha256"] == own.sha256
    path = tmp_path / "made" / "vocab.txt"
    path.write_text(path.read_text().replace("waa", "WAA"))
    assert prepare(lower_case=False).tokens != own.tokens
    assert prepare.trained == [80]


def test_overwriting_begins_after_the_corpus_was_found(prepare, corpus, tmp_path):
    vocabulary = prepare()
    corpus.unlink()
    with pytest.raises(ValueError, match="no such file"):
        prepare(overwrite=True, lower_case=False)
    assert Vocabulary.load(tmp_path / "made" / "vocab.txt") == vocabulary
