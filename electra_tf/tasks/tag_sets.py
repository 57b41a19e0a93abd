"""The tags a model learns, and the tags it answers with."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from electra_tf.tasks.tagging_files import Sentence
from electra_tf.tasks.tagging_metrics import (
    begins,
    is_span_tag,
    spans,
    split_tag,
    tags_of,
)


@dataclasses.dataclass(frozen=True)
class TagSet:
    """The tags of a task.

    Attributes:
        learned: The tags in the order of the model's outputs.
        fallback: Tag of words that no piece stands for: O, or the most frequent one.
        rewritten: Whether spans were rewritten as BIOES for learning, so that answers
            are written back as IOB2.
    """

    learned: tuple[str, ...]
    fallback: str
    rewritten: bool = False

    @classmethod
    def of(
        cls,
        sentences: Iterable[Sequence[str]],
        *,
        span_tags: bool,
        encoding: Literal["given", "bioes"],
    ) -> TagSet:
        """The tags of training data.

        Args:
            sentences: Tags of each sentence.
            span_tags: Whether the tags must form spans.
            encoding: "given", or "bioes" to learn the spans as BIOES, which they must
                then form.

        Raises:
            ValueError: There is only one tag, or spans are asked for and these are not.
        """
        given = collections.Counter(tag for tags in sentences for tag in tags)
        wrong = [tag for tag in given if not is_span_tag(tag)]
        if wrong and (span_tags or encoding == "bioes"):
            raise ValueError(
                f"The training data has the tag {wrong[0]!r}, but the tags of spans "
                "are O, B-X, I-X, E-X and S-X. For tags of single words use "
                "--task=pos, without --tag_encoding=bioes."
            )
        if len(given) < 2:
            raise ValueError(
                f"All {given.total()} words of the training data have the tag "
                f"{next(iter(given))!r}: there is nothing to learn."
            )
        is_bioes = any(split_tag(tag)[0] in ("E", "S") for tag in given)
        rewritten = encoding == "bioes" and not is_bioes
        if rewritten:
            given = collections.Counter(
                tag for tags in sentences for tag in _as_bioes(tags)
            )
        fallback = "O" if "O" in given else given.most_common(1)[0][0]
        return cls(tuple(sorted(given)), fallback, rewritten)

    def check(
        self, sentences: Iterable[Sentence], *, span_tags: bool, unknown: bool
    ) -> None:
        """Looks for tags of evaluation data that cannot be answered.

        Args:
            sentences: Their tags, if they have any, are looked at.
            span_tags: Whether the tags must form spans.
            unknown: Whether there may be tags (of spans: types) that were not learned.

        Raises:
            ValueError: There is one.
        """
        span_tags = span_tags or self.rewritten

        def part(tag):
            # Letters may differ: a type that was seen can be answered.
            return (tag == "O", split_tag(tag)[1]) if span_tags else tag

        known = {part(tag) for tag in self.learned}
        for sentence in sentences:
            for word, tag in zip(sentence.words, sentence.tags or (), strict=False):
                where = f"Sentence {sentence.id} has the tag {tag!r} (of {word!r})"
                if span_tags and not is_span_tag(tag):
                    raise ValueError(
                        f"{where}, but the tags of spans are O, B-X, I-X, E-X and S-X. "
                        "Correct the tag, or use --task=pos for tags of single words."
                    )
                if not unknown and part(tag) not in known:
                    raise ValueError(
                        f"{where}, which the training data lacks: it has "
                        f"{', '.join(self.learned)}. Correct the tag, add training "
                        "sentences with it, or count it as wrong with "
                        "--unknown_tags=allow."
                    )

    def learn(self, tags: Sequence[str]) -> Sequence[str]:
        """Tags of a sentence as the model learns them."""
        return _as_bioes(tags) if self.rewritten else tags

    def answer(self, tags: Sequence[str | None]) -> list[str | None]:
        """Tags of a sentence as they are answered; None is a word without answer."""
        before = ["O", *(tag or "O" for tag in tags[:-1])]
        return [
            None if tag is None else self.answer_tag(tag, other)
            for tag, other in zip(tags, before, strict=True)
        ]

    def answer_tag(self, tag: str, before: str) -> str:
        """A tag as it is answered, after another one (O at the start)."""
        if not self.rewritten or tag == "O":
            return tag
        return ("B" if begins(tag, before) else "I") + tag[1:]


def _as_bioes(tags):
    return tags_of(spans(tags), len(tags), "bioes")
