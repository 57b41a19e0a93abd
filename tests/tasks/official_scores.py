"""Reference scores of SQuAD answers and tags from third-party programs.

`official_scores.json` was written by

    pip install --no-deps tf-models-official==2.20.0
    pip install seqeval==1.2.2 absl-py
    python -m tests.tasks.official_scores [FOLDER_OF_SQUAD_FILES]

tf-models-official contains SQuAD's evaluation scripts, 1.1 and 2.0; seqeval follows
conlleval. With a folder, the script also scores its dev files. The tests need the JSON
only.
"""

import json
import random
import sys
import zlib
from pathlib import Path

PATH = Path(__file__).parent / "official_scores.json"
THRESHOLD = -2.75
SQUAD_FILES = {"dev-v1.1.rebuilt.json": "v1", "cs224n-dev-v2.0.json": "v2"}
_WORDS = (
    *("the", "The", "a", "an", "An", "of", "in", "Denver", "Broncos", "1973", "U.S."),
    *("A-bomb", "caf\u00e9", "\u20ac3,000", "don't", "\u2013", "\u4e2d\u6587", "(cat)"),
    *("\u201cquoted\u201d", "a\u00a0b", "x/y", "\u0130stanbul", "stra\u00dfe", "--"),
)


def changed(text, number):
    """Returns a wrong, partly right or right answer, deterministically."""
    words = text.split()
    ways = (
        lambda: text,
        lambda: f"The {text.upper()}!",
        lambda: " ".join(words[:-1]),
        lambda: " ".join([*words, words[0]]) if words else "it",
        lambda: " ".join(reversed(words)),
        lambda: text.replace("a", ""),
        lambda: "",
        lambda: f"of {text} ,  in",
    )
    return ways[number % len(ways)]()


def file_answers(path):
    """Lists (id, answer, odds, right answers) of all questions of a SQuAD file."""
    found = []
    for article in json.loads(Path(path).read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for item in paragraph["qas"]:
                right = [answer["text"] for answer in item["answers"]]
                number = zlib.crc32(item["id"].encode())
                source = right[number % len(right)] if right else "nothing at all"
                # Multiples of 1/4 are exact in floating point; some are ties.
                odds = (number // 8 % 49 - 24) / 4 + (0 if right else 1)
                answer = changed(source, number // 1000)
                found.append((item["id"], answer, odds, right))
    return found


def _made_up_answers(count, seed, *, unanswerable):
    source = random.Random(seed)
    found = []
    for number in range(count):
        right = [
            " ".join(source.choices(_WORDS, k=source.randint(1, 5)))
            for _ in range(source.randint(0 if unanswerable else 1, 3))
        ]
        base = source.choice(right) if right else source.choice(_WORDS)
        answer = changed(base, source.randrange(8))
        found.append((str(number), answer, source.randint(-24, 24) / 4, right))
    return found


def _dataset(rows):
    questions = [
        {"id": name, "answers": [{"text": text} for text in right]}
        for name, _, _, right in rows
    ]
    return [{"paragraphs": [{"qas": questions}]}]


def _score_v1(rows):
    from official.nlp.tools import squad_evaluate_v1_1 as script

    found = script.evaluate(_dataset(rows), {name: text for name, text, _, _ in rows})
    return {"exact_match": 100 * found["exact_match"], "f1": 100 * found["final_f1"]}


def _score_v2(rows):
    from official.nlp.tools import squad_evaluate_v2_0 as script

    data, texts = _dataset(rows), {name: text for name, text, _, _ in rows}
    # The threshold of the script is 1.
    moved = {name: odds - THRESHOLD + 1.0 for name, _, odds, _ in rows}
    found = script.evaluate(data, texts, moved)
    names = {"exact": "exact_match", "f1": "f1"}
    prefixes = {"": "", "HasAns_": "has_answer_", "NoAns_": "no_answer_"}
    scores = {
        ours + name: found[f"{theirs}{key}"]
        for key, name in names.items()
        for theirs, ours in prefixes.items()
    }
    best = script.evaluate(data, texts, {name: odds for name, _, odds, _ in rows})
    for key, name in names.items():
        scores[f"best_{name}"] = best[f"final_{key}"]
        scores[f"best_{name}_threshold"] = best[f"final_{key}_thresh"]
    return scores


def _tag_sequences(count, seed, letters):
    source = random.Random(seed)
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in "XY")]

    def sentence(length):
        return source.choices(tags, [3, *[1] * (len(tags) - 1)], k=length)

    labels = [sentence(source.randint(1, 12)) for _ in range(count)]
    return labels, [
        [tag if source.random() < 0.6 else source.choice(tags) for tag in row]
        for row in labels
    ]


def _tagging(letters, seed):
    from seqeval.metrics import f1_score, precision_score, recall_score

    labels, found = _tag_sequences(40, seed, letters)
    metrics = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    return {
        "labels": [" ".join(row) for row in labels],
        "predictions": [" ".join(row) for row in found],
        "scores": {name: float(m(labels, found)) for name, m in metrics.items()},
    }


def main(folder=None):
    """Recomputes all scores and writes `PATH`."""
    v1 = _made_up_answers(80, 1, unanswerable=False)
    v2 = _made_up_answers(80, 2, unanswerable=True)
    scorers = {"v1": _score_v1, "v2": _score_v2}
    known = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    files = known.get("files", {})
    for name, version in SQUAD_FILES.items() if folder else ():
        files[name] = scorers[version](file_answers(Path(folder) / name))
    content = {
        "v1": {"rows": v1, "scores": _score_v1(v1)},
        "v2": {"rows": v2, "scores": _score_v2(v2)},
        "files": files,
        "tagging": [
            _tagging(letters, seed) for seed, letters in enumerate(("BI", "I", "BIES"))
        ],
    }
    PATH.write_text(json.dumps(content, indent=1, ensure_ascii=True) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
