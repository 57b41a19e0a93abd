"""Output formats: terminal, HTML, JSON lines and messages."""

import base64
import dataclasses
import html.parser
import io
import json
import re
import sys

import matplotlib.image as plt
import numpy as np
import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import Fills, Verdicts, inspect, render, terminal
from electra_tf.analysis.attention import Heads
from electra_tf.config.commands import InspectConfig

PLAIN = Verdicts("a <b>", ("[CLS]", "a", "##b", "[SEP]"), (0.01, 0.3, 0.62, 0.9))
CORRUPTED = Verdicts(
    "one two six",
    ("[CLS]", "one", "ten", "&", "[SEP]"),
    (0.0, 0.7, 0.8, 0.1, 0.2),
    ("[CLS]", "one", "two", "six", "[SEP]"),
    (False, True, True, True, False),
)
FILLS = Fills(
    "x [MASK]",
    ("[CLS]", "x", "[MASK]", "[SEP]"),
    "[MASK]",
    ((("<i>", 0.5), ("\u6f22", 0.25)),),
)
RESULTS = [PLAIN, CORRUPTED, FILLS]


def page(*answers, about=""):
    return render.page([render.Section("", "", {}, answers=answers)], about=about)


def test_attention_is_a_pixel_per_pair_and_tokens_are_escaped():
    shares = np.random.default_rng(0).dirichlet([0.3] * 3, (2, 4, 3))
    heads = Heads("<b>x", ("[CLS]", "<i>", "[SEP]"), shares)
    source = page(heads)
    document = Document(source)
    assert "<i>" not in source
    assert "".join(document.text).count("<i>") == 2 * (1 + 4)
    images = [v for _, name, v in document.attributes if name == "src"]
    assert len(images) == 8
    for image, values in zip(images, shares.reshape(8, 3, 3), strict=True):
        data = base64.b64decode(image.partition("base64,")[2])
        pixels = plt.imread(io.BytesIO(data))
        # Higher attention has a lower red channel.
        order = np.argsort(values.ravel())
        assert (np.diff(pixels[..., 0].ravel()[order]) <= 0).all()


def test_colour_is_added_and_nothing_else_changes():
    plain = terminal.verdicts(PLAIN, width=80, use_color=False)
    colored = terminal.verdicts(PLAIN, width=80, use_color=True)
    assert "\x1b[31m*62\x1b[0m" in colored
    assert "\x1b[33m30\x1b[0m" in colored
    without = re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert [x.rstrip() for x in without.splitlines()] == plain.splitlines()


# Clear screen, hidden text, a one-byte control sequence, and right-to-left override.
HOSTILE = "a\x1b[2J\x1b[8m\x9b31m\u202e\r"
HARMLESS = r"a\u001b[2J\u001b[8m\u009b31m\u202e\u000d"


@pytest.mark.parametrize("use_color", [False, True])
def test_tokens_cannot_reach_the_terminal(use_color, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "has_color", lambda stream: use_color)
    options = InspectConfig(model="m")
    tokens = ("[CLS]", HOSTILE)
    for result in (
        Fills(HOSTILE, tokens, "[MASK]", (((HOSTILE, 0.5), ("b", 0.1)),)),
        Verdicts(HOSTILE, tokens, (0.1, 0.9)),
        Verdicts(HOSTILE, tokens, (0.1, 0.9), tokens, (False, True)),
    ):
        inspect._show(result, options, is_first=True)
        shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert HARMLESS in shown
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
        assert "\x1b[8m" not in shown
        written = page(result, about=HOSTILE)
        assert HARMLESS in written
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", written)
        inspect._show(result, dataclasses.replace(options, json=True), is_first=True)
        assert json.loads(capsys.readouterr().out)["tokens"][1] == HOSTILE


def test_long_texts_are_wrapped():
    many = Verdicts("x", ("word",) * 20, (0.1,) * 20)
    shown = terminal.verdicts(many, width=50, use_color=False)
    assert shown.count("word") == 20
    assert shown.count("token") == 3
    assert max(map(len, shown.splitlines())) <= 50
    wide = Verdicts("x", ("\u6f22\u5b57", "a"), (0.1, 0.2))
    shown = terminal.verdicts(wide, width=80, use_color=False)
    assert shown.splitlines()[1].endswith("10   20")


def test_fills_as_text():
    assert terminal.fills(FILLS, use_color=False).splitlines() == [
        "x [MASK]",
        "       [MASK]  <i>   50.00%",
        "               \u6f22    25.00%",
    ]


def test_who_gets_colour(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for term, no_color, expected in (
        ("xterm", "", True),
        ("xterm", "1", False),
        ("dumb", "", False),
    ):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("NO_COLOR", no_color)
        assert terminal.has_color(Terminal()) == expected
        assert not terminal.has_color(io.StringIO())


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


def test_page_is_well_formed_escaped_and_alone():
    source = page(*RESULTS, about="of <runs>")
    document = Document(source)
    text = "".join(document.text)
    for shown in ("of <runs>", "a <b>", "<i>", "\u6f22", "Numbers"):
        assert shown in text
    assert "<i>" not in source
    assert "<b>" not in source
    # The page loads no external resource.
    names = {(tag, name) for tag, name, _ in document.attributes}
    assert not names & {("script", "src"), ("link", "href"), ("img", "src")}
    assert not re.search(r"https?:|url\(|@import|<script|<link", source)
    titles = [value for _, name, value in document.attributes if name == "title"]
    assert "##b: 62.0% replaced" in titles
    assert "ten: 80.0% replaced; was two" in titles
    assert "one: 70.0% replaced; was one" in titles


def test_page_marks_outcomes_without_colour():
    source = page(CORRUPTED)
    rest = r"</span>(?:<rt>.*?</rt></ruby>)?(<sup>.</sup>)?"
    tokens = dict(re.findall(rf'title="(\S+): [^>]*>[^<]*{rest}', source))
    assert tokens == {
        "[CLS]": "",
        "one": "<sup>!</sup>",
        "ten": "<sup>+</sup>",
        "&amp;": "<sup>-</sup>",
        "[SEP]": "",
    }
    assert "<rt>two</rt>" in source
    assert "<rt>=</rt>" in source
    # Pieces of a word are joined.
    source = page(PLAIN)
    joined = re.sub(r"<[^>]+>", "", re.search(r'<p class="text">(.*?)</p>', source)[1])
    assert joined == "[CLS] ab [SEP]"


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


def test_texts_from_standard_input_and_a_page(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a good book\n\nbad\r\n"))
    target = tmp_path / "out.html"
    inspected = ["inspect", f"--model={folder}", f"--html={target}"]
    assert command(inspected) == 0
    shown = capsys.readouterr()
    assert shown.out.count("P(replaced) %") == 2
    assert shown.out.count(terminal.LEGEND) == 1
    assert "\x1b" not in shown.out
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
    stream = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(SystemExit, match=message) as stopped:
        command(["inspect", f"--model={folder}"])
    assert "\n" not in stopped.value.code


@pytest.mark.slow
def test_attention_in_a_page(folder, tmp_path):
    target = tmp_path / "out.html"
    arguments = [f"--model={folder}", "--attention", "a good book"]
    assert command(["inspect", *arguments, f"--html={target}"]) == 0
    assert target.read_text().count('alt="block 2, head 2"') == 1
    with pytest.raises(SystemExit, match="--html"):
        command(["inspect", *arguments])
    with pytest.raises(SystemExit, match="--corrupt and --fill exclude each other"):
        command(["inspect", *arguments, "--corrupt", "--fill"])
