r"""What a pretrained discriminator and generator say of a text.

  python -m electra_tf.inspect --model=runs/tiny "the chef ate the meal"
  python -m electra_tf.inspect --model=runs/tiny --html=out.html < lines.txt
  python -m electra_tf.inspect --model=runs/tiny --corrupt "the chef cooked the meal"
  python -m electra_tf.inspect --model=runs/tiny --fill "the chef [MASK] the meal"

The first two print the discriminator's verdict on every token: how likely it was
replaced. --corrupt lets the generator replace some first; --fill prints what the
generator would put in place of each [MASK]. --model is the folder of a finished
pretraining run, or of an imported checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from electra_tf.inspect import page, terminal
from electra_tf.inspect.inspector import Fills, Inspector
from electra_tf.pretrain import clear_errors


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m electra_tf.inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("texts", nargs="*", help="texts; default: standard input")
    made.add_argument("--model", required=True, help="pretraining run or import")
    mode = made.add_mutually_exclusive_group()
    mode.add_argument(
        "--corrupt", action="store_true", help="the generator replaces tokens first"
    )
    mode.add_argument(
        "--fill", action="store_true", help="fill each [MASK] with the generator"
    )
    made.add_argument(
        "--mask_rate", type=float, help="of --corrupt; default as in pretraining"
    )
    made.add_argument(
        "--temperature",
        type=float,
        help="of --corrupt; 0: the most probable token; default as in pretraining",
    )
    made.add_argument("--seed", type=int, default=0, help="of --corrupt")
    made.add_argument("--top", type=int, default=5, help="tokens per mask of --fill")
    made.add_argument("--vocab_file", help="default: vocab.txt beside the model")
    for name in ("lower_case", "strip_accents"):
        made.add_argument(
            f"--{name}",
            action=argparse.BooleanOptionalAction,
            help="default: as config.json beside the model says",
        )
    made.add_argument("--html", help="also write the answers to this file")
    made.add_argument("--overwrite", action="store_true", help="replace that file")
    made.add_argument(
        "--json", action="store_true", help="print one JSON object per text"
    )
    return made


def run(options: argparse.Namespace, log: Callable[[str], None]) -> None:
    """Answers everything the options ask.

    Raises:
        ValueError: A text, a setting or the model is not what it should be.
        OSError: A file is missing or cannot be written.
    """
    target = Path(options.html) if options.html else None
    if target and target.exists() and not options.overwrite:
        raise ValueError(f"{target} exists: pass --overwrite to replace it.")
    inspector = Inspector(
        options.model,
        log,
        vocab_file=options.vocab_file,
        lower_case=options.lower_case,
        strip_accents=options.strip_accents,
    )
    results = []
    for result in (_ask(inspector, text, options) for text in _texts(options.texts)):
        _show(result, options, is_first=not results)
        results.append(result)
    if not results:
        raise ValueError("no text: give it as an argument or on standard input.")
    if target:
        _write(target, page.page(results, about=_about(options)))
        log(f"wrote {target}")


def _ask(inspector, text, options):
    if options.fill:
        return inspector.fill(text, top=options.top)
    if options.corrupt:
        return inspector.corrupt(
            text,
            mask_rate=options.mask_rate,
            temperature=options.temperature,
            seed=options.seed,
        )
    return inspector.verdicts(text)


def _texts(given: Sequence[str]) -> Iterator[str]:
    if given:
        # What the shell hands over need not be UTF-8.
        yield from (text.encode("utf-8", "replace").decode("utf-8") for text in given)
        return
    if sys.stdin.isatty():
        sys.stderr.write("reading texts from standard input, one per line\n")
    try:
        yield from _lines(sys.stdin)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"standard input is not UTF-8 at byte {error.start}. Convert it, for "
            "example with: iconv -f latin1 -t utf-8"
        ) from error


def _lines(stream: Iterable[str]) -> Iterator[str]:
    yield from (line.rstrip("\r\n") for line in stream if line.strip())


def _show(result, options, *, is_first):
    if options.json:
        sys.stdout.write(json.dumps(record(result), ensure_ascii=False) + "\n")
        return
    use_color = terminal.has_color(sys.stdout)
    width = shutil.get_terminal_size((100, 24)).columns
    render = terminal.fills if options.fill else terminal.verdicts
    shown = render(result, width=width, use_color=use_color)
    if is_first and not options.fill and not options.corrupt:
        shown += f"\n\n{terminal.LEGEND}"
    sys.stdout.write(("" if is_first else "\n") + shown + "\n")


def record(result) -> dict:
    """An answer as plain values, for --json."""
    found = {"text": result.text, "tokens": list(result.tokens)}
    if isinstance(result, Fills):
        fills = [
            [{"token": token, "probability": round(value, 6)} for token, value in each]
            for each in result.fills
        ]
        return found | {"fills": fills}
    found["replaced_probability"] = [round(x, 6) for x in result.probabilities]
    if result.original is not None:
        pairs = zip(result.original, result.tokens, strict=True)
        found |= {
            "original_tokens": list(result.original),
            "is_masked": list(result.is_masked),
            "is_replaced": [before != after for before, after in pairs],
        }
    return found


def _about(options):
    if options.fill:
        return f"Generator of {options.model}."
    if not options.corrupt:
        return f"Discriminator of {options.model}."
    rate = options.mask_rate if options.mask_rate is not None else "as in pretraining"
    heat = (
        options.temperature if options.temperature is not None else "as in pretraining"
    )
    return (
        f"Generator and discriminator of {options.model}. Mask rate: {rate}; "
        f"temperature: {heat}; seed: {options.seed}."
    )


def _write(path: Path, text: str) -> None:
    """Writes under another name first: the file is there whole or not at all."""
    part = path.with_name(f"part-{os.getpid()}-{path.name}")
    try:
        part.write_text(text, "utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parser().parse_args(arguments)
    with clear_errors():
        run(options, lambda text: sys.stderr.write(f"{text}\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
