import sysconfig
import textwrap
from pathlib import Path

import keras
import pytest

from electra_tf.data import installed
from electra_tf.data.corpora import open_corpus
from electra_tf.data.installed import prose

SENTENCE = "This sentence is long enough to count as prose in anyone's documentation."
OTHER = "Another sentence of the documentation follows here, in plain English words."


MARKED = SENTENCE.replace("prose", "``prose``").replace("count", ":func:`count`")


@pytest.mark.parametrize(
    "docstring",
    [
        "\n".join(textwrap.wrap(SENTENCE, 30)) + f"\n\n{OTHER}",
        f"{MARKED}\n\n**Another** {OTHER[8:]}",
        f"{SENTENCE}\n\nReturns:\n  A value.\n\n{OTHER}",
        f"{SENTENCE}\n\nParameters\n----------\nx : int\n    A value.\n\n{OTHER}",
    ],
)
def test_paragraphs_without_markup(docstring):
    assert prose(docstring) == [SENTENCE, OTHER]


@pytest.mark.parametrize(
    "block",
    [
        f">>> print(1)\n{SENTENCE}",
        f"```\n{SENTENCE}\n```",
        f"Args:\n  name: {SENTENCE}",
        f"Parameters\n----------\nname : int\n    {SENTENCE}\n",
        f"Example::\n\n    {SENTENCE}\n",
        f"* {SENTENCE}\n* {OTHER}",
        f":param x: {SENTENCE}",
        f"| {SENTENCE} | {SENTENCE} |",
        f"Copyright 2020 by someone. {SENTENCE}",
        "Short text.",
        "function(argument, other_argument, third_argument, fourth_argument) -> result",
    ],
)
def test_what_is_not_prose_is_left_out(block):
    assert prose(f"{OTHER}\n\n{block}") == [OTHER]


@pytest.fixture
def site(tmp_path, monkeypatch):
    for path, docstring, inner in (
        ("b/m.py", SENTENCE, ""),
        ("a/m.py", SENTENCE, OTHER),
        ("a/tests/m.py", "Tests. " + SENTENCE, ""),
        ("a/test_m.py", "Tests. " + SENTENCE, ""),
        # A zero byte would make the spooled corpus look binary.
        ("a/n.py", OTHER.upper(), f"{OTHER} More.\n\n    \0{OTHER} Damaged."),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        method = f'    def f():\n        """{inner}"""\n'
        file.write_text(f'"""{docstring}"""\nclass A:\n    x = 1\n{method}raise 1\n')
    paths = dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    monkeypatch.setattr(installed, "documents", installed.documents.__wrapped__)


@pytest.mark.usefixtures("site")
def test_modules_are_documents_without_repetition():
    (source,) = open_corpus(["installed"])
    assert list(source.documents()) == [[SENTENCE, OTHER], [f"{OTHER} More."]]


@pytest.mark.slow
def test_the_standard_library_and_keras_have_a_megabyte_of_it(monkeypatch):
    site = dict.fromkeys(("purelib", "platlib"), str(Path(keras.__file__).parent))
    paths = {**sysconfig.get_paths(), **site}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    monkeypatch.setattr(installed, "documents", installed.documents.__wrapped__)
    (source,) = open_corpus()
    paragraphs = [text for document in source.documents() for text in document]
    assert len(paragraphs) == len(set(paragraphs)) > 5_000
    assert sum(map(len, paragraphs)) > 1e6
    assert all("\n" not in text and text.strip() == text for text in paragraphs)
    assert all(ord(character) >= 32 for text in paragraphs for character in text)
