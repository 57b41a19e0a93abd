import pytest
import sklearn.metrics

from electra_tf.tasks.tagging_metrics import (
    is_span_tag,
    span_scores,
    spans,
    split_tag,
    tags_of,
    word_accuracy,
)

# Two persons side by side, then a place of three words.
SPANS = [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 7)]
SCHEMES = {
    "iob1": "I-PER I-PER B-PER O I-LOC I-LOC I-LOC",
    "iob2": "B-PER I-PER B-PER O B-LOC I-LOC I-LOC",
    "bioes": "B-PER E-PER S-PER O B-LOC I-LOC E-LOC",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_rule_reads_all_schemes(scheme):
    assert spans(SCHEMES[scheme].split()) == SPANS


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_spans_are_written_in_a_scheme(scheme):
    assert tags_of(SPANS, 7, scheme) == SCHEMES[scheme].split()


# What conlleval and seqeval make of sequences that break the scheme.
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O I-A I-B", [("A", 1, 2), ("B", 2, 3)]),
        ("B-A E-A I-A", [("A", 0, 2), ("A", 2, 3)]),
        ("S-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("E-A E-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A I-B O", [("A", 0, 1), ("B", 1, 2)]),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
        ("O O", []),
        ("", []),
    ],
)
def test_broken_sequences(tags, expected):
    assert spans(tags.split()) == expected


def test_types_may_hold_hyphens_and_a_word_without_tag_is_outside():
    assert split_tag("B-creative-work") == ("B", "creative-work")
    assert spans(["B-creative-work", None, "I-creative-work"]) == [
        ("creative-work", 0, 1),
        ("creative-work", 2, 3),
    ]
    assert is_span_tag("O")
    assert is_span_tag("E-x")
    assert not is_span_tag("NOUN")
    assert not is_span_tag("OTHER")


def test_span_scores_of_a_worked_example():
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"]]
    # PER is a word too short, LOC right, ORG of the wrong type, one too many.
    found = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "B-PER"]]
    scores = span_scores(labels, found)
    assert scores["precision"] == pytest.approx(1 / 4)
    assert scores["recall"] == pytest.approx(1 / 3)
    assert scores["f1"] == pytest.approx(2 / 7)
    assert span_scores([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0}


def test_words_that_were_cut_off_count_as_missed():
    labels = [["B-A", "O", "B-A", "I-A", "B-A"]]
    found = [["B-A", "O", "B-A", None, None]]
    # The second span lost a word, the third is gone.
    scores = span_scores(labels, found)
    assert scores["recall"] == pytest.approx(1 / 3)
    assert scores["precision"] == pytest.approx(1 / 2)
    assert word_accuracy(labels, found) == pytest.approx(3 / 5)


def test_accuracy_is_that_of_scikit_learn():
    labels = [["N", "V", "N"], ["D", "N"]]
    found = [["N", "N", "N"], ["D", "V"]]
    expected = sklearn.metrics.accuracy_score(
        [*labels[0], *labels[1]], [*found[0], *found[1]]
    )
    assert word_accuracy(labels, found) == pytest.approx(expected)
