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


def read(tmp_path, text, name="x.m2", agreement=0.5, log=refuse):
    (tmp_path / name).write_text(text)
    return marked.read(str(tmp_path / name), agreement, log)


def test_m2_marks_spans_and_what_follows_a_gap(tmp_path):
    first, second, third = read(tmp_path, M2)
    assert first.words == ("This", "are", "a", "sentence", ".")
    # One annotator marks the gap before "sentence", the other the gap at the end.
    assert first.kinds == ("", "SVA", "", "ADJ", "PUNCT")
    assert second.kinds == ("", "")
    assert third.kinds == ("", "N", "DEL", "DEL", "")

    # At most 0.5 of the annotators agree on a gap.
    first, _, third = read(tmp_path, M2, agreement=1.0)
    assert first.kinds == ("", "SVA", "", "", "")
    assert set(third.kinds) == {""}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["A 0 2|||X|||a|||R|||-|||0", "A 1 3|||X|||a|||R|||-|||0"], "line 3.*overlap"),
        (["A 1 1|||X|||a|||R|||-|||0", "A 1 1|||Y|||b|||R|||-|||0"], "1 1 .*overlap"),
        (["A 0 3|||X|||a|||R|||-|||0", "A 1 1|||Y|||b|||R|||-|||0"], "0 3 .*overlap"),
        (["A 0 1|||X|||a"], "line 2 is not an edit"),
        (["B 0 1"], "begin with S or A"),
    ],
)
def test_broken_m2_is_one_line(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message) as raised:
        read(tmp_path, "\n".join(["S a b c d", *lines]))
    assert "\n" not in str(raised.value)


def test_edits_that_touch_do_not_overlap(tmp_path):
    edits = ["A 0 1|||X|||a|||R|||-|||0", "A 1 1|||Y|||b|||R|||-|||0"]
    edits += ["A 1 3|||Z|||b|||R|||-|||0", "A 0 2|||W|||b|||R|||-|||1"]
    (found,) = read(tmp_path, "\n".join(["S a b c d", *edits]))
    assert found.kinds == ("X", "Y", "Z", "")


def test_edits_beyond_the_words_leave_the_sentence_out(tmp_path):
    said = []
    text = M2 + "\nS a b\nA 2 3|||X|||c|||R|||-|||0\n"
    assert len(read(tmp_path, text, log=said.append)) == 3
    assert "1 of 4 sentences are left out" in said[0]
    assert "line 15" in said[0]


def test_columns(tmp_path):
    found = read(tmp_path, "I\tc\nlikes\ti\n\nit\tc\n", "fce.tsv.conll")
    assert [each.kinds for each in found] == [("", "error"), ("",)]
    assert read(tmp_path, "a x 0\nb y 1\n", "x.txt")[0].kinds == ("", "error")
    with pytest.raises(ValueError, match="must be c or i"):
        read(tmp_path, "I\tB-X\n", "x.txt")


def test_parallel_text(tmp_path):
    (tmp_path / "a.src").write_text("I likes it\n\nthe the book\nso is\n")
    (tmp_path / "a.ref").write_text("I like it\n\nthe book\nso it is .\n")
    spec = f"{tmp_path / 'a.src'}:{tmp_path / 'a.ref'}"
    found = marked.read(spec, 0.5, refuse)
    assert [each.kinds for each in found] == [
        ("", "replaced", ""),
        ("unnecessary", "", ""),
        ("", "missing"),
    ]
    (tmp_path / "a.ref").write_text("I like it\n")
    with pytest.raises(ValueError, match=r"has 4 lines and .* 1"):
        marked.read(spec, 0.5, refuse)


def test_minimal_pairs(tmp_path):
    row = {"sentence_good": "The cats sleep .", "sentence_bad": "The cats sleeps ."}
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row | {"UID": name}))
    (found,) = marked.read(str(tmp_path / "one.jsonl"), 0.5, refuse)
    assert found.words == ("The", "cats", "sleeps", ".")
    assert found.kinds == ("", "", "one", "")
    both = marked.read(str(tmp_path), 0.5, refuse)
    assert [each.kinds[2] for each in both] == ["one", "two"]


def test_empty_and_missing_files(tmp_path):
    for name in ("x.m2", "x.conll"):
        with pytest.raises(ValueError, match=r"single word|no words|is empty"):
            read(tmp_path, "\n", name)
    with pytest.raises(OSError, match=re.escape("none.m2")):
        marked.read(str(tmp_path / "none.m2"), 0.5, refuse)


def test_tagged_files(tmp_path):
    for name, text, tag in (
        ("x.conllu", "1\tIs\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_\n\n", "AUX"),
        ("x.txt", "Is VBZ B-VP\n", "VBZ"),
    ):
        (tmp_path / name).write_text(text)
        (sentence,) = marked.read_tagged(str(tmp_path / name))
        assert (sentence.words, sentence.tags) == (("Is",), (tag,))
