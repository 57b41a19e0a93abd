"""Sentences whose wrong words are marked: M2, columns, parallel text, pairs; and rules.

A word that is missing has no place of its own: the word after the gap is marked, at the
end of a sentence the last one (as Rei and Yannakoudakis, 2016).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from electra_tf.analysis import alignment
from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.runs.minimal_pairs import read_pairs
from electra_tf.tasks.sentences import SentenceSource, is_span_tag
from electra_tf.tasks.tables import read_text

RIGHT = ""


@dataclasses.dataclass(frozen=True)
class Marked:
    """Words, and for each one the kind of its error, ``RIGHT`` if there is none."""

    words: tuple[str, ...]
    kinds: tuple[str, ...]


def read(spec: str, agreement: float, log: Log) -> list[Marked]:
    """Reads a file: ``.m2``, columns, or two parallel ones as ``source:reference``.

    Minimal pairs as BLiMP's (``.jsonl``, or a folder of them) are parallel too: the bad
    sentences are read, and the kind of their errors is the paradigm.

    ``agreement`` is the least share of M2's annotators who mark a word. Sentences of M2
    with an edit beyond their last word were split into words in another way than their
    edits: they are left out, and ``log`` is told.

    ValueError: a line is not what it should be, which is named, or there are no words;
    OSError: no such file.
    """
    source, colon, reference = spec.rpartition(":")
    if colon and not Path(spec).exists():
        found = [_corrected(*pair) for pair in _parallel(source, reference)]
    elif spec.endswith(".jsonl") or Path(spec).is_dir():
        found = [
            _corrected(pair.bad.split(), pair.good.split(), pair.paradigm)
            for pair in read_pairs([spec])
        ]
    elif spec.removesuffix(".gz").endswith(".m2"):
        found = list(_m2(spec, agreement, log))
    else:
        found = list(_columns(spec))
    if not any(sentence.words for sentence in found):
        raise UserError(f"{spec} has not a single word.")
    return found


# Of a sentence: its words, and by annotator the kind and the correction of each edit.
_Edits = dict[str, dict[tuple[int, int], tuple[str, str]]]


def _m2(path: str, agreement: float, log: Log) -> Iterator[Marked]:
    """Words that enough annotators mark.

    Every annotator of the file is taken to have read every sentence, as by the M2
    scorer: one without an edit has none to make.
    """
    sentences, annotators = _m2_edits(path, log)
    for words, by_annotator in sentences:
        votes: list[list[str]] = [[] for _ in words]
        for own in by_annotator.values():
            kinds = _marks(len(words), {at: kind for at, (kind, _) in own.items()})
            for vote, kind in zip(votes, kinds, strict=True):
                vote += [kind] if kind else []
        least = agreement * len(annotators)
        yield Marked(
            tuple(words),
            tuple(
                collections.Counter(vote).most_common(1)[0][0]
                if vote and len(vote) >= least
                else RIGHT
                for vote in votes
            ),
        )


def _m2_edits(path: str, log: Log) -> tuple[list[tuple[list[str], _Edits]], list[str]]:
    """Sentences with their edits, and all annotators, in order.

    An S line with words, an A line per edit, a blank line.
    """
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    blocks: list[tuple[list[str], _Edits]] = []
    annotators, beyond = set(), {}
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if line.startswith("S ") or line == "S":
            blocks.append((line[2:].split(" "), collections.defaultdict(dict)))
        elif line.startswith("A "):
            if not blocks:
                raise UserError(f"{where}: an edit before the first sentence.")
            words, by_annotator = blocks[-1]
            fields = line[2:].split("|||")
            try:
                first, last = map(int, fields[0].split())
                kind, correction, annotator = fields[1], fields[2], fields[5]
            except (ValueError, IndexError) as error:
                raise UserError(
                    f"{where} is no edit: 'A FIRST LAST|||KIND|||CORRECTION|||REQUIRED"
                    "|||COMMENT|||ANNOTATOR' is expected."
                ) from error
            annotators.add(annotator)
            if kind == "noop" or first < 0:
                continue
            if not first <= last <= len(words):
                beyond.setdefault(len(blocks) - 1, number)
            own = by_annotator[annotator]
            for start, end in own:
                same = (start, end) == (first, last)
                if same or (first < end and start < last):
                    raise UserError(
                        f"{where}: the edits {start} {end} and {first} {last} of "
                        f"annotator {annotator} overlap, and one of them has to go."
                    )
            # The M2 scorer's: nothing, and several that are as good.
            correction = "" if correction == "-NONE-" else correction.split("||")[0]
            own[first, last] = kind or "error", correction
        elif line.strip():
            raise UserError(f"{where}: M2 lines begin with S or A, got {line[:40]!r}.")
    if beyond:
        log(
            f"{path}: {len(beyond)} of {len(blocks)} sentences are left out, because "
            "an edit is not within their words, the first one on line "
            f"{min(beyond.values())}."
        )
    kept = [each for number, each in enumerate(blocks) if number not in beyond]
    return kept, sorted(annotators)


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A sentence, and what people wrote in its place."""

    source: str
    others: tuple[str, ...]


