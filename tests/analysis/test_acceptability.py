"""Sources against references: what is compared, AUC, and its interval."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from electra_tf.__main__ import main as command
from electra_tf.analysis import marked
from electra_tf.analysis.acceptability import prefer
from tests import tiny_run

# From the M2 scorer's description: of two annotators, one inserts, replaces, deletes.
M2 = """S a books was the awful
A 0 1|||ArtOrDet|||-NONE-|||REQUIRED|||-NONE-|||0
A 2 3|||SVA|||were||are|||REQUIRED|||-NONE-|||0
A 3 4|||ArtOrDet||||||REQUIRED|||-NONE-|||0
A 5 5|||Mec|||and bad .|||REQUIRED|||-NONE-|||0
A 0 1|||ArtOrDet|||the|||REQUIRED|||-NONE-|||1
A 1 1|||X|||good|||REQUIRED|||-NONE-|||1

S fine
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0
"""


def test_texts_of_annotators(tmp_path):
    (tmp_path / "x.m2").write_text(M2)
    first, second = marked.rewritten(str(tmp_path / "x.m2"), pytest.fail)
    assert first.source == "a books was the awful"
    assert first.others == (
        "books were awful and bad .",
        "the good books was the awful",
    )
    assert second == marked.Rewritten("fine", ("fine",))
    (tmp_path / "a").write_text("x  y\nz\n")
    (tmp_path / "b").write_text("x\nz w\n")
    found = marked.rewritten(f"{tmp_path / 'a'}:{tmp_path / 'b'}", pytest.fail)
    assert [(each.source, each.others) for each in found] == [
        ("x y", ("x",)),
        ("z", ("z w",)),
    ]
    (tmp_path / "c").write_text("x c\n")
    assert marked.rewritten(str(tmp_path / "c"), pytest.fail) is None


def test_shares_are_scikit_learns_and_intervals_cover():
    rng = np.random.default_rng(0)
    sources = rng.normal(size=80).round(1)
    references = [rng.normal(0.5, 1, rng.integers(1, 5)).round(1) for _ in sources]
    found = prefer(sources, references)
    flat = np.concatenate(references)
    labels = np.repeat([1, 0], [len(flat), 80])
    expected = roc_auc_score(labels, np.concatenate([flat, sources]))
    np.testing.assert_allclose(found.auc.rate, expected)
    pairs = [
        float(np.mean((r > s) + 0.5 * (r == s)))
        for s, r in zip(sources, references, strict=True)
    ]
    sizes = [len(each) for each in references]
    np.testing.assert_allclose(found.pairs.rate, np.average(pairs, weights=sizes))
    for rate in (found.auc, found.pairs):
        assert rate.low < rate.rate < rate.high
        # About 1.96 standard errors of 80 sentences.
        assert 0.08 < rate.high - rate.low < 0.25
    alone = prefer(np.zeros(20), [np.ones(2)] * 20)
    assert (alone.auc.rate, alone.pairs.low, alone.pairs.high) == (1, 1, 1)
    with pytest.raises(ValueError, match="no sentence differs"):
        prefer(np.zeros(0), [])


def test_the_part_of_the_report(tmp_path, capsys):
    model = tiny_run.save(tmp_path / "run")
    (tmp_path / "x.m2").write_text(M2 + "\nS " + "a " * 40 + "\n")
    arguments = [f"--model={model}", "--only=acceptability"]
    output = f"--output={tmp_path / 'report'}"
    data = f"--errors={tmp_path / 'x.m2'}"
    assert command(["analyze", *arguments, output, data]) == 0
    assert "1 sentences that somebody rewrote, 2 references" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="acceptability needs") as stopped:
        command(["analyze", *arguments, f"--output={tmp_path / 'other'}"])
    assert "\n" not in stopped.value.code
