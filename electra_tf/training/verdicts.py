"""What one text looks like: its tokens, samples and the verdict on each."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class _Verdict:
    mark: str
    meaning: str
    ansi: str


_VERDICTS: Mapping[tuple[bool, bool], _Verdict] = {
    (True, True): _Verdict("+", "found: replaced, and called replaced", "\x1b[32m"),
    (True, False): _Verdict("-", "missed: replaced, but called real", "\x1b[31m"),
    (False, True): _Verdict("!", "false alarm: real, but called replaced", "\x1b[33m"),
    (False, False): _Verdict(" ", "real, and called real", ""),
}
_RESET = "\x1b[0m"


def verdict_table(
    original: Sequence[str],
    corrupted: Sequence[str],
    *,
    probabilities: Sequence[float],
    is_masked: Sequence[bool],
    width: int = 88,
    use_color: bool = False,
) -> str:
    """Renders a text as it was, as the generator changed it, and what was noticed.

    Tokens stand in columns; `masked` marks the positions the generator filled in, and
    only a token that differs from the original is written in the `sampled` row. The
    discriminator's row gives its probability of "replaced", in %, after a mark: +
    found, - missed, ! false alarm; without a mark it rightly saw a real token.

    Args:
        original: list of S tokens, without padding.
        corrupted: list of S tokens, what the discriminator read.
        probabilities: S floats, probability that a token was replaced.
        is_masked: S booleans, positions that were chosen for the generator.
        width: columns to fill, without the row names.
        use_color: adds ANSI colors for a terminal.

    Returns:
        A string of several lines, ending in a summary and no newline.

    Raises:
        ValueError: the lists differ in length.
    """
    lengths = [len(x) for x in (original, corrupted, probabilities, is_masked)]
    if len(set(lengths)) > 1:
        raise ValueError(
            "verdict_table needs one entry per token in every list; original, "
            f"corrupted, probabilities and is_masked have {lengths}."
        )
    cells = [
        _cell(*token)
        for token in zip(original, corrupted, probabilities, is_masked, strict=True)
    ]
    blocks = [_block(line, use_color) for line in _wrapped(cells, width)]
    return "\n\n".join([*blocks, _summary(cells)])


@dataclasses.dataclass(frozen=True)
class _Cell:
    """The four rows of one token, and its verdict."""

    rows: tuple[str, str, str, str]
    verdict: tuple[bool, bool]

    @property
    def width(self):
        return max(map(len, self.rows))


def _cell(original, corrupted, probability, is_masked):
    is_replaced = original != corrupted
    verdict = (is_replaced, bool(probability > 0.5))
    said = f"{_VERDICTS[verdict].mark}{100 * probability:.0f}"
    sampled = corrupted if is_replaced else ("=" if is_masked else "")
    return _Cell((original, "^" if is_masked else "", sampled, said), verdict)


def _wrapped(cells, width):
    lines, used = [[]], 0
    for cell in cells:
        if lines[-1] and used + cell.width > width:
            lines.append([])
            used = 0
        lines[-1].append(cell)
        used += cell.width + 1
    return lines


def _block(cells, use_color):
    names = ("original", "masked", "sampled", "P(replaced) %")
    rows = []
    for index, name in enumerate(names):
        texts = [cell.rows[index].ljust(cell.width) for cell in cells]
        if use_color and index >= 2:
            colors = [_VERDICTS[cell.verdict].ansi for cell in cells]
            texts = [
                f"{color}{text}{_RESET}" if color else text
                for color, text in zip(colors, texts, strict=True)
            ]
        rows.append(f"{name:>13}  {' '.join(texts)}".rstrip())
    return "\n".join(rows)


def _summary(cells):
    counts = {v: sum(cell.verdict == v for cell in cells) for v in _VERDICTS}
    return "\n".join(
        f"{counts[key]:4}  {verdict.mark}  {verdict.meaning}"
        for key, verdict in _VERDICTS.items()
    )
