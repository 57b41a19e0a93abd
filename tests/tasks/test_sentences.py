import json

import pytest
import tensorflow as tf

from electra_tf.tasks.sentences import (
    SentenceSource,
    is_span_tag,
    spans,
    split_words,
)
from tests.tasks.common import span_scores, write

CHUNKS = "He PRP B-NP\nruns VBZ B-VP\n. . O\n\nIt PRP B-NP\n"
CONLLU = """\
# sent_id = a-1
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\t_\t_\t_\t_\t_
2\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_
3.1\twent\tgo\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t_\t_\t_\t_\t_\t_

"""


def source(path, *, word="0", tag="-1", unlabeled=()):
    options = {"word_column": word, "tag_column": tag, "unlabeled": unlabeled}
    return SentenceSource(files={"train": path, "test": path}, **options)


def test_columns_separated_by_spaces(tmp_path):
    first, second = source(write(tmp_path, "train.txt", CHUNKS))("train")
    assert first.words == ("He", "runs", ".")
    assert first.tags == ("B-NP", "B-VP", "O")
    assert second.id == "line 5"
    path = tmp_path / "train.txt"
    assert source(path, tag="1")("train")[0].tags == ("PRP", "VBZ", ".")
    assert source(path, unlabeled=("test",))("test")[0].tags is None


def test_columns_separated_by_tabs_with_their_oddities(tmp_path):
    # BOM, CRLF, blank lines with a tab, a word with a space, the word "#", a missing
    # newline at the end, a line separator within a word.
    text = "\ufeff-DOCSTART-\tO\r\n\r\n#\tO\r\n\ufe0f\tO\r\n\t\r\nNew York\tB-loc\n"
    text += "a\u2028b\tO"
    first, second = source(write(tmp_path, "x.conll", text))("train")
    assert first.words == ("#", "\ufe0f")
    assert second.words == ("New York", "a\u2028b")


def test_conllu_skips_ranges_and_empty_nodes(tmp_path):
    path = write(tmp_path, "x.conllu", CONLLU)
    (sentence,) = source(path, word="form", tag="UPOS")("train")
    assert sentence.words == ("Do", "n't", "go", ".")
    assert sentence.tags == ("AUX", "PART", "VERB", "PUNCT")
    path = write(tmp_path, "x.conllu", CONLLU.replace("3\t", "3 "))
    with pytest.raises(ValueError, match=r"x.conllu, line 6: '3 go.*an ID and a tab"):
        source(path, word="form", tag="UPOS")("train")


def test_tables_hold_lists_or_words_with_spaces(tmp_path):
    rows = [
        {"id": "one", "words": ["a b", "c"], "tags": ["O", "B-x"]},
        {"id": "two", "words": "d e", "tags": ["O ", "O"]},
    ]
    path = write(tmp_path, "x.jsonl", "\n".join(map(json.dumps, rows)))
    first, second = source(path, word="words", tag="tags")("train")
    assert (first.id, first.words, first.tags) == ("one", ("a b", "c"), ("O", "B-x"))
    assert (second.words, second.tags) == (("d", "e"), ("O", "O"))
    path = write(tmp_path, "x.tsv", "d\tB-x \n")
    (found,) = source(path, tag=1)("train")
    assert found.tags == ("B-x",)


def test_a_word_is_the_same_in_files_tables_and_the_served_model(tmp_path):
    # White space for Python's split(), but not for tf.strings.split.
    strange = [f"x{c}y" for c in "\xa0\x1c\x1f\x85\u2003\u2028\u3000"]
    words = ["costs", *strange, "\xa0", "euro"]
    served = tf.strings.split(tf.constant([" ".join(words)])).to_list()[0]
    assert [word.decode() for word in served] == words
    assert split_words(" \t".join(words) + "\n") == words
    for gap in (" ", "\t"):
        text = "".join(f"{word}{gap}O\n" for word in words)
        (found,) = source(write(tmp_path, "x.conll", text))("train")
        assert found.words == tuple(words)
        assert found.tags == ("O",) * len(words)
    row = {"words": " ".join(words), "tags": ["O"] * len(words)}
    path = write(tmp_path, "x.jsonl", json.dumps(row))
    assert source(path, word="words", tag="tags")("train")[0].words == tuple(words)


