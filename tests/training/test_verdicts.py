import pytest

from electra_tf.training.verdicts import verdict_table

SAMPLE = {
    "original": ["the", "chef", "cooked", "a", "meal"],
    "corrupted": ["the", "queen", "ate", "a", "meal"],
    "probabilities": [0.02, 0.31, 0.93, 0.7, 0.1],
    "is_masked": [False, True, True, False, True],
}


def test_verdict_table():
    assert verdict_table(**SAMPLE) == (
        "     original  the chef  cooked a   meal\n"
        "       masked      ^     ^          ^\n"
        "      sampled      queen ate        =\n"
        "P(replaced) %   2  -31   +93    !70  10\n"
        "\n"
        "   1  +  found: replaced, and called replaced\n"
        "   1  -  missed: replaced, but called real\n"
        "   1  !  false alarm: real, but called replaced\n"
        "   2     real, and called real"
    )


def test_verdict_table_wraps_and_loses_no_token():
    text = verdict_table(**SAMPLE, width=12)
    rows = [x.split()[1:] for x in text.splitlines() if x.startswith("     original")]
    assert [token for row in rows for token in row] == SAMPLE["original"]
    assert len(rows) == 3
    assert all(len(line) <= 15 + 12 for line in text.split("\n\n   1")[0].splitlines())


def test_verdict_table_in_color_is_the_same_text():
    colored = verdict_table(**SAMPLE, use_color=True)
    assert "\x1b[31mqueen\x1b[0m" in colored
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        colored = colored.replace(code, "")
    lines = [line.rstrip() for line in colored.splitlines()]
    assert lines == verdict_table(**SAMPLE).splitlines()


def test_lists_of_different_length_are_refused():
    with pytest.raises(ValueError, match=r"have \[5, 5, 4, 5\]"):
        verdict_table(**{**SAMPLE, "probabilities": [0.1] * 4})
