import numpy as np
import pytest

from electra_tf.api.labels import LabelLookup, label_names

NAN = float("nan")


def check(function, expected, *arguments):
    """Compares a result with the expected one, or an error with its message."""
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            function(*arguments)
    else:
        np.testing.assert_array_equal(function(*arguments), expected)


@pytest.mark.parametrize(
    ("labels", "value", "expected"),
    [
        (["neg", "pos"], "pos", 1),
        (["neg", "pos"], b"pos", 1),
        (["neg", "pos"], 1, 1),
        (["neg", "pos"], True, 1),
        (["neg", "pos"], np.array([1]), 1),
        ([1, 2, 3], 1, 0),
        ([1.0, 2.0], 1, 0),
        (["2", "1"], 1, 1),
        (["2.0", "1.0"], 1.0, 1),
        ([0, 1], True, 1),
        ([True, False], True, 0),
        ([False, True], 1, 1),
        (["TRUE", "FALSE"], True, 0),
        (["nan", "ok"], 1, 1),
        (["neg", "pos"], 2, "Row 7: 2 is not a label. Give one of neg, pos, or 0 to 1"),
        (["neg", "pos"], 0.5, "not a label"),
        (["neg", "pos"], -1, "not a label"),
        (["neg", "pos"], "ps", "Did you mean pos"),
        (["neg", "pos"], NAN, "Row 7 has no label"),
        (["neg", "pos"], [0, 1], "one-hot"),
        (["neg", "pos"], {"a": 1}, "not a label"),
        ([1, 2, 3], 0, "Row 7: 0 is not a label. Give one of 1, 2, 3."),
        (["1", "1.0"], 1, 0),
        ([True, False], 1, "may be a position or a boolean"),
        (["yes", "true"], 1, "may be a position or a boolean"),
        (["1", "true"], True, 1),
        (["1", "true"], 1, 0),
        (["True", "no"], True, 0),
        (["true", "2", "3"], 2, 1),
        (["tRUE", "no"], 1, "may be a position or a boolean"),
        ([1, 2], False, "not a label"),
    ],
)
def test_a_value_is_one_label_or_none(labels, value, expected):
    check(LabelLookup(label_names(labels, "labels", 2)).index, expected, value, 7)


@pytest.mark.parametrize(
    ("labels", "value", "expected"),
    [
        (["x", "y", "z"], ("z", "x"), [1, 0, 1]),
        (["x", "y", "z"], {"y"}, [0, 1, 0]),
        (["x", "y", "z"], [], [0, 0, 0]),
        (["x", "y", "z"], [1, 0, True], [1, 0, 1]),
        (["x", "y", "z"], np.array([0.25, 0, 1]), [0.25, 0, 1]),
        ([3, 5, 7], [7, 3], [1, 0, 1]),
        # Twice the same label, or another number than the labels: one flag each.
        ([0, 1], [0, 0], [0, 0]),
        ([3, 5, 7], [0, 1, 0], [0, 1, 0]),
        ([0, 1, 2], [1, 1], "neither"),
        ([0, 1, 2], [True], [0, 1, 0]),
        (["x", "y"], [2, 0], "neither a list of labels nor 2 numbers from 0 to 1"),
        (["x", "y"], [1], "neither"),
        # A number among names is an index.
        (["x", "y"], ["x", 1], [1, 1]),
        (["x", "y"], ["w"], "'w' is not a label"),
        (["x", "y"], ["x", None], "has no label"),
        (["x", "y"], "x", "a list of labels"),
        ([0, 1], [0, 1], "may be labels or a row of 0 and 1"),
    ],
)
def test_values_are_several_labels_or_none(labels, value, expected):
    check(LabelLookup(label_names(labels, "labels", 1)).several, expected, value, 7)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.unique(["b", "a"]), ("a", "b")),
        (np.array([1.0, 2.5]), ("1", "2.5")),
        (None, "labels are missing"),
        ("pos", "labels must be a list of values.* Got 'pos'"),
        ({0: "neg"}, "labels must be a list"),
        (["a", NAN], "which is not a name"),
        ([["a"], ["b"]], "which is not a name"),
        ([1, 1.0], "'1' twice"),
        (["a"], "needs at least 2"),
    ],
)
def test_names_are_a_sequence(values, expected):
    check(label_names, expected, values, "labels", 2)
