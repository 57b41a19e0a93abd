"""The command `inspect`: predictions of discriminator and generator for a text."""

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from electra_tf import cli
from electra_tf.analysis.inspector import Fills, Inspector, Verdicts
from electra_tf.config.commands import InspectConfig
from electra_tf.errors import UserError
from electra_tf.runs import samples

# Columns of the row names.
_INDENT = 15
LEGEND = "* called replaced: the probability is over 50 %"


def main(config: InspectConfig, texts: Sequence[str], log: cli.Log = cli.note) -> None:
    """Prints the predictions; raises the errors of `Inspector`."""
    inspector = Inspector(config.model, log)
    count = 0
    for count, text in enumerate(texts or cli.lines_of(sys.stdin), 1):
        if config.fill:
            answer = inspector.fill(text, top=config.top)
        elif config.corrupt:
            options = {"mask_rate": config.mask_rate, "seed": config.seed}
            answer = inspector.corrupt(text, **options)
        else:
            answer = inspector.verdicts(text)
        if config.json:
            cli.say(json.dumps(record(answer), ensure_ascii=False))
        else:
            cli.say("\n" * (count > 1) + shown(answer))
    if not count:
        raise UserError("no text: give it as an argument or on standard input.")
    if not (config.json or config.fill or config.corrupt):
        cli.say(f"\n{LEGEND}")


def shown(answer: Verdicts | Fills) -> str:
    """Formats an answer for a terminal."""
    if isinstance(answer, Fills):
        return _fills(answer)
    width = shutil.get_terminal_size((100, 24)).columns - _INDENT
    if answer.original is None:
        numbers = [f"{'*' * (p > 0.5)}{100 * p:.0f}" for p in answer.probabilities]
        columns = zip(answer.tokens, numbers, strict=True)
        return samples.wrapped(("token", "P(replaced) %"), columns, width)
    return samples.verdict_table(
        answer.original,
        answer.tokens,
        probabilities=answer.probabilities,
        is_masked=answer.is_masked,
        width=width,
    )


def _fills(answer: Fills) -> str:
    lines = [answer.text]
    for choices in answer.fills:
        widest = max(len(token) for token, _ in choices)
        for rank, (token, probability) in enumerate(choices):
            start = "" if rank else answer.mask
            lines.append(f"{start:>13}  {token:<{widest}}  {probability:7.2%}")
    return "\n".join(lines)


def record(answer: Verdicts | Fills) -> dict[str, Any]:
    """Converts an answer to plain values for --json."""
    row: dict[str, Any] = {"text": answer.text, "tokens": answer.tokens}
    if isinstance(answer, Fills):
        row["fills"] = [
            [{"token": token, "probability": round(value, 6)} for token, value in each]
            for each in answer.fills
        ]
        return row
    row["replaced_probability"] = [round(x, 6) for x in answer.probabilities]
    if answer.original is not None:
        pairs = zip(answer.original, answer.tokens, strict=True)
        row |= {
            "original_tokens": answer.original,
            "is_masked": answer.is_masked,
            "is_replaced": [before != after for before, after in pairs],
        }
    return row
