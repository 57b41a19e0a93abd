import gzip
import json
import re
from unittest import mock

import pytest

from electra_tf.errors import UserError
from electra_tf.tasks.base import Example
from electra_tf.tasks.sentences import Sentence
from electra_tf.tasks.squad import Question
from electra_tf.tasks.tables import HeldOut, TableSource, find_files, read_table
from tests.tasks.common import write


def source(path, *, kind="classification", text=("text",), label=("label",), **kwargs):
    files = {"train": path, "test": path}
    return TableSource(files=files, text=text, label=label, kind=kind, **kwargs)


def labels(path, **kwargs):
    return [example.label for example in source(path, **kwargs)("train")]


def test_csv_has_quotes_line_breaks_and_a_byte_order_mark(tmp_path):
    content = '\ufefftext,label\r\n"one, ""two""\nthree",x\r\nfour,y\r\n'
    found = source(write(tmp_path, "a.csv", content))("train")
    assert [e.texts for e in found] == [('one, "two"\nthree',), ("four",)]
    assert [e.label for e in found] == ["x", "y"]
    assert [e.id for e in found] == ["0", "1"]
    # Texts to predict need no label.
    assert source(write(tmp_path, "a.csv", "text\nt\n"))("test")[0].label is None


def test_tsv_takes_quotes_as_characters(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"half a quote\tx\n')
    assert source(path)("train")[0].texts == ('"half a quote',)


def test_json_lines_pairs_and_gzip(tmp_path):
    line = '{"id": "q7", "title": "t", "body": "b", "label": 3}\n'
    path = write(tmp_path, "a.jsonl.gz", gzip.compress(line.encode()))
    (example,) = source(path, text=("title", "body"))("train")
    assert (example.id, example.texts, example.label) == ("q7", ("t", "b"), "3")


def test_multilabel_from_one_cell_a_list_or_columns(tmp_path):
    cell = write(tmp_path, "a.csv", "text,label\nt,a| b\nu,\n")
    assert labels(cell, kind="multilabel") == [("a", "b"), ()]
    many = write(tmp_path, "b.jsonl", '{"text": "t", "label": ["x", "y"]}')
    assert labels(many, kind="multilabel") == [("x", "y")]
    columns = write(tmp_path, "c.csv", "text,a,b\nt,1,0\nu,1,1\n")
    assert labels(columns, kind="multilabel", label=("a", "b")) == [("a",), ("a", "b")]
    lacking = write(tmp_path, "f.jsonl", '{"text": "t", "label": []}\n{"text": "u"}')
    with pytest.raises(ValueError, match=r"line 2: no label; without labels, write"):
        labels(lacking, kind="multilabel")
    wrong = write(tmp_path, "d.csv", "text,a,b\nt,1,maybe\n")
    with pytest.raises(ValueError, match="column b must be 0 or 1"):
        labels(wrong, kind="multilabel", label=("a", "b"))
    # Lists that pandas wrote.
    for cell in ("\"['a', 'b']\"", "['a' 'b']", "[]", '"[0, 15]"'):
        path = write(tmp_path, "e.csv", f"text,label\nt,{cell}\n")
        with pytest.raises(ValueError, match=r"line 2: the labels .* a list in one"):
            labels(path, kind="multilabel")


def test_columns_that_do_not_fit_are_named():
    for text, label in ((("text", "label"), ("label",)), (("a", "a"), ("label",))):
        # A label among the texts would give perfect scores.
        with pytest.raises(ValueError, match=r"--text and --label name .* twice"):
            source("x.csv", text=text, label=label)
    with pytest.raises(ValueError, match=r"2 columns .a, b., but --task=regression"):
        source("a.csv", label=("a", "b"), kind="regression")


def test_labels_are_names_whatever_is_around_them(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\nt,a \nu, a\nv,a\nw,b c\n")
    assert labels(path) == ["a", "a", "a", "b c"]
    cells = ("1", "1.0", '"1 "', "1.5")
    rows = "".join(f'{{"text": "t", "label": {cell}}}\n' for cell in cells)
    assert labels(write(tmp_path, "b.jsonl", rows)) == ["1", "1", "1", "1.5"]
    many = write(tmp_path, "c.jsonl", '{"text": "t", "label": ["x ", "x", 2.0, ""]}')
    assert labels(many, kind="multilabel") == [("x", "2")]
    one = write(tmp_path, "d.jsonl", '{"text": "t", "label": 2.0}')
    assert labels(one, kind="multilabel") == [("2",)]
    for part in ("null", "NaN", '["y"]', "{}"):
        row = f'{{"text": "t", "label": ["x", {part}]}}'
        with pytest.raises(ValueError, match=r"line 1: .* is not a label"):
            labels(write(tmp_path, "e.jsonl", row), kind="multilabel")


def test_regression_reads_numbers(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\nt,1.5\nu,-2\n")
    assert labels(path, kind="regression") == [1.5, -2.0]
    # Python reads "1_0" as 10.
    for word in ("one", "1_0"):
        path = write(tmp_path, "b.csv", f"text,label\nt,{word}\n")
        with pytest.raises(ValueError, match=f"'{word}'.*not a number"):
            labels(path, kind="regression")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.tsv", b"\xef\xbb\xbf\r\n", "the file is empty"),
        ("a.csv", "text;label\nt;x\n", "no column 'text'.*text;label"),
        ("a.csv", "text\tlabel\nt\tx\n", "no column 'text'"),
        ("a.tsv", "text,label\nt,x\n", "no column 'text'.*text,label"),
        ("a.csv", "text,label\n", "a header but no rows"),
        ("a.csv", b"text,label\ncaf\xe9,x\n", r"not UTF-8 at byte 14 \(line 2\)"),
        ("a.csv", "texts,label\nt,x\n", "no column 'text'. Did you mean texts"),
        ("a.csv", "text,topic\nt,x\n", "no column 'label'.*text, topic.*--label"),
        ("a.csv", "text,label\nt,\n", r"line 2: the label \(column label\) is empty"),
        ("a.tsv", "text\tlabel\n\n\t\n", "line 3: the label .* is empty"),
        ("a.csv", "text,label\nt,x,y\n", "line 2: 3 cells.*2 columns"),
        ("a.csv", "text,text\nt,x\n", "twice"),
        ("a.csv", "text,label\nt,x\ntext,label\n", "line 3 repeats the header"),
        ("a.tsv", "text\tlabel\nt\tx\ntext\tlabel\n", "line 3 repeats the header"),
        ("a.jsonl", '{"text": "t", "label": NaN}', "line 1: NaN in column label is"),
        ("a.jsonl", '{"text": "t", "label": ["x"]}', '."x". in column label is not'),
        ("a.csv", 'text,label\n"t,x\n', "line 2: unexpected end"),
        ("a.jsonl", '{"text": 1, "label": "x"}\n', "must hold a text, got 1"),
        ("a.jsonl", "{no}\n", "line 1"),
        ("a.jsonl", "[1]\n", "must be a JSON object"),
        ("a.csv", '"text";"label"\n"a, b";"x"\n', "line 1: ',' expected"),
        ("a.csv", "text,label\nt,x\n".encode("utf-16"), "UTF-16"),
        ("a.csv", "text,label\nt,x\n".encode("utf-16-le"), "UTF-16"),
        ("a.csv", "I liked it.,good\nNo.,bad\n", "first line must name the columns"),
        ("a.xlsx", "x", "unknown kind of table '.xlsx'"),
    ],
)
def test_bad_tables_are_named(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        source(write(tmp_path, name, content))("train")


def test_only_a_line_feed_ends_a_json_line(tmp_path):
    texts = ["a\u2028b", "c\x85d", "e\x0bf"]
    lines = [json.dumps({"text": t, "label": "x"}, ensure_ascii=False) for t in texts]
    path = write(tmp_path, "a.jsonl", "\r\n".join(lines))
    assert [e.texts for e in source(path)("train")] == [(text,) for text in texts]


def test_held_out_tenth_is_disjoint_complete_and_read_once():
    read = mock.Mock(return_value=list(range(40)))
    held = HeldOut(read)
    train, dev = held("train"), held("eval")
    assert len(dev) == 4
    assert sorted(train + dev) == list(range(40))
    # Shuffled, since tables are often sorted by label.
    assert min(dev) < 20 <= max(dev)
    read.assert_called_once_with("train")
    with pytest.raises(ValueError, match="--eval"):
        HeldOut(lambda _: [0])("eval")


@pytest.mark.parametrize("sizes", [[5] * 20, [30, *[1] * 20], [19, 1], [1, 19]])
def test_no_paragraph_is_both_trained_and_held_out(sizes):
    questions = [
        Question(f"{number}-{each}", "Who?", f"paragraph {number}", ())
        for number, size in enumerate(sizes)
        for each in range(size)
    ]
    for period in (5, 10):
        held = HeldOut(lambda _: questions, period=period)
        train, dev = held("train"), held("eval")
        assert not {q.context for q in train} & {q.context for q in dev}
        assert {q.id for q in train + dev} == {q.id for q in questions}
        assert len(train) + len(dev) == len(questions) > len(dev)
        assert len(dev) >= len(questions) // period or len({*sizes}) > 1
    one = [Question(str(number), "Who?", "all", ()) for number in range(30)]
    with pytest.raises(ValueError, match="--eval"):
        HeldOut(lambda _: one)("train")


def test_no_copy_of_a_text_is_both_trained_and_held_out():
    numbers = [number % 30 for number in range(90)]
    texts = [Example(str(n), (f"text {n}",), "a") for n in numbers]
    sentences = [Sentence(str(n), ("word", str(n)), ("O", "O")) for n in numbers]
    for examples in texts, sentences:
        held = HeldOut(lambda _, examples=examples: examples)
        train, dev = held("train"), held("eval")
        assert not {e.id for e in train} & {e.id for e in dev}
        assert (len(train), len(dev)) == (81, 9)


def test_an_error_about_a_header_of_several_lines_has_one(tmp_path):
    for row, said in (("one", "has 2 columns (text, la"), ("a,b", "are text, la")):
        path = write(tmp_path, "a.csv", f'text,"la\nbel"\n{row}\n')
        with pytest.raises(ValueError, match=re.escape(f"{said}\\nbel")) as caught:
            labels(path)
        assert "\n" not in str(caught.value)


def test_a_cell_that_fills_the_memory_is_refused(tmp_path):
    path = write(tmp_path, "long.csv", b"text,label\n" + (20 << 20) * b"a" + b",pos\n")
    with pytest.raises(UserError, match=r"long\.csv, line 2: field larger"):
        read_table(path)


def test_files_are_found_by_what_their_names_say(tmp_path):
    for name in ("README", "eng.train", "eng.testa", "eng.testb"):
        write(tmp_path, name, "a O")
    found = find_files(str(tmp_path))
    names = {split: path.rsplit("/", 1)[1] for split, path in found.items()}
    assert names == {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
    write(tmp_path, "my-train.txt", "a O")
    with pytest.raises(ValueError, match=r"has eng.train and my-train.txt"):
        find_files(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no file for train \(train\)"):
        find_files(str(tmp_path / "empty"))
