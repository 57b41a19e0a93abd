"""The command `inspect`: predictions of discriminator and generator for a text."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from electra_tf import cli, files
from electra_tf.analysis import terminal
from electra_tf.analysis.inspector import Fills, Inspector, Verdicts
from electra_tf.config.commands import InspectConfig
from electra_tf.errors import UserError


def main(options: InspectConfig, texts: Sequence[str], log: cli.Log = cli.note) -> None:
    """Prints the predictions and writes the page; raises the errors of `Inspector`."""
    if options.curves:
        # Needs matplotlib.
        from electra_tf.analysis import curves

        curves.main(options, texts, log)
        return
    if options.model is None:
        raise UserError("--model is required; see --help.")
    target = Path(options.html) if options.html else None
    if target and target.exists() and not options.overwrite:
        raise UserError(f"{target} exists: pass --overwrite to replace it.")
    if target:
        from electra_tf.analysis import render
    inspector = Inspector(options.model, log, **options.tokenization)
    ask = _question(inspector, options)
    answers: list[Verdicts | Fills] = []
    for text in _texts(texts):
        answers.append(ask(text))
        _show(answers[-1], options, is_first=len(answers) == 1)
    if not answers:
        raise UserError("no text: give it as an argument or on standard input.")
    if target:
        heads = [inspector.heads(a.text) for a in answers] if options.attention else []
        section = render.Section("", "", {}, answers=[*answers, *heads])
        about = options.model + (f", seed {options.seed}" if options.corrupt else "")
        files.write_text(target, render.page([section], about=about))
        log(f"wrote {target}")


def _question(
    inspector: Inspector, options: InspectConfig
) -> Callable[[str], Verdicts | Fills]:
    if options.fill:
        return functools.partial(inspector.fill, top=options.top)
    if options.corrupt:
        return functools.partial(
            inspector.corrupt,
            mask_rate=options.mask_rate,
            temperature=options.temperature,
            seed=options.seed,
        )
    return inspector.verdicts


def _texts(given: Sequence[str]) -> Iterator[str]:
    if given:
        # Command-line arguments may not be valid UTF-8.
        yield from (text.encode("utf-8", "replace").decode("utf-8") for text in given)
        return
    if sys.stdin.isatty():
        cli.note("reading texts from standard input, one per line")
    yield from cli.lines_of(sys.stdin)


def _show(answer: Verdicts | Fills, options: InspectConfig, *, is_first: bool) -> None:
    if options.json:
        cli.say(json.dumps(record(answer), ensure_ascii=False))
        return
    answer = _visible(answer)
    use_color = terminal.has_color(sys.stdout)
    width = shutil.get_terminal_size((100, 24)).columns
    if isinstance(answer, Fills):
        shown = terminal.fills(answer, use_color=use_color)
    else:
        shown = terminal.verdicts(answer, width=width, use_color=use_color)
        if is_first and answer.original is None:
            shown += f"\n\n{terminal.LEGEND}"
    cli.say(shown if is_first else f"\n{shown}")


def _visible(answer: Verdicts | Fills) -> Verdicts | Fills:
    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return cli.visible(value)
        return tuple(map(clean, value)) if isinstance(value, tuple) else value

    return dataclasses.replace(
        answer, **{name: clean(value) for name, value in vars(answer).items()}
    )


def record(answer: Verdicts | Fills) -> dict[str, Any]:
    """Converts an answer to plain values for --json."""
    row: dict[str, Any] = {"text": answer.text, "tokens": list(answer.tokens)}
    if isinstance(answer, Fills):
        fills = [
            [{"token": token, "probability": round(value, 6)} for token, value in each]
            for each in answer.fills
        ]
        return row | {"fills": fills}
    row["replaced_probability"] = [round(x, 6) for x in answer.probabilities]
    if answer.original is not None:
        pairs = zip(answer.original, answer.tokens, strict=True)
        row |= {
            "original_tokens": list(answer.original),
            "is_masked": list(answer.is_masked),
            "is_replaced": [before != after for before, after in pairs],
        }
    return row