def rewritten(spec: str, log: Log) -> list[Rewritten] | None:
    """Reads a file as ``read`` does; None where it does not tell what would be right.

    Of M2, a text for each annotator, with all of its edits made.
    """
    source, colon, reference = spec.rpartition(":")
    if colon and not Path(spec).exists():
        return [
            Rewritten(" ".join(before), (" ".join(after),))
            for before, after in _parallel(source, reference)
        ]
    if spec.endswith(".jsonl") or Path(spec).is_dir():
        return [Rewritten(pair.bad, (pair.good,)) for pair in read_pairs([spec])]
    if not spec.removesuffix(".gz").endswith(".m2"):
        return None
    sentences, annotators = _m2_edits(spec, log)
    return [
        Rewritten(
            " ".join(words),
            tuple(
                dict.fromkeys(_edited(words, edits.get(who, {})) for who in annotators)
            ),
        )
        for words, edits in sentences
    ]


def _edited(words: Sequence[str], edits: dict[tuple[int, int], tuple[str, str]]) -> str:
    """The words with all edits made."""
    kept = list(words)
    for (first, last), (_, correction) in sorted(edits.items(), reverse=True):
        kept[first:last] = correction.split()
    return " ".join(kept)


def _marks(size: int, spans: dict[tuple[int, int], str]) -> list[str]:
    """Kind by word, of edits of spans; the first of several kinds stays."""
    kinds = [RIGHT] * size
    for (first, last), kind in sorted(spans.items()):
        if first == last:
            first, last = (first, first + 1) if first < size else (size - 1, size)
        for word in range(first, last):
            kinds[word] = kinds[word] or kind
    return kinds


def _columns(path: str) -> Iterator[Marked]:
    """The word first and its label last: c and i, or 0 and 1 (FCE, BEA)."""
    source = SentenceSource(files={"eval": path}, word_column="0", tag_column="-1")
    for sentence in source("eval"):
        unknown = {*sentence.tags} - {"c", "i", "0", "1"}
        if unknown:
            raise UserError(
                f"{path}: the label {min(unknown)!r} of {sentence.id} is neither c nor "
                "i (nor 0 nor 1): the last column says whether a word is incorrect. "
                "M2 files end in .m2, parallel ones are named SOURCE:REFERENCE."
            )
        wrong = (tag in ("i", "1") for tag in sentence.tags)
        kinds = tuple("error" if is_wrong else RIGHT for is_wrong in wrong)
        yield Marked(sentence.words, kinds)


def _parallel(source: str, reference: str) -> Iterator[tuple[list[str], list[str]]]:
    """Words of a line of both files, separated by spaces, but of empty sources."""
    texts = [read_text(path).rstrip("\n").split("\n") for path in (source, reference)]
    if len(texts[0]) != len(texts[1]):
        raise UserError(
            f"{source} has {len(texts[0])} lines and {reference} {len(texts[1])}: line "
            "by line they must be the same sentences."
        )
    for wrong, right in zip(*texts, strict=True):
        words, target = wrong.split(), right.split()
        if not words:
            continue
        yield words, target


