"""Readers of annotated errors and tags, and errors for invalid files."""

import json
import re

import pytest

from electra_tf.analysis import marked

M2 = """S This are a sentence .
A 1 2|||SVA|||is|||REQUIRED|||-NONE-|||0
A 3 3|||ADJ|||good|||REQUIRED|||-NONE-|||0
A 1 2|||VERB|||was|||REQUIRED|||-NONE-|||1
A 5 5|||PUNCT|||!|||REQUIRED|||-NONE-|||1

S Fine .
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0

S Two words too many .
A 2 4|||DEL||||||REQUIRED|||-NONE-|||1
A 1 2|||N|||word|||REQUIRED|||-NONE-|||1
"""


def refuse(line):
    raise AssertionError(line)


def read(tmp_path, text, name="x.m2", log=refuse):
    (tmp_path / name).write_text(text)
    return marked.read(str(tmp_path / name), log)


def test_m2_marks_spans_and_what_follows_a_gap(tmp_path):
    first, second, third = read(tmp_path, M2)
    assert first.words == ("This", "are", "a", "sentence", ".")
    # One annotator marks the gap before "sentence", the other the gap at the end.
    assert first.kinds == ("", "SVA", "", "ADJ", "PUNCT")
    assert second.kinds == ("", "")
    assert third.kinds == ("", "N", "DEL", "DEL", "")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["A 0 1|||X|||a"], "line 2 must be"),
        (["B 0 1"], "line 2 must be"),
    ],
)
def test_broken_m2_is_one_line(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message) as raised:
        read(tmp_path, "\n".join(["S a b c d", *lines]))
    assert "\n" not in str(raised.value)


def test_edits_beyond_the_words_leave_the_sentence_out(tmp_path):
    said = []
    text = M2 + "\nS a b\nA 2 3|||X|||c|||R|||-|||0\n"
    assert len(read(tmp_path, text, log=said.append)) == 3
    assert "1 of 4 sentences are left out" in said[0]


def test_columns(tmp_path):
    found = read(tmp_path, "I\tc\nlikes\ti\n\nit\tc\n", "fce.tsv.conll")
    assert [each.kinds for each in found] == [("", "error"), ("",)]
    assert read(tmp_path, "a x 0\nb y 1\n", "x.txt")[0].kinds == ("", "error")
    with pytest.raises(ValueError, match="must be c or i"):
        read(tmp_path, "I\tB-X\n", "x.txt")


def test_minimal_pairs(tmp_path):
    row = {"sentence_good": "The cats sleep .", "sentence_bad": "The cats sleeps ."}
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row | {"UID": name}))
    (found,) = marked.read(str(tmp_path / "one.jsonl"), refuse)
    assert found.words == ("The", "cats", "sleeps", ".")
    assert found.kinds == ("", "", "one", "")
    both = marked.read(str(tmp_path), refuse)
    assert [each.kinds[2] for each in both] == ["one", "two"]


def test_empty_and_missing_files(tmp_path):
    for name in ("x.m2", "x.conll"):
        with pytest.raises(ValueError, match=r"single word|no words|is empty"):
            read(tmp_path, "\n", name)
    with pytest.raises(OSError, match=re.escape("none.m2")):
        marked.read(str(tmp_path / "none.m2"), refuse)


def test_tagged_files(tmp_path):
    for name, text, tag in (
        ("x.conllu", "1\tIs\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_\n\n", "AUX"),
        ("x.txt", "Is VBZ B-VP\n", "VBZ"),
    ):
        (tmp_path / name).write_text(text)
        (sentence,) = marked.read_tagged(str(tmp_path / name))
        assert (sentence.words, sentence.tags) == (("Is",), (tag,))
