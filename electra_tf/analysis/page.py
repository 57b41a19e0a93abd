"""Verdicts and fills as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from matplotlib.image import imsave

from electra_tf import cli
from electra_tf.analysis.attention import Heads
from electra_tf.analysis.course import Course
from electra_tf.analysis.inspector import Fills, Verdicts

Answer = Verdicts | Fills | Course | Heads

# From certainly real to certainly replaced; dark text is readable on all between.
_REAL, _REPLACED = (255, 255, 255), (240, 110, 90)

# Side of a token in a square of attention.
_PIXELS = 14

_STYLE = """
:root { color-scheme: light; }
body { font: 17px/1.5 system-ui, sans-serif; color: #111; background: #fff;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; }
h2 { font-size: 1rem; color: #444; margin: 2rem 0 .3rem; }
.about, .key { color: #444; font-size: .9rem; }
.text { line-height: 2.6; overflow-wrap: anywhere; }
.token { padding: .15rem .1rem; border-radius: .2rem; }
.called { font-weight: 700; border-bottom: 3px solid #7a1200; }
.special { color: #222; font-size: .8rem; }
sup { font-weight: 700; }
rt { color: #222; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .1rem .7rem .1rem 0; text-align: left; font-weight: 400; }
th { color: #444; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { background: #0b62a4; height: .7rem; }
.room { width: 14rem; }
img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; }
caption { text-align: left; color: #444; padding: .6rem 0 .2rem; }
.scroll { overflow-x: auto; }
.heads { display: flex; gap: .8rem; font-size: 11px; }
.heads figure { margin: 0; flex: none; }
.heads figcaption { height: 18px; line-height: 18px; color: #444; }
.heads img { display: block; max-width: none; image-rendering: pixelated;
  border: 1px solid #999; box-sizing: border-box; }
.down { padding-top: 18px; flex: none; text-align: right; }
.down span { display: block; height: 14px; line-height: 14px; }
.across { display: flex; }
.across span { width: 14px; line-height: 14px; writing-mode: vertical-rl; }
.course td, .course th { padding: .1rem .35rem; white-space: nowrap; }
"""

# (replaced, called replaced) -> mark and meaning.
_OUTCOMES = {
    (True, True): ("+", "found: replaced, and called replaced"),
    (True, False): ("-", "missed: replaced, but called real"),
    (False, True): ("!", "false alarm: real, but called replaced"),
    (False, False): ("", ""),
}


def page(results: Sequence[Answer], *, about: str) -> str:
    """A whole HTML document.

    Every token is coloured by the probability that it was replaced, which is shown on
    hover and in a table below; what is called replaced is bold and underlined, so that
    colour is not needed. In corrupted texts the original stands over its replacement.
    ``about`` is a line on where the results come from.
    """
    parts = [legend(results), *map(answer, results)]
    return document("ELECTRA inspection", about, "\n".join(parts))


def answer(result: Answer) -> str:
    """One answer as a section of HTML."""
    if isinstance(result, Fills):
        return _fills(result)
    if isinstance(result, Heads):
        return _heads(result)
    return _course(result) if isinstance(result, Course) else _verdicts(result)


def legend(results: Sequence[Answer]) -> str:
    """What the colors and marks of all these mean, each once."""
    lines = (line for result in results for line in _legend(result).split("\n"))
    return "\n".join(dict.fromkeys(lines))


def document(title: str, about: str, body: str) -> str:
    """A whole HTML document around a body that is escaped already."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<main>\n<h1>{escape(title)}</h1>\n<p class="about">{escape(about)}</p>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def escape(text: str) -> str:
    """Text as HTML, without control characters."""
    return html.escape(cli.visible(text))


def background(probability: float) -> tuple[int, int, int]:
    """Red, green and blue of a token with this probability to be replaced."""
    return tuple(
        round(real + probability * (replaced - real))
        for real, replaced in zip(_REAL, _REPLACED, strict=True)
    )


def _legend(result: Answer) -> str:
    if isinstance(result, Fills):
        return (
            '<p class="key">The most probable tokens for each mask; every mask is '
            "judged alone.</p>"
        )
    if isinstance(result, Heads):
        return (
            '<p class="key">Attention: every square is a head, rows are tokens that '
            "look, columns those that are looked at; the darker, the more.</p>"
        )
    chips = " ".join(
        f'<span class="token" style="{_style(share / 100)}">{share} %</span>'
        for share in (0, 25, 50, 75, 100)
    )
    key = (
        f'<p class="key">Probability that the token was replaced: {chips}. Over 50 %: '
        '<span class="called">called replaced</span>. Hover for the number.</p>'
    )
    if result.original is None:
        return key
    if isinstance(result, Course):
        return f'{key}\n<p class="key">Below a token: what stood there before.</p>'
    marks = ", ".join(
        f"<sup>{mark}</sup> {meaning}" for mark, meaning in _OUTCOMES.values() if mark
    )
    return (
        f'{key}\n<p class="key">Above a token: what stood there before '
        f"the generator filled it in (= if it is the same). After it: {marks}.</p>"
    )


def _verdicts(answer: Verdicts) -> str:
    spans, rows = [], []
    originals = answer.original or answer.tokens
    masked = answer.is_masked or [False] * len(answer.tokens)
    cells = zip(answer.tokens, answer.probabilities, originals, masked, strict=True)
    for index, cell in enumerate(cells):
        token, probability, original, _ = cell
        joined = token.startswith("##") and index
        spans.append(("" if joined or not index else " ") + _token(answer, *cell))
        before = f"<td>{escape(original)}</td>" if answer.original else ""
        rows.append(
            f'<tr>{before}<td>{escape(token)}</td><td class="number">'
            f"{probability:.2%}</td></tr>"
        )
    before = "<th>original</th>" if answer.original else ""
    return (
        f"<section>\n<h2>{escape(answer.text)}</h2>\n"
        f'<p class="text">{"".join(spans)}</p>\n'
        "<details><summary>Numbers</summary>\n"
        f"<table><tr>{before}<th>token</th><th>P(replaced)</th></tr>\n"
        f"{''.join(rows)}</table></details>\n</section>"
    )


def _course(answer: Course) -> str:
    """A table: tokens across, discriminators down."""
    heads = []
    for at, token in enumerate(answer.tokens):
        before = ""
        if answer.original and answer.is_masked[at]:
            was = answer.original[at]
            before = f"<br><small>{'=' if was == token else escape(was)}</small>"
        heads.append(f"<th>{escape(token)}{before}</th>")
    rows = []
    for name, values in zip(answer.names, answer.probabilities, strict=True):
        cells = "".join(
            f'<td class="number{" called" * (value > 0.5)}" style="{_style(value)}" '
            f'title="{escape(f"{token}, {name}: {value:.1%} replaced")}">'
            f"{100 * value:.0f}</td>"
            for token, value in zip(answer.tokens, values, strict=True)
        )
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return (
        f"<section>\n<h2>{escape(answer.text)}</h2>\n"
        '<div class="scroll"><table class="course">'
        f"<tr><th></th>{''.join(heads)}</tr>\n"
        f"{''.join(rows)}</table></div>\n</section>"
    )


def _heads(answer: Heads) -> str:
    """A line of squares for each block, with the tokens beside and below them."""
    side = _PIXELS * len(answer.tokens)
    names = [f"<span>{escape(token)}</span>" for token in answer.tokens]
    blocks = []
    for block, heads in enumerate(answer.shares, 1):
        squares = []
        for head, shares in enumerate(heads, 1):
            image = io.BytesIO()
            # One pixel per pair of tokens, which the browser enlarges.
            imsave(image, shares, vmin=0, vmax=1, cmap="Blues", format="png")
            data = base64.b64encode(image.getvalue()).decode()
            name = f"block {block}, head {head}"
            squares.append(
                f'<figure><figcaption>{name}</figcaption><img alt="{name}" '
                f'width="{side}" height="{side}" src="data:image/png;base64,{data}">'
                f'<div class="across">{"".join(names)}</div></figure>'
            )
        blocks.append(
            f"<details{' open' * (block == 1)}><summary>Block {block}</summary>\n"
            f'<div class="scroll heads"><div class="down">{"".join(names)}</div>'
            f"{''.join(squares)}</div></details>"
        )
    return (
        f"<section>\n<h2>{escape(answer.text)}</h2>\n{chr(10).join(blocks)}\n</section>"
    )


def _token(
    answer: Verdicts, token: str, probability: float, original: str, is_masked: bool
) -> str:
    is_called = probability > 0.5
    is_special = token.startswith("[") and token.endswith("]") and len(token) > 2
    shown = escape(token.removeprefix("##"))
    title = f"{token}: {probability:.1%} replaced"
    mark = ""
    if answer.original is not None:
        mark = _OUTCOMES[token != original, is_called][0]
        mark = f"<sup>{mark}</sup>" if mark else ""
        if is_masked:
            title += f"; was {original}"
            above = "=" if token == original else escape(original)
            shown = f"<ruby>{shown}<rt>{above}</rt></ruby>"
    names = ["token"] + ["called"] * is_called + ["special"] * is_special
    return (
        f'<span class="{" ".join(names)}" style="{_style(probability)}" '
        f'title="{escape(title)}">{shown}</span>{mark}'
    )


def _fills(answer: Fills) -> str:
    tables = []
    for number, choices in enumerate(answer.fills, 1):
        rows = "".join(
            f'<tr><td>{escape(token)}</td><td class="number">{probability:.2%}</td>'
            f'<td class="room"><div class="bar" style="width:{probability:.1%}">'
            "</div></td></tr>"
            for token, probability in choices
        )
        name = escape(f"{answer.mask} {number}")
        tables.append(f"<h3>{name}</h3>\n<table>{rows}</table>\n")
    return f"<section>\n<h2>{escape(answer.text)}</h2>\n{''.join(tables)}</section>"


def _style(probability: float) -> str:
    red, green, blue = background(probability)
    return f"background:rgb({red},{green},{blue})"
