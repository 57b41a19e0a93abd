"""A few texts in full: verdicts, corruptions, attention."""

from __future__ import annotations

import numpy as np

from electra_tf.analysis import page
from electra_tf.analysis.inspect import record
from electra_tf.analysis.page import Answer
from electra_tf.analysis.report import Section
from electra_tf.analysis.subject import Subject
from electra_tf.errors import UserError

# Texts that are taken where none is named, and the tokens of one, for squares of
# attention that say something and fit on a screen.
_TEXTS = 3
_FEWEST, _MOST = 5, 32


def choose(subject: Subject) -> list[str]:
    """The texts of ``--inspect``; else the first short ones of the data.

    ValueError: there is no data either.
    """
    config, inspector = subject.config, subject.inspector
    if config.inspect:
        return list(config.inspect)
    if config.tagged:
        texts = [" ".join(sentence.words) for sentence in subject.tagged]
    else:
        names = (inspector.names(row[1:-1]) for row in subject.text.rows)
        texts = [" ".join(tokens).replace(" ##", "") for tokens in names]
    lengths = map(len, inspector.tokenizer.encode(texts))
    short = [
        t for t, size in zip(texts, lengths, strict=True) if _FEWEST <= size <= _MOST
    ]
    if not short:
        raise UserError(
            f"the data has no text of {_FEWEST} to {_MOST} tokens: name one with "
            "--inspect."
        )
    return short[:_TEXTS]


def section(subject: Subject) -> Section:
    """Verdicts, those after a corruption, and attention, of every text."""
    inspector, config = subject.inspector, subject.config
    texts = choose(subject)
    corrupts = inspector.home.has_model("generator")
    verdicts, corrupted, heads = [], [], []
    for text in texts:
        verdicts.append(inspector.verdicts(text))
        if corrupts:
            corrupted.append(inspector.corrupt(text, seed=config.seed))
        heads.append(inspector.heads(text))
    answers: list[Answer] = [*verdicts, *corrupted, *heads]
    notes = [
        "Texts as they are, as the generator corrupts them, and attention by head."
    ]
    if not corrupts:
        notes = ["Texts as they are, and attention by head. There is no generator."]
    numbers = {
        "verdicts": [record(each) for each in verdicts],
        "corrupted": [record(each) for each in corrupted],
        "attention": [
            {"text": each.text, "shares": np.round(each.shares.astype(float), 4)}
            for each in heads
        ],
    }
    # All that is said of a text stands together.
    answers.sort(key=lambda each: texts.index(each.text))
    shown = "\n".join([page.legend(answers), *map(page.answer, answers)])
    return Section("What does it say of a text?", notes, [], [], numbers, shown)