def test_documents_begin_with_or_without_blank_lines(tmp_path):
    for text in (
        "-DOCSTART- -X- O\n\na DT O\nb NN O\n\n-DOCSTART- -X- O\n\nc DT O\n",
        "-DOCSTART- -X- O\na DT O\nb NN O\n-DOCSTART- -X- O\nc DT O\n",
        "a DT O\nb -X- -DOCSTART- O\n\nc DT O\n",
        "-DOCSTART-\na\tDT\tO\nb\tNN\tO\n-DOCSTART-\nc\tDT\tO\n",
    ):
        first, second = source(write(tmp_path, "x.conll", text))("train")
        assert (first.words, second.words) == (("a", "b"), ("c",))
        assert text.split("\n")[int(second.id.removeprefix("line ")) - 1][0] == "c"


@pytest.mark.parametrize("gap", [" ", "\t"])
def test_comments_have_another_number_of_columns_than_the_word_hash(tmp_path, gap):
    rows = ["# text = # is", "#{0}NN{0}O", "is{0}VB{0}O", "", "# a b c", ""]
    rows.append("#{0}NN{0}O")
    text = "\n".join(rows).format(gap)
    first, second = source(write(tmp_path, "x.conll", text))("train")
    assert (first.words, second.words) == (("#", "is"), ("#",))
    text = "#\turl\t[2009]\n1\tAda\tB-PER\tO\n"  # GermEval 2014.
    found = source(write(tmp_path, "x.tsv", text), word="1", tag="2")
    assert found.columns(found.files["train"])[0].words == ("Ada",)


def test_bad_files_are_named(tmp_path):
    for text, message in (
        ("a\tO\nb\t\n", "line 2: the tag is empty"),
        ("a\tO\n\tO\n", "line 2: the word is empty"),
        ("a O\nb\n", "line 2: the word 'b' is its own tag.*1 columns.*--tag_column=-1"),
        ("-DOCSTART- O\n", "x.conll has no words"),
    ):
        with pytest.raises(ValueError, match=message):
            source(write(tmp_path, "x.conll", text))("train")
    path = write(tmp_path, "x.txt", "a b\nc\n")
    with pytest.raises(ValueError, match=r"x.txt, line 2: 1 columns.*tag_column is 1"):
        source(path, tag="1")("train")
    with pytest.raises(ValueError, match=r"--word_column=FORM.*must be a number"):
        source(path, word="FORM")("train")
    with pytest.raises(ValueError, match=r"x.csv: .*one word per line in \.conll"):
        source("x.csv")("train")
    path = write(tmp_path, "x.tsv", "words\ttags\na b\tO O\n")
    with pytest.raises(ValueError, match=r"line 2: 'O O' is not one tag.*JSON Lines"):
        source(path)("train")
    path = write(tmp_path, "x.jsonl", '{"words": ["a", "b"], "tags": ["O"]}')
    with pytest.raises(ValueError, match="2 words but 1 tags"):
        source(path, word="words", tag="tags")("train")
    path = write(tmp_path, "x.jsonl", '{"words": "[\'a\', \'b\']", "tags": "O O"}')
    with pytest.raises(ValueError, match=r"a list of strings.*got .\['a', 'b'\]"):
        source(path, word="words", tag="tags")("train")
    with pytest.raises(ValueError, match=r"no column 'word'.*words.*--word_column"):
        source(path, word="word", tag="tags")("train")
    with pytest.raises(FileNotFoundError, match="--dev"):
        source(path)("dev")


# Two adjacent persons, then a location of three words.
SPANS = [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 7)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # IOB1, IOB2 and BIOES.
        ("I-PER I-PER B-PER O I-LOC I-LOC I-LOC", SPANS),
        ("B-PER I-PER B-PER O B-LOC I-LOC I-LOC", SPANS),
        ("B-PER E-PER S-PER O B-LOC I-LOC E-LOC", SPANS),
        # Invalid sequences as in seqeval, IOB sequences as in conlleval.
        ("O I-A I-B", [("A", 1, 2), ("B", 2, 3)]),
        ("B-A E-A I-A", [("A", 0, 2), ("A", 2, 3)]),
        ("S-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("I-A S-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A S-A E-A", [("A", 0, 1), ("A", 1, 2), ("A", 2, 3)]),
        ("E-A E-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A I-B O", [("A", 0, 1), ("B", 1, 2)]),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
        ("B-art-work I-art-work", [("art-work", 0, 2)]),
        ("O O", []),
        ("", []),
    ],
)
def test_one_rule_reads_all_schemes(tags, expected):
    assert spans(tags.split()) == expected


def test_no_spans_score_zero():
    assert span_scores([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0}
    tags = ("O", "E-x", "NOUN", "OTHER")
    assert [is_span_tag(tag) for tag in tags] == [True, True, False, False]
