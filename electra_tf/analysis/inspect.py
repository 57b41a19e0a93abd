"""What a pretrained discriminator and generator say of a text: the command."""

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
from electra_tf.analysis import course, page, terminal
from electra_tf.analysis.course import Course
from electra_tf.analysis.inspector import Fills, Inspector, Verdicts
from electra_tf.analysis.page import Answer
from electra_tf.config.commands import InspectConfig
from electra_tf.errors import UserError


def main(options: InspectConfig, texts: Sequence[str], log: cli.Log = cli.note) -> None:
    """Answers everything the command line asks; errors as of ``Inspector``."""
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
    inspector = Inspector(options.model, log, **options.tokenization)
    results: list[Answer] = []
    for result in _answers(inspector, _texts(texts), options, log):
        _show(result, options, is_first=not results)
        results.append(result)
    if options.attention:
        results += [inspector.heads(result.text) for result in results]
    if not results:
        raise UserError("no text: give it as an argument or on standard input.")
    if target:
        files.write_text(target, page.page(results, about=_about(options)))
        log(f"wrote {target}")


def _answers(
    inspector: Inspector, texts: Iterator[str], options: InspectConfig, log: cli.Log
) -> Iterator[Answer]:
    """Answers one text after the other; of several models, each reads all texts."""
    ask = _question(inspector, options)
    if options.checkpoints or options.beside:
        # Before models are loaded for nothing.
        given = list(texts)
        stages = (
            course.checkpoints(inspector)
            if options.checkpoints
            else course.folders(inspector, options.beside, log)
        )
        corrupt = ask if options.corrupt else None
        yield from course.courses(given, stages, corrupt) if given else ()
    else:
        yield from map(ask, texts)


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
        # What the shell hands over need not be UTF-8.
        yield from (text.encode("utf-8", "replace").decode("utf-8") for text in given)
        return
    if sys.stdin.isatty():
        cli.note("reading texts from standard input, one per line")
    yield from cli.lines_of(sys.stdin)


def _show(result: Answer, options: InspectConfig, *, is_first: bool) -> None:
    if options.json:
        cli.say(json.dumps(record(result), ensure_ascii=False))
        return
    result = _visible(result)
    use_color = terminal.has_color(sys.stdout)
    width = shutil.get_terminal_size((100, 24)).columns
    if isinstance(result, Fills):
        shown = terminal.fills(result, use_color=use_color)
    else:
        is_course = isinstance(result, Course)
        show = terminal.course if is_course else terminal.verdicts
        shown = show(result, width=width, use_color=use_color)
        if is_first and (is_course or result.original is None):
            shown += f"\n\n{terminal.LEGEND}"
    cli.say(shown if is_first else f"\n{shown}")


def _visible(result: Answer) -> Answer:
    """An answer whose tokens and text, colours too, cannot reach the terminal."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return cli.visible(value)
        return tuple(map(clean, value)) if isinstance(value, tuple) else value

    return dataclasses.replace(
        result, **{name: clean(value) for name, value in vars(result).items()}
    )


def record(result: Answer) -> dict[str, Any]:
    """An answer as plain values, for --json."""
    row: dict[str, Any] = {"text": result.text, "tokens": list(result.tokens)}
    if isinstance(result, Fills):
        fills = [
            [{"token": token, "probability": round(value, 6)} for token, value in each]
            for each in result.fills
        ]
        return row | {"fills": fills}
    if isinstance(result, Course):
        row["replaced_probability"] = {
            name: [round(x, 6) for x in values]
            for name, values in zip(result.names, result.probabilities, strict=True)
        }
    else:
        row["replaced_probability"] = [round(x, 6) for x in result.probabilities]
    if result.original is not None:
        pairs = zip(result.original, result.tokens, strict=True)
        row |= {
            "original_tokens": list(result.original),
            "is_masked": list(result.is_masked),
            "is_replaced": [before != after for before, after in pairs],
        }
    return row


def _about(options: InspectConfig) -> str:
    if options.fill:
        return f"Generator of {options.model}."
    who = f"discriminator of {options.model}"
    if options.checkpoints:
        who = f"discriminators of the checkpoints of {options.model}"
    elif options.beside:
        who = f"discriminators of {', '.join((options.model, *options.beside))}"
    if not options.corrupt:
        return f"The {who}."
    rate, temperature = (
        "as in pretraining" if value is None else value
        for value in (options.mask_rate, options.temperature)
    )
    return (
        f"Generator and {who}. Mask rate: {rate}; "
        f"temperature: {temperature}; seed: {options.seed}."
    )
