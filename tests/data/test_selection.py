import json
import random
import re
import sys

import numpy as np
import pytest

from electra_tf.config.records import RecordsConfig
from electra_tf.data import units
from electra_tf.data.records import read_manifest
from electra_tf.data.selection import REASONS, Reader, judge, shingles
from tests.data.common import WORDS, build, contents, examples, packed, table, text
from tests.data.test_building import killed_after


def verdicts(documents, **options):
    chosen = RecordsConfig(**options)
    hashes, own, signatures = zip(*map(Reader(chosen), documents), strict=True)
    arrays = np.array(hashes, np.uint64), np.array(own, np.uint8), np.stack(signatures)
    return [REASONS[number] for number in judge(chosen, *arrays)]


def test_short_documents_and_copies_by_hand():
    """A copy of a document that is not kept is not a duplicate."""
    documents = [["1234", "567"], ["1234", "5678"]] * 2
    found = verdicts(documents, dedup="exact", min_characters=8)
    assert found == ["too_short", "kept", "too_short", "duplicate"]
    assert verdicts(documents, min_characters=8) == ["too_short", "kept"] * 2
    assert verdicts(documents) == ["kept"] * 4


def test_shingles():
    first, second = shingles(["One, two", "three", "four FIVE six"])
    assert (first, second) == (b"one two three four five", b"two three four five six")
    assert [*shingles(["a", "b-c"])] == [b"a b c"]
    assert len([*shingles(["\u4e2d\u6587" * 5])]) == 6
    # Otherwise all documents of emoji were near duplicates of each other.
    assert [*shingles(["\U0001f600", "!"])] == ["\U0001f600 !".encode()]
    # Words with vowel signs and accents are single words.
    for word in ("\u0939\u093f\u0928\u094d\u0926\u0940", "re\u0301sume\u0301"):
        assert [*shingles([f"{word} {word}"])] == [f"{word} {word}".encode()]


def test_evaluation_text_is_found_in_any_format(tmp_path):
    words = WORDS[:13]
    (tmp_path / "a.tsv").write_text(f"id\ttext\n1\t{' '.join(WORDS[20:40])}\tragged")
    nested = {"data": [{"question": " ".join(words).upper() + "?", "answers": []}]}
    (tmp_path / "b.json").write_text(json.dumps(nested))
    (tmp_path / "c.txt.gz").write_bytes(packed("c.gz", b"Title\nA short text."))
    documents = [
        ["before", " ".join(words[:6]) + ",", " ".join(words[6:]) + " after"],
        [" ".join(words[:12])],
        [" ".join(WORDS[15:50])],
        ["a SHORT text"],
        ["a short text", "in another one"],
        ["--"],
    ]
    found = verdicts(documents, decontaminate=(str(tmp_path / "*"),), min_characters=3)
    assert found[:3] == ["contaminated", "kept", "contaminated"]
    assert found[3:] == ["contaminated", "kept", "too_short"]


def jaccard(one, other):
    """Returns the exact Jaccard similarity of the 5-grams of space-separated words."""
    first, second = (
        set(zip(*(words[at:] for at in range(5)), strict=False))
        for words in (" ".join(document).split() for document in (one, other))
    )
    return len(first & second) / len(first | second)


def test_near_duplicates_are_those_of_brute_force():
    threshold = 0.6
    rng = random.Random(0)
    documents = []
    for _ in range(40):
        words = rng.choices(WORDS, k=300)
        for changed in (0, *rng.choices((0, 1, 2, 4, 20), k=rng.randrange(4))):
            other = list(words)
            for place in rng.sample(range(300), changed):
                other[place] = "other"
            documents.append([" ".join(other[at : at + 7]) for at in range(0, 300, 7)])
    rng.shuffle(documents)
    found = verdicts(documents, dedup="near", near_similarity=threshold)
    closest = [
        max((jaccard(one, other) for other in documents[:number]), default=0)
        for number, one in enumerate(documents)
    ]
    for verdict, similarity in zip(found, closest, strict=True):
        # The standard deviation of the estimate is 0.04.
        if abs(similarity - threshold) > 0.12:
            assert (verdict == "kept") == (similarity < threshold), similarity
        assert (verdict == "duplicate") == (similarity == 1)
    assert min(map(found.count, ("kept", "duplicate", "near_duplicate"))) >= 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Writes 300 documents, 40 copies, 30 near-copies and 20 short documents."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = text(300).split("\n\n")
    near = [document.replace("waa", "wbb", 1) for document in documents[50:80]]
    short = [f"{word} {word}" for word in WORDS[:20]]
    mixed = [*documents, *documents[:40], *near, *short]
    random.Random(1).shuffle(mixed)
    (folder / "a.txt").write_text("\n\n".join(mixed[:195]))
    (folder / "b.txt").write_text("\n\n".join(mixed[195:]))
    return folder


NEAR = {"dedup": "near", "shard_megabytes": 0.02}


@pytest.fixture(scope="module")
def near(corpus, tmp_path_factory):
    pytest.importorskip("datasketch")
    folder = tmp_path_factory.mktemp("near")
    build(corpus, folder, **NEAR)
    return folder


def tokens(folder):
    rows = examples(folder, "train") + examples(folder, "eval")
    return sorted(i for row in rows for i in row if i > 4)


