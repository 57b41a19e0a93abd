"""Tables that come with the package."""

import csv
from pathlib import Path

PASSIVE = Path(__file__).parent.parent / "samples" / "passive"


def load_passive() -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
    """Returns English sentences and their voices, for training and for evaluation.

    Each of the two is (texts, labels), with the labels "active" and "passive". The
    sentences are from UD English EWT, CC BY-SA 4.0; see ``samples/passive/README.md``.

    Examples:
        >>> (texts, labels), dev = et.data.load_passive()
        >>> len(texts), len(dev[0]), sorted(set(labels))
        (1266, 316, ['active', 'passive'])
    """
    train, dev = map(_columns, ("train.csv", "dev.csv"))
    return train, dev


def _columns(name: str) -> tuple[list[str], list[str]]:
    with (PASSIVE / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]