def _corrected(words: Sequence[str], target: Sequence[str], kind: str = "") -> Marked:
    """Words whose errors are the fewest edits to the target; of one kind, if given."""
    spans = {}
    for first, last, begin, end in alignment.edits(words, target):
        name = "replaced" if last > first and end > begin else "missing"
        spans[first, last] = kind or ("unnecessary" if begin == end else name)
    return Marked(tuple(words), tuple(_marks(len(words), spans)))


# Rules: errors of one kind each, put into text whose words have tags of the Penn
# Treebank (column XPOS of English treebanks).

_IRREGULAR = {"is": "are", "was": "were", "has": "have", "does": "do", "goes": "go"}
_IRREGULAR |= {plural: singular for singular, plural in _IRREGULAR.items()}
_PREPOSITIONS = ("in", "on", "at", "of", "to", "for", "with", "from", "by", "about")
_ARTICLES = {"a": "the", "an": "the", "the": "a"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Words and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(
    path: str, tag: str | None = None, *, last: bool = False
) -> list[Tagged]:
    """Reads CoNLL-U (by default the tags of XPOS), or word and tag in columns 0 and 1.

    ``last``: the tag is in the last column. Errors as of ``SentenceSource``.
    """
    is_conllu = path.removesuffix(".gz").endswith(".conllu")
    column = (tag or "XPOS") if is_conllu else "1"
    source = SentenceSource(
        files={"eval": path},
        word_column="FORM" if is_conllu else "0",
        tag_column="-1" if last else column,
    )
    return [Tagged(sentence.words, sentence.tags) for sentence in source("eval")]


def read_spans(specs: Sequence[str], limit: int) -> dict[str, list[Tagged]]:
    """At most ``limit`` sentences with span tags of each NAME=FILE, by the name.

    ValueError: a tag is none of a span, or a name is there twice; OSError: no such
    file.
    """
    found: dict[str, list[Tagged]] = {}
    for spec in specs:
        name, _, path = spec.partition("=")
        if name in found:
            raise UserError(f"--spans={spec}: the name {name} is taken, use another.")
        found[name] = read_tagged(path, last=True)[:limit]
        for tag in {tag for sentence in found[name] for tag in sentence.tags}:
            if not is_span_tag(tag):
                raise UserError(
                    f"{path}: the tag {tag!r} is none of a span, such as B-PER, I-PER "
                    "or O; --tagged takes tags of single words."
                )
    return found


# Takes a sentence, a place and the known words by tag. Returns how many words are
# replaced, and by what; None: the rule does not apply here.
_Change = tuple[int, tuple[str, ...]] | None
_Known = dict[str, set[str]]
_Rule = Callable[[Tagged, int, _Known, random.Random], _Change]


def _agreement(sentence: Tagged, at: int, known: _Known, rng: random.Random) -> _Change:
    del rng
    word, tag = sentence.words[at], sentence.tags[at]
    lower = word.lower()
    if tag not in ("VBZ", "VBP", "VBD") or not word.isalpha():
        return None
    found = _IRREGULAR.get(lower)
    if found is None and tag == "VBZ":
        ends = (("ies", "y"), ("es", ""), ("s", ""))
        stems = [
            lower.removesuffix(end) + new for end, new in ends if lower.endswith(end)
        ]
        found = next((s for s in stems if s in known["VB"] | known["VBP"]), None)
    elif found is None and tag == "VBP" and lower not in ("am", "'m", "ai"):
        third = lower + ("es" if lower.endswith(("s", "sh", "ch", "x", "z")) else "s")
        if lower.endswith("y") and lower[-2:-1] not in "aeiou":
            third = lower[:-1] + "ies"
        found = third if third in known["VBZ"] else None
    return None if found is None else (1, (_cased(found, word),))


def _article(sentence: Tagged, at: int, known: _Known, rng: random.Random) -> _Change:
    del known, rng
    word = sentence.words[at]
    if sentence.tags[at] != "DT" or word.lower() not in _ARTICLES:
        return None
    return 1, (_cased(_ARTICLES[word.lower()], word),)


def _missing_article(
    sentence: Tagged, at: int, known: _Known, rng: random.Random
) -> _Change:
    if at + 1 == len(sentence.words) or not _article(sentence, at, known, rng):
        return None
    return 2, (_cased(sentence.words[at + 1], sentence.words[at]),)


def _preposition(
    sentence: Tagged, at: int, known: _Known, rng: random.Random
) -> _Change:
    del known
    word = sentence.words[at]
    if sentence.tags[at] not in ("IN", "TO") or word.lower() not in _PREPOSITIONS:
        return None
    # "to" before a verb is no preposition.
    if word.lower() == "to" and sentence.tags[at + 1 : at + 2] in ((), ("VB",)):
        return None
    others = [each for each in _PREPOSITIONS if each != word.lower()]
    return 1, (_cased(rng.choice(others), word),)


def _word_order(
    sentence: Tagged, at: int, known: _Known, rng: random.Random
) -> _Change:
    del known, rng
    pair = sentence.words[at : at + 2]
    usual = len(pair) == 2 and all(word.isalpha() for word in pair)
    if not usual or pair[0].lower() == pair[1].lower():
        return None
    # Two names or two adjectives may well stand either way.
    if sentence.tags[at] == sentence.tags[at + 1]:
        return None
    return 2, (_cased(pair[1], pair[0]), pair[0].lower() if not at else pair[0])


def _spelling(sentence: Tagged, at: int, known: _Known, rng: random.Random) -> _Change:
    word = sentence.words[at]
    if len(word) < 4 or not word.isalpha() or not word.isascii():
        return None
    # The first letter stays, as in most misspellings.
    place = rng.randrange(1, len(word) - 1)
    head, letter, tail = word[:place], word[place], word[place + 1 :]
    changed = rng.choice(
        [
            head + tail,
            head + letter + letter + tail,
            head + tail[0] + letter + tail[1:],
            head + rng.choice(_LETTERS) + tail,
        ]
    )
    if changed == word or changed.lower() in known[""]:
        return None
    return 1, (changed,)


RULES: dict[str, _Rule] = {
    "agreement": _agreement,
    "article": _article,
    "missing article": _missing_article,
    "preposition": _preposition,
    "word order": _word_order,
    "spelling": _spelling,
}


def _cased(word: str, like: str) -> str:
    """A word with a capital where another one has it; capitals are kept."""
    return word[:1].upper() + word[1:] if like[:1].isupper() else word


def by_rules(sentences: Sequence[Tagged], limit: int, seed: int = 0) -> list[Marked]:
    """Sentences with one error each: at most ``limit`` for every rule of ``RULES``.

    ValueError: no rule applies anywhere, for want of the tags that they look at.
    """
    known: _Known = collections.defaultdict(set)
    for sentence in sentences:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            known[tag].add(word.lower())
            known[""].add(word.lower())
    found = []
    for name, rule in RULES.items():
        rng = random.Random(f"{seed} {name}")
        order = rng.sample(range(len(sentences)), len(sentences))
        changed = (_once(sentences[at], name, rule, known, rng) for at in order)
        found += itertools.islice(filter(None, changed), limit)
    if not found:
        raise UserError(
            "no rule applies to any word: English text with tags of the Penn Treebank "
            "is needed (column XPOS of CoNLL-U, or the second of several columns)."
        )
    return found


def _once(
    sentence: Tagged, name: str, rule: _Rule, known: _Known, rng: random.Random
) -> Marked | None:
    """The sentence with one error at a random place where the rule applies."""
    for at in rng.sample(range(len(sentence.words)), len(sentence.words)):
        change = rule(sentence, at, known, rng)
        if change:
            size, new = change
            before, after = sentence.words[:at], sentence.words[at + size :]
            kinds = (RIGHT,) * len(before), (name,) * len(new), (RIGHT,) * len(after)
            return Marked((*before, *new, *after), sum(kinds, ()))
    return None