def test_records_are_those_of_the_text_that_is_kept(corpus, tmp_path):
    told = []
    chosen = {"dedup": "exact", "min_characters": 20}
    manifest = build(corpus, tmp_path / "a", log=told.append, **chosen)
    whole = "\n\n".join((corpus / name).read_text() for name in ("a.txt", "b.txt"))
    unique = [d for d in dict.fromkeys(whole.split("\n\n")) if len(d) > 20]
    (tmp_path / "unique.txt").write_text("\n\n".join(unique))
    expected = build(tmp_path / "unique.txt", tmp_path / "b")
    assert tokens(tmp_path / "a") == tokens(tmp_path / "b")
    copies = whole.count("\n\n") + 1 - 20 - len(unique)
    dropped = {"too_short": 20, "duplicate": copies, "sources": [str(corpus)]}
    assert manifest.corpus == expected.corpus | dropped
    assert f"left out documents: 20 too short, {copies} duplicate; kept" in told[-2]
    assert "dedup" not in expected.settings, "older records are the same ones"
    with pytest.raises(ValueError, match="dedup is 'exact' there and None here"):
        build(corpus, tmp_path / "a")


def test_records_without_evaluation_text(corpus, tmp_path):
    evaluation = tmp_path / "evaluation" / "a.txt"
    evaluation.parent.mkdir()
    evaluation.write_text(text(300).split("\n\n")[7].splitlines()[3])
    told = []
    options = {"decontaminate": [str(evaluation)], "log": told.append}
    manifest = build(corpus, tmp_path / "a", **options)
    assert manifest.corpus["contaminated"] == 2, "the document and its copy"
    assert any("2 contaminated" in line for line in told)
    assert build(corpus, tmp_path / "a", **options) == manifest
    folder = {**options, "decontaminate": [str(evaluation.parent)]}
    (evaluation.parent / "test.jsonl").write_text('{"text": "not read"}\n')
    told.clear()
    assert build(corpus, tmp_path / "a", **folder) == manifest
    assert re.search(r"not read: .*test\.jsonl", told[0])
    evaluation.write_text("another evaluation text")
    with pytest.raises(ValueError, match="decontaminate is '"):
        build(corpus, tmp_path / "a", **options)


def test_near_duplicates_go_across_files_and_units(near):
    manifest = read_manifest(near)
    assert len(manifest.train) > 4
    # Some of the 30 near-copies lack the changed word and are exact copies.
    assert manifest.corpus["duplicate"] + manifest.corpus["near_duplicate"] == 70
    assert manifest.corpus["documents"] == 320


def test_a_build_that_is_killed_while_it_reads_goes_on(corpus, tmp_path):
    options = {"dedup": "exact", "shard_megabytes": 0.02}
    build(corpus, tmp_path / "whole", **options)
    with killed_after(2, units.READ):
        build(corpus, tmp_path / "resumed", **options)
    with killed_after(2, units.READ) as read:
        build(corpus, tmp_path / "resumed", **options)
    assert read == [2, 3], "units are not read again"
    build(corpus, tmp_path / "resumed", **options)
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")


@pytest.mark.slow
def test_the_number_of_processes_does_not_matter(corpus, near, tmp_path, monkeypatch):
    build(corpus, tmp_path / "other", seed=1, **NEAR)
    assert contents(near) != contents(tmp_path / "other")
    monkeypatch.setattr(units, "BYTES_WORTH_A_PROCESS", 1)
    build(corpus, tmp_path / "two", **NEAR)
    assert contents(near) == contents(tmp_path / "two")


@pytest.mark.slow
def test_beam_builds_the_same_records(corpus, near, tmp_path):
    pytest.importorskip("apache_beam", reason="needs requirements-beam.txt")
    runner = "--runner=DirectRunner"
    apart = f"{runner} --direct_running_mode=multi_processing --direct_num_workers=2"
    build(corpus, tmp_path / "apart", beam=apart, **NEAR)
    assert contents(tmp_path / "apart") == contents(near)
    source = tmp_path / "table.jsonl.zst"
    rows = [{"text": text} for text in (corpus / "a.txt").read_text().split("\n\n")]
    source.write_bytes(packed(source, table(source.name, rows)))
    options = {"decontaminate": [str(corpus / "b.txt")], "shard_megabytes": 0.02}
    build(source, tmp_path / "local", **options)
    build(source, tmp_path / "piped", beam=runner, **options)
    assert contents(tmp_path / "piped") == contents(tmp_path / "local")
    (tmp_path / "a.txt").write_bytes(b"waa wab\n\nwac\0")
    with pytest.raises(ValueError, match=r"a\.txt: looks binary"):
        build(tmp_path / "a.txt", tmp_path / "out", beam=runner)


def test_a_missing_package_is_named(corpus, tmp_path, monkeypatch):
    """Before a vocabulary is trained."""
    for module, options, message in (
        ("apache_beam", {"beam": "--a"}, "pip install 'apache-beam"),
        ("datasketch", {"dedup": "near"}, "needs the package datasketch"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ValueError, match=message):
            build(corpus, tmp_path / "out", vocabulary=None, vocab_size=200, **options)
        assert not (tmp_path / "out").exists()
