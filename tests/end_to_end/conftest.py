"""A small learnable corpus and its vocabulary."""

import random

import pytest

from electra_tf.data.vocabulary import SPECIAL_TOKENS


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    subjects = ["the cat", "a dog", "my bird", "one horse", "the old man"]
    verbs = ["sees", "likes", "eats", "finds", "follows"]
    places = ["in the garden", "at night", "near the river", "on the hill"]
    lines = []
    for _ in range(150):
        for _ in range(8):
            parts = (rng.choice(subjects), rng.choice(verbs), rng.choice(subjects))
            lines.append(" ".join((*parts, rng.choice(places), ".")))
        lines.append("")
    (folder / "text.txt").write_text("\n".join(lines))
    words = sorted({word for line in lines for word in line.split()})
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    return folder
