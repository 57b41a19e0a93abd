"""A synthetic language with a computable optimal predictor, to evaluate models.

Sentences come from a hidden Markov model with about 500 word types. They have features
of natural text that are hard for a small model. A verb agrees in number with its
subject across a relative clause or a phrase with other nouns. Many forms are ambiguous
in number or part of speech. The topic of a sentence determines the likely nouns, verbs
and adjectives. The states are known, so Bayes' rule exactly gives

- the distribution of a masked word given all visible words (masked LM);
- the probability that a word was replaced, where replacements are drawn independently
  from a known distribution (replaced token detection against a unigram or uniform
  generator);
- the most likely state of each word (a tagging task on the encoder).

A model is scored by its distance to these optima, which are unknown for natural text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import harness
import numpy as np

from electra_tf import files
from electra_tf.data.vocabulary import SPECIAL_TOKENS
from electra_tf.errors import UserError

# Word types by part of speech. Nouns and verbs come in pairs, singular and plural.
_NOUNS, _VERBS, _ADJECTIVES, _ADVERBS = 140, 100, 80, 40
_TOPICS, _NUMBERS = 4, 2
# Share of nouns and of verbs with equal forms, which only the context resolves.
_ALIKE = 0.4
# Forms that nouns and verbs share, as English "walk" does.
_SHARED = 50
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A hidden Markov model over words.

    Attributes:
        words: V word types; the index of a word is its symbol.
        start: probability of each state at the first word, float64 [N].
        moves: probability of a state after another, float64 [N, N]; rows of states that
            may end a sentence sum to less than 1.
        ends: probability that a sentence ends after a state, float64 [N].
        emits: probability of a word in a state, float64 [N, V].
        tags: label of each state: part of speech and number.
    """

    words: tuple[str, ...]
    start: np.ndarray
    moves: np.ndarray
    ends: np.ndarray
    emits: np.ndarray
    tags: tuple[str, ...]

    def sample(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws a sentence: its symbols and its states, int [T] both."""
        states, symbols = [], []
        state = rng.choice(len(self.start), p=self.start)
        while True:
            states.append(state)
            symbols.append(rng.choice(len(self.words), p=self.emits[state]))
            if rng.random() < self.ends[state]:
                return np.array(symbols), np.array(states)
            row = self.moves[state]
            state = rng.choice(len(row), p=row / row.sum())

    def state_posterior(self, likelihood: np.ndarray) -> np.ndarray:
        """P(state at t | everything observed), float64 [T, N].

        Args:
            likelihood: P(observation at t | state), float64 [T, N]: a column of
                ``emits`` for a visible word, ones for a mask.
        """
        forward = np.empty_like(likelihood)
        forward[0] = self.start * likelihood[0]
        forward[0] /= forward[0].sum()
        for t in range(1, len(likelihood)):
            forward[t] = (forward[t - 1] @ self.moves) * likelihood[t]
            # Only ratios matter, and products of many probabilities underflow.
            forward[t] /= forward[t].sum()
        backward = self.ends.copy()
        posterior = np.empty_like(likelihood)
        for t in reversed(range(len(likelihood))):
            posterior[t] = forward[t] * backward
            posterior[t] /= posterior[t].sum()
            if t:
                backward = self.moves @ (likelihood[t] * backward)
                backward /= backward.sum()
        return posterior

    def best_tags(self, symbols: np.ndarray) -> list[str]:
        """Returns the most likely tag of each word of a visible sentence, int [T]."""
        posterior = self.state_posterior(self.emits.T[symbols])
        names = sorted(set(self.tags))
        of_tag = np.array([[tag == name for name in names] for tag in self.tags])
        return [names[best] for best in (posterior @ of_tag).argmax(axis=1)]

    def masked_words(self, symbols: np.ndarray, masked: np.ndarray) -> np.ndarray:
        """P(word at t | the visible words), float64 [number masked, V].

        Args:
            symbols: the sentence, int [T].
            masked: mask of the hidden words, bool [T].
        """
        likelihood = np.where(masked[:, None], 1.0, self.emits.T[symbols])
        return self.state_posterior(likelihood)[masked] @ self.emits

    def replaced(
        self, symbols: np.ndarray, noise: np.ndarray, rate: float
    ) -> np.ndarray:
        """P(word at t was replaced | the corrupted sentence), float64 [T].

        Each word was drawn from ``noise`` (float64 [V]) independently with probability
        ``rate``. A draw that equals the original counts as original, as in ELECTRA
        (Clark et al., 2020, section 2).

        Args:
            symbols: the corrupted sentence, int [T].
            noise: the distribution that replacements come from.
            rate: probability of a draw.
        """
        own = self.emits.T[symbols]  # [T, N]
        drawn = noise[symbols][:, None]
        # A different original under the draw: 1 - P(the original is the same word).
        other = rate * drawn * (1 - own)
        likelihood = (1 - rate) * own + rate * drawn
        posterior = self.state_posterior(likelihood)
        return (posterior * (other / likelihood)).sum(axis=1)


def write(output_dir: str, sentences: int, tagged: int, seed: int) -> None:
    """Writes text, vocabulary and labelled sentences of ``agreement_grammar``.

    Raises UserError if the folder already has a text.
    """
    folder = Path(output_dir)
    if (folder / "text.txt").exists():
        raise UserError(f"{folder} already has a text.txt: give another --output_dir.")
    folder.mkdir(parents=True, exist_ok=True)
    grammar = agreement_grammar(seed)
    rng = np.random.default_rng([seed, 1])
    lines = []
    for _ in range(sentences):
        symbols, _ = grammar.sample(rng)
        # Each sentence is a document of its own, since sentences are independent.
        lines.append(" ".join(grammar.words[s] for s in symbols) + "\n\n")
    vocabulary = "\n".join([*SPECIAL_TOKENS, *grammar.words, ""])
    files.write_text(folder / "vocab.txt", vocabulary)
    for name, count in (("train", tagged), ("dev", tagged // 2)):
        rows, right = [], []
        for _ in range(count):
            symbols, states = grammar.sample(rng)
            tags = [grammar.tags[state] for state in states]
            best = grammar.best_tags(symbols)
            right += [tag == guess for tag, guess in zip(tags, best, strict=True)]
            words = (grammar.words[symbol] for symbol in symbols)
            rows += [f"{w}\t{t}\n" for w, t in zip(words, tags, strict=True)] + ["\n"]
        files.write_text(folder / f"{name}.conll", "".join(rows))
    best = {"best_tag_accuracy": float(np.mean(right)), "words": len(grammar.words)}
    files.write_json(folder / "optimum.json", best)
    # Written last: a folder with a text is complete.
    files.write_text(folder / "text.txt", "".join(lines))
    print(
        f"{sentences:,} sentences of {len(grammar.words)} word types are in "
        f"{folder}/text.txt. The best possible tagger is right on "
        f"{best['best_tag_accuracy']:.2%} of the words of dev.conll.\n"
        f"Next: python run_pretraining.py --flagfile=configs/grammar.cfg "
        f"--corpus={folder}/text.txt --vocab_file={folder}/vocab.txt"
    )


def agreement_grammar(seed: int = 0) -> Grammar:
    """Builds the language; words and their probabilities depend on the seed.

    A sentence is Det (Adj) Noun [of Det Noun | that Verb Det Noun] Verb (Det (Adj)
    Noun) (Adverb) "." where the noun before the bracket and the verb after it agree in
    number. A state is the place in this pattern, the topic, the number of the
    subject and, inside the bracket, of the noun there.
    """
    rng = np.random.default_rng(seed)
    makers = _word_makers(rng)
    nouns, verbs = _paradigms(makers, _NOUNS), _paradigms(makers, _VERBS)
    # The same form as a noun's singular and a verb's plural ("the walk", "they walk").
    for index in range(_SHARED):
        verbs[index] = (verbs[index][0], nouns[index][0])
    adjectives = [next(makers) for _ in range(_ADJECTIVES)]
    adverbs = [next(makers) for _ in range(_ADVERBS)]
    determiners = [["a", "every"], ["all", "some"]]
    either = ["the"]
    closed = {"of": ["of", "near", "with"], "that": ["that"], ".": ["."]}
    words: dict[str, int] = {}
    open_forms = [f for forms in (*nouns, *verbs) for f in forms]
    both = [*determiners[0], *determiners[1], *either]
    lists = [*closed.values(), both, open_forms, adjectives, adverbs]
    for word in (word for group in lists for word in group):
        words.setdefault(word, len(words))

    def zipf(count: int) -> np.ndarray:
        weights = 1.0 / (rng.permutation(count) + 2.7)
        return weights / weights.sum()

    # A word's weight under a topic: its own, times five for the topic's words.
    def by_topic(count: int) -> np.ndarray:
        base, liked = zipf(count), rng.integers(_TOPICS, size=count)
        table = np.stack([base * np.where(liked == t, 5, 1) for t in range(_TOPICS)])
        return table / table.sum(axis=1, keepdims=True)

    noun_weights, verb_weights = by_topic(_NOUNS), by_topic(_VERBS)
    adjective_weights, adverb_weights = by_topic(_ADJECTIVES), zipf(_ADVERBS)

    def emission(pairs: dict[str, float]) -> np.ndarray:
        row = np.zeros(len(words))
        for word, weight in pairs.items():
            row[words[word]] += weight
        return row / row.sum()

    def emit(kind: str, topic: int, number: int) -> np.ndarray:
        row: dict[str, float] = {}
        if kind == "Det":
            for word in determiners[number]:
                row[word] = 0.25
            row["the"] = 0.5
        elif kind in ("Noun", "Verb"):
            forms, weights = (
                (nouns, noun_weights) if kind == "Noun" else (verbs, verb_weights)
            )
            for forms_of, weight in zip(forms, weights[topic], strict=True):
                row[forms_of[number]] = row.get(forms_of[number], 0.0) + weight
        elif kind == "Adj":
            row = dict(zip(adjectives, adjective_weights[topic], strict=True))
        elif kind == "Adv":
            row = dict(zip(adverbs, adverb_weights, strict=True))
        else:
            row = dict.fromkeys(closed[kind], 1.0)
        return emission(row)

    # The pattern: a place, the part of speech it emits, the source of its number (the
    # "subject", the "inner" noun, or "fresh"), and probabilities of the next places.
    places: dict[str, tuple[str, str, dict[str, float]]] = {
        "det": ("Det", "subject", {"adj": 0.4, "noun": 0.6}),
        "adj": ("Adj", "subject", {"noun": 1.0}),
        "noun": ("Noun", "subject", {"of": 0.3, "that": 0.3, "verb": 0.4}),
        "of": ("of", "subject", {"inner det": 1.0}),
        "that": ("that", "subject", {"inner verb": 1.0}),
        "inner verb": ("Verb", "subject", {"inner det": 1.0}),
        "inner det": ("Det", "inner", {"inner adj": 0.3, "inner noun": 0.7}),
        "inner adj": ("Adj", "inner", {"inner noun": 1.0}),
        "inner noun": ("Noun", "inner", {"verb": 1.0}),
        "verb": ("Verb", "subject", {"object det": 0.6, "adverb": 0.2, "stop": 0.2}),
        "object det": ("Det", "inner", {"object adj": 0.4, "object noun": 0.6}),
        "object adj": ("Adj", "inner", {"object noun": 1.0}),
        "object noun": ("Noun", "inner", {"adverb": 0.3, "stop": 0.7}),
        "adverb": ("Adv", "subject", {"stop": 1.0}),
        "stop": (".", "subject", {}),
    }
    # States: the place, topic, subject's number, inner number (0 where there is none).
    states = [
        (place, topic, number, inner)
        for place, (_, whose, _) in places.items()
        for topic in range(_TOPICS)
        for number in range(_NUMBERS)
        for inner in range(_NUMBERS if whose == "inner" else 1)
    ]
    index = {state: position for position, state in enumerate(states)}
    start, ends = np.zeros(len(states)), np.zeros(len(states))
    moves = np.zeros((len(states), len(states)))
    for (place, topic, number, inner), row in index.items():
        _, whose, followers = places[place]
        if place == "det":
            start[row] = 1 / (_TOPICS * _NUMBERS)
        if not followers:
            ends[row] = 1.0
        for follower, probability in followers.items():
            inside = places[follower][1] == "inner"
            # The start of a noun phrase draws its number; the rest keeps it.
            drawn = range(_NUMBERS) if inside and whose != "inner" else [inner]
            for chosen in drawn:
                target = (follower, topic, number, chosen if inside else 0)
                moves[row, index[target]] += probability / len(drawn)
    kinds = [
        (places[place][0], topic, inner if places[place][1] == "inner" else number)
        for place, topic, number, inner in states
    ]
    return Grammar(
        words=tuple(words),
        start=start,
        moves=moves,
        ends=ends,
        emits=np.stack([emit(*kind) for kind in kinds]),
        tags=tuple(
            f"{kind}-{'sg' if number == 0 else 'pl'}"
            if kind in ("Noun", "Verb", "Det")
            else {".": "Stop", "of": "Prep", "that": "Rel"}.get(kind, kind)
            for kind, _, number in kinds
        ),
    )


def _word_makers(rng: np.random.Generator) -> Iterator[str]:
    """Yields distinct nonsense words of two or three syllables."""
    made = set()
    while True:
        word = "".join(
            rng.choice(list(_CONSONANTS)) + rng.choice(list(_VOWELS))
            for _ in range(rng.integers(2, 4))
        )
        if word not in made:
            made.add(word)
            yield word


def _paradigms(makers: Iterator[str], count: int) -> list[tuple[str, str]]:
    """Yields singular and plural forms, which are equal for a share of the words."""
    stems = [next(makers) for _ in range(count)]
    distinct = count - round(_ALIKE * count)
    return [(s, s + "ns" if n < distinct else s) for n, s in enumerate(stems)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = harness.parser(__doc__)
    parser.add_argument("--output_dir", required=True, help="folder to write")
    parser.add_argument("--sentences", type=int, default=200_000, help="of the text")
    parser.add_argument("--tagged", type=int, default=4_000, help="of train.conll")
    parser.add_argument("--seed", type=int, default=0, help="of language and text")
    harness.run(write, parser, arguments)


if __name__ == "__main__":
    main()
