"""Output formats: terminal, JSON lines and messages."""

import io
import json
import re
import sys

import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import Fills, Verdicts, inspect

FILLS = Fills(
    "x [MASK]",
    ("[CLS]", "x", "[MASK]", "[SEP]"),
    "[MASK]",
    ((("<i>", 0.5), ("\u6f22", 0.25)),),
)
# Clear screen, hidden text, a one-byte control sequence, and right-to-left override.
HOSTILE = "a\x1b[2J\x1b[8m\x9b31m\u202e\r"
HARMLESS = r"a\u001b[2J\u001b[8m\u009b31m\u202e\u000d"


def test_tokens_cannot_reach_the_terminal():
    tokens = ("[CLS]", HOSTILE)
    for result in (
        Fills(HOSTILE, tokens, "[MASK]", (((HOSTILE, 0.5), ("b", 0.1)),)),
        Verdicts(HOSTILE, tokens, (0.1, 0.9)),
        Verdicts(HOSTILE, tokens, (0.1, 0.9), tokens, (False, True)),
    ):
        text = inspect.shown(result)
        assert HARMLESS in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert inspect.record(result)["tokens"][1] == HOSTILE


def test_long_texts_are_wrapped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    many = Verdicts("x", ("word",) * 20, (0.1,) * 20)
    shown = inspect.shown(many)
    assert shown.count("word") == 20
    assert shown.count("token") == 3
    assert max(map(len, shown.splitlines())) <= 50


def test_fills_as_text():
    assert inspect.shown(FILLS).splitlines() == [
        "x [MASK]",
        "       [MASK]  <i>   50.00%",
        "               \u6f22     25.00%",
    ]


def test_json_lines(folder, capsys):
    def lines(*arguments):
        assert command(["inspect", f"--model={folder}", "--json", *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    first, second = lines("a good book", "bad")
    assert first["tokens"] == ["[CLS]", "a", "good", "book", "[SEP]"]
    assert len(first["replaced_probability"]) == 5
    assert second["text"] == "bad"
    (found,) = lines("--corrupt", "--mask_rate=0.9", "a b c")
    assert found["original_tokens"] == ["[CLS]", "a", "b", "c", "[SEP]"]
    assert found["is_masked"] == [False, True, True, True, False]
    assert found["is_replaced"] == [
        a != b for a, b in zip(found["original_tokens"], found["tokens"], strict=True)
    ]
    (found,) = lines("--fill", "--top=2", "a [MASK]")
    assert len(found["fills"]) == 1
    assert found["fills"][0][0].keys() == {"token", "probability"}
    assert len(found["fills"][0]) == 2


def test_texts_from_standard_input(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a good book\n\nbad\r\n"))
    assert command(["inspect", f"--model={folder}"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("P(replaced) %") == 2
    assert shown.count(inspect.LEGEND) == 1
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("stdin", "message"),
    [(b"\n \n", "no text"), (b"good\nb\xe4d\n", "not UTF-8"), (b"\x00\n", "no tokens")],
)
def test_bad_input_is_one_line(folder, monkeypatch, stdin, message):
    stream = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(SystemExit, match=message) as stopped:
        command(["inspect", f"--model={folder}"])
    assert "\n" not in stopped.value.code


def test_corruptions_and_fills_exclude_each_other(folder):
    with pytest.raises(SystemExit, match="--corrupt and --fill exclude each other"):
        command(["inspect", f"--model={folder}", "--corrupt", "--fill", "a"])
