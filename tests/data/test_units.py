"""Units: held-out documents, splitting and grouping, processes."""

import pytest

from electra_tf.data import units
from electra_tf.data.corpora import open_corpus
from electra_tf.data.selection import facts
from tests.data.common import WORDS, build, contents, examples, text


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(400))
    return path


def test_held_out_documents_are_chosen_by_their_text(corpus, tmp_path):
    build(corpus, tmp_path / "a", eval_fraction=0.1)
    held_out = {tuple(row) for row in examples(tmp_path / "a", "eval")}
    share = len(held_out) / len(examples(tmp_path / "a", "train"))
    assert 0.05 < share < 0.2
    longer = tmp_path / "longer.txt"
    longer.write_text(f"{text(50, seed=9)}\n\n{corpus.read_text()}")
    documents = longer.read_text().split("\n\n")
    sides = {d: facts(d.split("\n")).hash for d in documents}
    held_out = units.hold_out(documents_of(longer), 0.1)
    assert (
        held_out == units.hold_out(documents_of(corpus), 0.1) == range(int(0.1 * 2**64))
    )
    assert 0.05 < sum(side in held_out for side in sides.values()) / len(sides) < 0.2


def documents_of(path):
    (source,) = open_corpus([str(path)])
    return source.documents()


@pytest.mark.parametrize("fraction", [1e-9, 0.999])
def test_at_least_one_document_is_held_out_and_never_all(fraction, tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(30))
    build(path, tmp_path / "records", eval_fraction=fraction)
    assert examples(tmp_path / "records", "train")
    assert examples(tmp_path / "records", "eval")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fraction", [0.01, 0.3])
def test_a_document_that_is_nearly_all_of_the_corpus_is_not_held_out(
    seed, fraction, tmp_path
):
    """Holds for either order of the hashes and either side of the bound."""
    (tmp_path / "large.txt").write_text(text(1, seed=seed, lines=900))
    (tmp_path / "small.txt").write_text(text(1, seed=seed + 100, lines=3))
    small = sum(map(len, (tmp_path / "small.txt").read_text().splitlines()))
    manifest = build(tmp_path, tmp_path / "records", eval_fraction=fraction)
    assert sum(shard.tokens for shard in manifest.eval) < small
    assert manifest.eval
    assert manifest.num_tokens > 900 * 20


def test_nothing_is_held_out_of_few_large_documents_and_that_is_said(tmp_path):
    path = tmp_path / "corpus.txt"
    for documents in (1, 3):
        path.write_text(text(documents))
        told = []
        manifest = build(path, tmp_path / str(documents), log=told.append)
        assert manifest.eval == ()
        (line,) = [line for line in told if "no document is held out" in line]
        assert "--eval_records" in line


def test_nothing_is_held_out_at_zero(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(5))
    told = []
    manifest = build(path, tmp_path / "a", eval_fraction=0, log=told.append)
    assert manifest.eval == ()
    assert not [line for line in told if "no document is held out" in line]


@pytest.mark.slow
def test_output_does_not_depend_on_the_number_of_processes(corpus, tmp_path):
    build(corpus, tmp_path / "one", num_processes=1)
    build(corpus, tmp_path / "two", num_processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    build(corpus, tmp_path / "other", seed=1)
    assert contents(tmp_path / "one") != contents(tmp_path / "other")


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
