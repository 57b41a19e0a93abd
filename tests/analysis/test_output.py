import html.parser
import io
import json
import re
import sys

import pytest

from electra_tf import cli
from electra_tf.__main__ import main as command
from electra_tf.analysis import Fills, Verdicts, inspector, render

CHOICES = (("<i>", 0.5), ("\u6f22", 0.25))
FILLS = Fills("x [MASK]", ("[CLS]", "x", "[MASK]", "[SEP]"), "[MASK]", (CHOICES,))


# Clear screen, hidden text, a one-byte control sequence, and right-to-left override.
HOSTILE = "a\x1b[2J\x1b[8m\x9b31m\r\u202e"
HARMLESS = r"a\u001b[2J\u001b[8m\u009b31m\u000d\u202e"


def test_tokens_cannot_reach_the_terminal(capsys):
    tokens = ("[CLS]", HOSTILE)
    for result in (
        Fills(HOSTILE, tokens, "[MASK]", (((HOSTILE, 0.5), ("b", 0.1)),)),
        Verdicts(HOSTILE, tokens, (0.1, 0.9)),
        Verdicts(HOSTILE, tokens, (0.1, 0.9), tokens, (False, True)),
    ):
        cli.say(inspector.shown(result))
        text = capsys.readouterr().out
        assert HARMLESS in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert inspector.record(result)["tokens"][1] == HOSTILE


def test_long_texts_are_wrapped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    shown = inspector.shown(Verdicts("x", ("word",) * 20, (0.1,) * 20))
    assert shown.count("word") == 20
    assert shown.count("token") == 3
    assert max(map(len, shown.splitlines())) <= 50


def test_fills_as_text():
    assert inspector.shown(FILLS).splitlines() == [
        "x [MASK]",
        "       [MASK]  <i>   50.00%",
        "               \u6f22     25.00%",
    ]


class Document(html.parser.HTMLParser):
    """Checks that tags close in order; collects text and attributes."""

    VOID = frozenset({"meta", "br", "img"})

    def __init__(self, source):
        super().__init__()
        self.open, self.text, self.attributes = [], [], []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_json_lines(folder, capsys):
    def lines(*arguments):
        assert command(["inspect", f"--model={folder}", "--json", *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    first, second = lines("a good book", "bad")
    assert first["tokens"] == ["[CLS]", "a", "good", "book", "[SEP]"]
    assert len(first["replaced_probability"]) == 5
    with pytest.raises(SystemExit, match="--fill cannot be used with --corrupt"):
        lines("--corrupt", "--fill", "a")
    assert second["text"] == "bad"
    (found,) = lines("--corrupt", "--mask_rate=0.9", "a b c")
    before, after = found["original_tokens"], found["tokens"]
    assert before == ["[CLS]", "a", "b", "c", "[SEP]"]
    assert found["is_masked"] == [False, True, True, True, False]
    changed = [one != other for one, other in zip(before, after, strict=True)]
    assert found["is_replaced"] == changed
    (found,) = lines("--fill", "--top=2", "a [MASK]")
    assert [[*each] for each in found["fills"][0]] == [["token", "probability"]] * 2
    assert len(found["fills"]) == 1


def test_page_is_escaped_and_marks_outcomes_without_colour():
    words = ("[CLS]", "a", "<ten>", "##b")
    before = ("[CLS]", "a", "two", "##b")
    verdicts = Verdicts("a <b>", words, (0.0, 0.7, 0.8, 0.1), before, (True,) * 4)
    source = render.page((), "of <runs>", [verdicts, FILLS])
    document = Document(source)
    text = "".join(document.text)
    for shown in ("of <runs>", "a <b>", "<i>", "\u6f22", "50.00 %", "two <ten>b"):
        assert shown in text
    assert not re.search(r"<i>|<ten>|https?:|url\(|<script|<link|<img", source)
    titles = [value for _, name, value in document.attributes if name == "title"]
    assert "<ten>: 80.0 % replaced" in titles
    assert source.count('<span class="called"') == 2
    assert "\x1b" not in render.page((), "", [Verdicts(HOSTILE, (HOSTILE,), (0.1,))])


def test_texts_from_standard_input_and_a_page(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a good book\n\nbad\r\n"))
    target = tmp_path / "out.html"
    inspected = ["inspect", f"--model={folder}", f"--html={target}"]
    assert command(inspected) == 0
    shown = capsys.readouterr()
    assert shown.out.count("P(replaced) %") == 2
    assert shown.out.count(inspector.LEGEND) == 1
    assert f"wrote {target}" in shown.err
    Document(target.read_text())
    with pytest.raises(SystemExit, match="--overwrite"):
        command([*inspected, "bad"])
    assert command([*inspected, "--overwrite", "x"]) == 0
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("stdin", "message"),
    [(b"\n \n", "no text"), (b"good\nb\xe4d\n", "not UTF-8"), (b"\x00\n", "no tokens")],
)
def test_bad_input_is_one_line(folder, monkeypatch, stdin, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
    with pytest.raises(SystemExit, match=message) as stopped:
        command(["inspect", f"--model={folder}"])
    assert "\n" not in stopped.value.code
