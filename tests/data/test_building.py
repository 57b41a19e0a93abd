import contextlib
import gzip
import hashlib
from unittest import mock

import fsspec
import pytest

from electra_tf import files
from electra_tf.config.pretraining import DataConfig, PretrainConfig, RunConfig
from electra_tf.config.records import RecordsConfig
from electra_tf.data import building, installed, paths, records, units
from electra_tf.data.building import prepare_vocabulary
from electra_tf.data.records import MANIFEST, read_manifest, verify
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.systems.build import pretraining_data
from tests.data import common
from tests.data.common import VOCABULARY, WORDS, build, contents, examples, text
from tests.runs.test_trainer import Killed


def test_every_token_of_the_corpus_is_in_the_records(corpus, tmp_path):
    folder = tmp_path / "records"
    manifest = build(corpus, folder)
    train, held_out = examples(folder, "train"), examples(folder, "eval")
    rows = train + held_out
    found = sorted(i for row in rows for i in row if i >= len(SPECIAL_TOKENS))
    expected = WordPiece(VOCABULARY).encode(corpus.read_text().splitlines())
    assert found == sorted(i for line in expected for i in line.tolist())
    assert max(map(len, rows)) == 128
    assert verify(folder) == manifest
    assert manifest.num_records == len(train)
    assert manifest.num_tokens == sum(map(len, train))
    (shard,) = manifest.eval
    assert (shard.records, shard.tokens) == (len(held_out), sum(map(len, held_out)))
    assert shard.sha256 == paths.sha256(folder / shard.name)
    assert manifest.corpus["documents"] == 400
    assert manifest.corpus["lines"] == 4800
    assert len(manifest.train) >= 4
    assert Vocabulary.load(folder / "vocab.txt") == VOCABULARY
    assert not list(folder.glob(".build")), "no work files are left"


