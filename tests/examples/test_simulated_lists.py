import itertools
import json

import numpy as np
import pytest

from electra_tf.analysis import score
from tests.examples.common import load

simulated = load("simulated_lists.py")
CLASSES = {"a": "vowel", "e": "vowel", "k": "stop", "t": "stop", "s": "fricative"}


def distance(one, other, in_class=0.5):
    """Computes the edit distance recursively, with a cost of edits in a class."""
    if not one or not other:
        return float(len(one) + len(other))
    alike = in_class if CLASSES[one[0]] == CLASSES[other[0]] else 1.0
    return min(
        distance(one[1:], other[1:], in_class) + alike * (one[0] != other[0]),
        distance(one[1:], other, in_class) + 1,
        distance(one, other[1:], in_class) + 1,
    )


def test_neighbors_are_those_of_brute_force(monkeypatch):
    monkeypatch.setattr(simulated, "_MOST", 1000)
    rng = np.random.default_rng(0)
    phones = [*CLASSES]
    spoken = {
        f"w{number}": [
            tuple(rng.choice(phones, rng.integers(1, 5)).tolist())
            for _ in range(rng.integers(1, 3))
        ]
        for number in range(60)
    }
    found = simulated.neighbors(spoken, CLASSES)
    for one, other in itertools.combinations(spoken, 2):
        near = [
            distance(a, b)
            for a, b in itertools.product(spoken[one], spoken[other])
            if distance(a, b, in_class=1) <= 1
        ]
        expected = min(near) if near else None
        assert dict(found[one]).get(other) == expected
        assert dict(found[other]).get(one) == expected
    for own in found.values():
        assert [cost for _, cost in own] == sorted(cost for _, cost in own)


def test_lists_are_read_by_rerank(tmp_path, monkeypatch, capsys):
    spoken = {"two": [("t", "u")], "too": [("t", "u")], "cats": [("k",)]}
    monkeypatch.setattr(simulated, "pronunciations", lambda: (spoken, {}))
    text, lists = tmp_path / "text.txt", tmp_path / "lists.jsonl"
    text.write_text("I see two cats. They are too slow!\nIn 1999 I saw two.\n\n")
    arguments = [f"--text={text}", f"--output={lists}"]
    simulated.main([*arguments, "--rate=1"])
    assert "2 simulated lists" in capsys.readouterr().out
    rows = [json.loads(line) for line in lists.read_text().splitlines()]
    assert {row["reference"] for row in rows} == {"i see two cats", "they are too slow"}
    assert all(row["simulated"] for row in rows)
    for found in score.read(str(lists)):
        assert len(found.texts) == 2
        assert sorted(found.edits) == [0, 1]
        assert found.first[0] >= found.first[1]
    with pytest.raises(SystemExit, match="--overwrite"):
        simulated.main(arguments)
    text.write_text("No word of this sounds alike.\n")
    with pytest.raises(SystemExit, match="no sentence of 4 to 40") as stopped:
        simulated.main([*arguments, "--overwrite"])
    assert "\n" not in stopped.value.code
