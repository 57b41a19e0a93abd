import os

import pytest

from electra_tf.data import pools, units
from electra_tf.data.corpora import open_corpus
from electra_tf.data.selection import text_hash
from tests.data.common import WORDS, build, examples, text


def test_held_out_documents_are_chosen_by_their_text(corpus, tmp_path):
    build(corpus, tmp_path / "a", eval_fraction=0.1)
    sizes = [len(examples(tmp_path / "a", split)) for split in ("eval", "train")]
    assert 0.05 < sizes[0] / sizes[1] < 0.2
    (source,) = open_corpus([str(corpus)])
    for added in ([], [[f"{word} {word}"] for word in WORDS]):
        documents = [*added, *source.documents()]
        assert units.hold_out(documents, 0.1) == range(int(0.1 * 2**64))


@pytest.mark.parametrize("fraction", [1e-9, 0.999])
def test_at_least_one_document_is_held_out_and_never_all(fraction, corpus, tmp_path):
    manifest = build(corpus, tmp_path / "records", eval_fraction=fraction)
    assert manifest.train
    assert manifest.eval


@pytest.mark.parametrize(("seed", "fraction"), [(0, 0.3), (1, 0.3), (2, 0.01)])
def test_a_document_that_is_nearly_all_is_not_held_out(seed, fraction, tmp_path):
    """Holds for either order of the hashes and either side of the bound."""
    (tmp_path / "large.txt").write_text(text(1, seed=seed, lines=900))
    (tmp_path / "small.txt").write_text(text(1, seed=seed + 100, lines=3))
    small = sum(map(len, (tmp_path / "small.txt").read_text().splitlines()))
    manifest = build(tmp_path, tmp_path / "records", eval_fraction=fraction)
    assert sum(shard.tokens for shard in manifest.eval) < small
    assert manifest.eval
    assert manifest.num_tokens > 900 * 20


def test_a_large_held_out_document_is_reported(tmp_path):
    """The hash of its text puts the last document, most of the corpus, below 1 %."""
    small, bound = [text(1, seed=seed, lines=3) for seed in range(200)], 0.01 * 2**64
    hashes = (
        (document, text_hash(document.splitlines()))
        for document in (text(1, seed=seed, lines=900) for seed in range(1000))
    )
    large = next(document for document, value in hashes if value < bound)
    (tmp_path / "corpus.txt").write_text("\n\n".join([*small, large]))
    told = []
    build(tmp_path / "corpus.txt", tmp_path / "r", eval_fraction=0.01, log=told.append)
    assert any("of the records are held out" in line for line in told)


def test_nothing_is_held_out_of_few_large_documents_and_that_is_said(tmp_path):
    path, told = tmp_path / "corpus.txt", []
    for documents in (1, 3):
        path.write_text(text(documents))
        assert build(path, tmp_path / str(documents), log=told.append).eval == ()
        assert "no document is held out" in told[-2]
        assert "--eval_records" in told[-2]


def test_examples_of_a_shard_are_shuffled(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(f"{word} " * 30 for word in WORDS))
    build(path, tmp_path / "records", eval_fraction=0)
    firsts = [row[1] for row in examples(tmp_path / "records", "train")]
    assert sorted(set(firsts)) == list(range(5, 105))
    assert firsts != sorted(firsts)


def test_units_group_small_files_and_cut_big_ones(tmp_path):
    for number in range(50):
        (tmp_path / f"{number:02d}.txt").write_text("a" * 4000)
    (tmp_path / "big.txt").write_text("b\n\n" * 200_000)
    planned = units.plan_units(open_corpus([str(tmp_path)]), 1 << 17)
    assert [unit.index for unit in planned] == list(range(len(planned)))
    assert sum(unit.size for unit in planned) == 50 * 4000 + 600_000
    assert max(unit.size for unit in planned) < 1.6 * units.MIN_UNIT_BYTES
    assert len(planned[0].sources) > 10


def test_workers_keep_to_the_cores_of_the_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    assert pools.cores() == 1