SMALL_SHARDS = {"shard_megabytes": 0.02}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "66db91bfbbaf9ec8"),
        ({"segmenting": "original"}, "b0e041807f73ab9d"),
        ({"blank_lines_separate": False}, "9f6723c17078d495"),
        ({"max_seq_length": 512, **SMALL_SHARDS, "seed": 3}, "b793a5ff25adcec5"),
    ],
)
def test_examples_are_those_of_older_versions(options, expected, tmp_path):
    """Hashes are from commit 0e87c07."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text(text(300))
    (folder / "b.txt").write_text(text(1, seed=1, lines=3000))
    packed = f"{text(20, seed=2)}\n \n\n{text(1, seed=3, lines=2000)}"
    (folder / "c.txt.gz").write_bytes(gzip.compress(packed.encode(), mtime=0))
    last = "\ufeff" + text(1, seed=4, lines=900).replace("\n", "\r\n\t")
    (folder / "d.txt").write_bytes(last.encode())
    build(folder, tmp_path / "a", **options)
    hashed = hashlib.sha256()
    for name, content in sorted(contents(tmp_path / "a").items()):
        if name.endswith(".tfrecord"):
            hashed.update(name.encode() + content)
    assert hashed.hexdigest()[:16] == expected


def test_the_commands_read_a_column(tmp_path):
    """A corpus may contain the run, whose vocabularies are not read as text."""
    rows = [{"body": document} for document in text(50).split("\n\n")]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.csv").write_bytes(common.table("a.csv", rows))
    options = {"corpus": (str(corpus),), "text_column": "body", "vocab_size": 200}
    building.main(RecordsConfig(output_dir=str(tmp_path / "out"), **options))
    assert verify(tmp_path / "out").corpus["documents"] == 50
    assert len(Vocabulary.load(tmp_path / "out" / "vocab.txt")) > 100
    run = RunConfig(model_dir=str(corpus / "run"))
    config = PretrainConfig(data=DataConfig(**options), run=run)
    for _ in range(2):
        data = pretraining_data(config, log=common.silent)
        assert verify(corpus / "run" / "data").corpus["documents"] == 50
        data.vocabulary.save(corpus / "run" / "vocab.txt")


def test_unknown_tokens_are_counted_and_questioned(corpus, tmp_path):
    told = []
    assert build(corpus, tmp_path / "a", log=told.append).corpus["unknown_tokens"] == 0
    assert not [line for line in told if "[UNK]" in line]
    corpus.write_text(corpus.read_text().replace("waa", "xxx").replace("wbb", "yyy"))
    manifest = build(corpus, tmp_path / "b", log=told.append)
    rows = examples(tmp_path / "b", "train")
    unknown = sum(row.count(VOCABULARY.unk_id) for row in rows)
    assert manifest.corpus["unknown_tokens"] == unknown > 0
    share = unknown / sum(map(len, rows))
    assert f"{share:.1%} of the tokens are [UNK]" in told[-2]


def test_flags_that_do_not_fit_the_vocabulary_are_reported(corpus, tmp_path):
    path, told = tmp_path / "vocab.txt", []
    Vocabulary((*VOCABULARY.tokens, "Waa", "##Wab")).save(path)
    options = {"vocab_file": str(path), "log": told.append}
    build(corpus, tmp_path / "a", vocabulary=None, **options)
    assert "2 tokens of the vocabulary have capitals or accents" in told[0]


def test_a_finished_build_is_reused_or_refused(corpus, tmp_path):
    folder, told = tmp_path / "records", []
    first = build(corpus, folder)
    stamp = (folder / first.train[0].name).stat().st_mtime_ns
    assert build(corpus, folder, log=told.append) == first
    assert "using them" in told[-1]
    # Also in a folder that cannot be written.
    refusal = PermissionError(13, "Permission denied")
    with (
        mock.patch.object(files.filelock.FileLock, "acquire", side_effect=refusal),
        mock.patch.object(files.os, "access", return_value=False),
    ):
        assert build(corpus, folder) == first
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        build(corpus, folder, seed=1)
    assert (folder / first.train[0].name).stat().st_mtime_ns == stamp
    build(corpus, folder, seed=1, overwrite=True)
    assert read_manifest(folder).settings["seed"] == 1
    corpus.write_text(text(401))
    with pytest.raises(ValueError, match="corpus_sha256"):
        build(corpus, folder, seed=1)


def test_foreign_files_are_not_touched(corpus, tmp_path):
    (tmp_path / "train-0.tfrecord").write_text("precious")
    with pytest.raises(ValueError, match="without a manifest"):
        build(corpus, tmp_path)
    (tmp_path / "train-0.tfrecord").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "other"]))
    with pytest.raises(ValueError, match="differs from the given vocabulary"):
        build(corpus, tmp_path)


@contextlib.contextmanager
def killed_after(count, step=units.BUILD):
    """Kills the build in the block after `count` units; yields the indices of these."""
    built = []
    original = units.Worker.run

    def interrupted(self, running, unit):
        if running == step:
            if len(built) == count:
                raise Killed
            built.append(unit.index)
        return original(self, running, unit)

    with mock.patch.object(units.Worker, "run", interrupted), pytest.raises(Killed):
        yield built


def test_a_resumed_build_equals_an_uninterrupted_one(corpus, tmp_path):
    """Also one that overwrites another."""
    folder, told = tmp_path / "records", []
    options = {"seed": 1, "overwrite": True, "log": told.append}
    build(corpus, folder)
    with killed_after(2):
        build(corpus, folder, **options)
    with pytest.raises(ValueError, match=r"unfinished build .* max_seq_length is"):
        build(corpus, folder, seed=1, max_seq_length=64)
    # While shards get their names.
    saving = mock.patch.object(records.Manifest, "save", side_effect=Killed)
    with saving, pytest.raises(Killed):
        build(corpus, folder, **options)
    assert "2 of 6 units are finished already" in told
    build(corpus, folder, **options)
    build(corpus, tmp_path / "whole", seed=1)
    assert contents(folder) == contents(tmp_path / "whole")
    told.clear()
    build(corpus, folder, **options)
    assert not any("already" in line for line in told), "finished ones are rebuilt"


def test_text_with_a_scheme(corpus, tmp_path):
    here = build(corpus, tmp_path / "here")
    memory = fsspec.filesystem("memory")
    memory.pipe("/text/corpus.txt", corpus.read_bytes())
    assert build("memory://text/*.txt", tmp_path / "there").train == here.train
    with pytest.raises(ValueError, match="gs://x is remote"):
        build(corpus, "gs://x")


def test_tables_and_compressed_files_give_the_records_of_plain_ones(tmp_path):
    content = text(400)
    (tmp_path / "a.txt").write_text(f"{content}\n\n")
    rows = [{"text": document} for document in content.split("\n\n")]
    plain = build(tmp_path / "a.txt", tmp_path / "plain", **SMALL_SHARDS)
    assert len(plain.train) > 1
    for name in ("a.txt.gz", "a.jsonl.xz", "a.parquet"):
        data = content.encode() if ".txt" in name else common.table(name, rows)
        (tmp_path / name).write_bytes(common.packed(name, data))
        manifest = build(tmp_path / name, tmp_path / f"from {name}", **SMALL_SHARDS)
        assert manifest.train == plain.train, name


def test_a_corrected_corpus_builds_without_overwriting(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"\n \n")
    with pytest.raises(ValueError, match="the corpus is empty"):
        build(path, tmp_path / "out")
    path.write_text(text(3))
    build(path, tmp_path / "out")


def test_finished_records_do_without_their_text(corpus, tmp_path):
    manifest = build(corpus, tmp_path / "records")
    corpus.unlink()
    told = []
    assert build(corpus, tmp_path / "records", log=told.append) == manifest
    assert "the text is missing" in told[0]
    for path, options, message in (
        (corpus, {"seed": 1}, "seed is 0 there and 1 here"),
        (corpus, {"overwrite": True}, "not a file or folder"),
        (tmp_path / "typo.txt", {}, "not a file or folder"),
    ):
        with pytest.raises(ValueError, match=message):
            build(path, tmp_path / "records", **options)
    assert verify(tmp_path / "records") == manifest


def test_other_installed_packages_are_a_warning(tmp_path, monkeypatch):
    documents = [document.split("\n") for document in text(60).split("\n\n")]
    monkeypatch.setattr(installed, "documents", lambda: iter(documents))
    monkeypatch.setattr(installed, "fingerprint", lambda: "before")
    manifest = build("installed", tmp_path / "records")
    monkeypatch.setattr(installed, "fingerprint", lambda: "after")
    told = []
    assert build("installed", tmp_path / "records", log=told.append) == manifest
    assert "installed packages has changed" in told[0]
    assert "--overwrite" in told[0]
    with pytest.raises(ValueError, match="max_seq_length is 128 there and 64 here"):
        build("installed", tmp_path / "records", max_seq_length=64)


# The vocabulary of a build.


@pytest.fixture
def words_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([" ".join(WORDS), "\u00c9t\u00e9 Winter"] * 3))
    return path


@pytest.fixture
def prepare(words_file, tmp_path, monkeypatch):
    """Runs `prepare_vocabulary` in one folder; `trained` counts the trainings."""

    def call(size=80, **options):
        places = {"corpus": (str(words_file),), "output_dir": str(tmp_path / "made")}
        config = RecordsConfig(**places, vocab_size=size, **options)
        return prepare_vocabulary(config, log=common.silent)

    call.trained = mock.Mock(wraps=building.train_vocabulary)
    monkeypatch.setattr(building, "train_vocabulary", call.trained)
    return call


def test_it_is_trained_once(prepare, words_file, tmp_path):
    vocabulary = prepare()
    assert len(vocabulary) == 80
    assert prepare() == prepare(overwrite=True) == vocabulary
    assert prepare.trained.call_count == 1
    with pytest.raises(ValueError, match="has 80 tokens, more than 40"):
        prepare(40)
    # Overwriting begins after the corpus was found.
    words_file.unlink()
    with pytest.raises(ValueError, match="not a file or folder"):
        prepare(overwrite=True, lower_case=False)
    assert Vocabulary.load(tmp_path / "made" / "vocab.txt") == vocabulary


def test_a_stale_one_is_refused_or_trained_anew(prepare, words_file, tmp_path):
    prepare()
    with pytest.raises(ValueError, match="lower_case is True there and False here"):
        prepare(lower_case=False)
    cased = prepare(lower_case=False, overwrite=True)
    assert "W" in cased.tokens
    words_file.write_text("another text, another text")
    with pytest.raises(ValueError, match="the text has changed"):
        prepare(lower_case=False)
    # With existing records, the vocabulary is not checked against the text.
    (tmp_path / "made" / MANIFEST).write_text("{}")
    assert prepare(lower_case=False) == cased
    words_file.unlink()
    assert prepare(lower_case=False) == cased
    assert prepare.trained.call_count == 2


def test_a_file_of_ones_own_is_used_as_it_is(prepare, tmp_path):
    own = prepare()
    path = tmp_path / "made" / "vocab.txt"
    path.write_text(path.read_text().replace("waa", "WAA"))
    for options in ({}, {"overwrite": True}):
        assert prepare(lower_case=False, **options).tokens != own.tokens
    assert prepare.trained.call_count == 1
