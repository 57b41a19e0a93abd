import os
import shutil

import numpy as np
import pytest

from electra_tf.config.pretraining import DataConfig
from electra_tf.data import pipeline, prepared, records
from electra_tf.data.prepared import given_data
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests.data import common

WORDS = ("wa", "wb", "wc", "wd")


def build(folder, *, words=WORDS, first=0, **options):
    folder.mkdir()
    lines = [" ".join(words[(n + k) % 4] for k in range(9 + n)) for n in range(40)]
    (folder / "text.txt").write_text("\n\n".join(lines[first:]))
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *words))
    options = {"max_seq_length": 32, "vocabulary": vocabulary, **options}
    return common.build(folder / "text.txt", folder, **options)


def given(*patterns, **options):
    patterns = tuple(map(str, patterns))
    return given_data(DataConfig(records=patterns, max_seq_length=32, **options), print)


def test_all_folders_count(tmp_path, capsys):
    first, second = build(tmp_path / "a"), build(tmp_path / "b", first=5)
    data = given(tmp_path / "a" / "*.tfrecord", tmp_path / "b")
    assert data.shards == (*first.train, *second.train)
    held_out = [tmp_path / name / "eval-00000-of-00001.tfrecord" for name in "ab"]
    assert data.eval_files == tuple(map(str, held_out))
    assert {path.split("/")[-2] for path in data.train_files} == {"a", "b"}
    assert not [path for path in data.train_files if "eval-" in path]
    assert given(tmp_path / "a").shards == first.train
    apart = given(tmp_path / "a", eval_records=(str(tmp_path / "b"),))
    assert apart.eval_files == data.eval_files[1:]
    assert apart.shards == first.train
    # Not without the manifest of one.
    (tmp_path / "b" / "manifest.json").unlink()
    assert given(tmp_path / "a", tmp_path / "b").shards is None
    assert f"{tmp_path / 'b'} has no manifest" in capsys.readouterr().out


def test_shards_are_those_that_are_read(corpus, tmp_path):
    whole = common.build(corpus, tmp_path / "a", max_seq_length=32)
    some = given(tmp_path / "a" / "train-0000[1-2]-*")
    assert some.shards == whole.train[1:3]
    (tmp_path / "a" / "train-other.tfrecord").touch()
    with pytest.raises(ValueError, match=r"train-other\.tfrecord is not in"):
        given(tmp_path / "a")


def test_different_vocabularies_are_refused(tmp_path):
    build(tmp_path / "a")
    build(tmp_path / "b", words=WORDS[::-1])
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(ValueError, match="different vocabularies") as caught:
        given(*folders)
    assert all(str(folder) in str(caught.value) for folder in folders)
    for patterns, options in (
        (folders, {"vocab_file": str(tmp_path / "a" / "vocab.txt")}),
        (folders[:1], {"eval_records": (str(tmp_path / "b"),)}),
    ):
        with pytest.raises(ValueError, match=r"records in .*b were built with another"):
            given(*patterns, **options)


def test_different_casings_and_longer_records_are_refused(tmp_path):
    build(tmp_path / "a")
    for name, options, message in (
        ("cased", {"lower_case": False}, "differ in lower_case"),
        ("long", {"max_seq_length": 64}, r"in .*long hold up to 64 tokens"),
    ):
        build(tmp_path / name, **options)
        with pytest.raises(ValueError, match=message):
            given(tmp_path / "a", tmp_path / name)
        with pytest.raises(ValueError, match=message):
            given(tmp_path / "a", eval_records=(str(tmp_path / name),))


def test_flags_that_do_not_fit_the_records_are_reported(tmp_path, capsys):
    build(tmp_path / "a", eval_fraction=0.2)
    train = str(tmp_path / "a" / "train-*")
    # The same files, by another path.
    again = os.path.relpath(train)
    assert given(train, lower_case=False, eval_records=(again,)).lower_case
    first, second = capsys.readouterr().out.splitlines()
    assert "warning: --nolower_case has no effect" in first
    assert "warning: 1 files are read for training and for evaluation" in second
    other = {"corpus": ("b.txt",), "data_dir": "b", "eval_fraction": 0.5}
    given(tmp_path / "a", **other, blank_lines_separate=False)
    told = capsys.readouterr().out
    for name in (*other, "blank_lines_separate"):
        assert f"warning: --{name} has no effect: --records are built" in told
    # Every step would train on padding.
    data = DataConfig(records=(str(tmp_path / "a"),), max_seq_length=512)
    given_data(data, print)
    assert "hold at most 32 tokens: --max_seq_length=512" in capsys.readouterr().out


def test_cased_tokens_of_records_without_a_manifest(tmp_path, capsys):
    build(tmp_path / "a", words=("Wa", "Wb", "Wc", "Wd"), lower_case=False)
    (tmp_path / "a" / "manifest.json").unlink()
    for lower_case in (True, False):
        given(tmp_path / "a", lower_case=lower_case)
        said = capsys.readouterr().out
        assert ("4 tokens of the vocabulary have capitals" in said) == lower_case


def test_tokens_of_all_corpora_are_counted(tmp_path, monkeypatch):
    """The counts were those of the first corpus alone."""
    monkeypatch.setattr(prepared, "COUNTED_RECORDS", 8)
    words = (*WORDS, "wx", "wy", "wz", "ww")
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *words))
    for name, part in (("a", words[:4]), ("b", words[4:])):
        build(tmp_path / name, words=part, vocabulary=vocabulary)
    counts = given(tmp_path / "a", tmp_path / "b").token_counts[5:]
    assert (counts > 0).all()


def test_records_with_a_scheme(tmp_path):
    manifest = build(tmp_path / "a")
    data, here = given(f"file://{tmp_path}/a"), given(tmp_path / "a")
    assert data.shards == here.shards == manifest.train
    assert data.vocabulary == here.vocabulary
    for split in ("train_files", "eval_files"):
        there = [f"file://{path}" for path in getattr(here, split)]
        assert list(getattr(data, split)) == there
    files = pipeline.expand_files(f"file://{tmp_path}/a/train-*.tfrecord")
    assert files == [*data.train_files]
    assert sum(map(records.count_records, files)) == manifest.num_records
    with pytest.raises(ValueError, match="No TFRecord file matches 'file:///nothing"):
        pipeline.expand_files("file:///nothing/x-*")
    rows = np.concatenate(common.examples(tmp_path / "a", "train"))
    assert data.token_counts[5:].tolist() == np.bincount(rows)[5:].tolist()
    # Neither padding nor the ends of rows are text.
    assert data.token_counts[[0, 2, 3]].tolist() == [0, 0, 0]
    shutil.copy(here.eval_files[0], here.train_files[0])
    with pytest.raises(ValueError, match=r"file://.* bytes, the manifest lists"):
        records.verify(f"file://{tmp_path}/a")
