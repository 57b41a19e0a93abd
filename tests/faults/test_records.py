"""Record files with every kind of damage: fatal, or skipped and counted, by flag."""

import json
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import cli
from electra_tf.data import damage, pipeline, records
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.files import read_json_lines
from tests.data.common import save_manifest
from tests.end_to_end import in_process

COUNT, LONGEST = 40, 20
SIZE = 12 + len(records.serialize([2, *range(5, 21), 3])) + 4


def rows():
    """Of one length, so that the place of a record in the file is known."""
    return [[2, *range(5, 19), 5 + n % 20, 5 + n // 20, 3] for n in range(COUNT)]


@pytest.fixture
def data(text, tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    shutil.copy(text / "vocab.txt", folder)
    for name in ("train-0", "train-1"):
        records.write_shard(folder / f"{name}.tfrecord", rows())
    return folder


def flipped(place):
    def flip(content):
        content = bytearray(content)
        content[place] ^= 4
        return bytes(content)

    return flip


def foreign_examples(content):
    del content
    feature = {"image": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))}
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    record = example.SerializeToString()
    length = struct.pack("<Q", len(record))
    framed = length + records._masked_crcs([length]).tobytes()
    return (framed + record + records._masked_crcs([record]).tobytes()) * 3


def other_rows(row):
    def write(content):
        start = 7 * SIZE
        return content[:start] + records._framed([row]) + content[start + SIZE :]

    return write


# What is done to a file, the numbers (from 1) of the records that are lost, and the
# number of records that are found.
DAMAGES = {
    "a flipped bit in a record": (flipped(7 * SIZE + 30), [8], COUNT),
    "a flipped bit in a checksum": (flipped(8 * SIZE - 1), [8], COUNT),
    "a flipped bit in a length": (flipped(7 * SIZE), [8], COUNT),
    "a flipped bit in the first length": (flipped(2), [1], COUNT),
    "truncated in a record": (lambda c: c[: 7 * SIZE + 30], [8], 8),
    "truncated in a length": (lambda c: c[: 7 * SIZE + 5], [8], 8),
    "zeros in the middle": (
        lambda c: c[: 7 * SIZE] + bytes(SIZE) + c[8 * SIZE :],
        [8],
        COUNT,
    ),
    "zero-length": (lambda c: b"", [1], 1),
    "text": (lambda c: b"nothing of this is a record\n" * 50, [1], 1),
    "records of something else": (foreign_examples, [1, 2, 3], 3),
    "an id beyond the vocabulary": (other_rows([2, 2000, 3]), [8], COUNT),
    "a negative id": (other_rows([2, 2**63 - 1, 3]), [8], COUNT),
    "too long": (other_rows([2] * (LONGEST + 1)), [8], COUNT),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_skipped_in_its_place(data, tmp_path, name):
    change, lost, total = DAMAGES[name]
    path = data / "train-0.tfrecord"
    path.write_bytes(change(path.read_bytes()))
    paths, said = pipeline.expand_files(data), []
    copies, skipped = damage.skip(
        paths,
        tmp_path / "copies",
        vocab_size=len(Vocabulary.load(data / "vocab.txt")),
        max_seq_length=LONGEST,
        log=said.append,
    )
    assert skipped == len(lost)
    assert list(copies) == [str(path)]
    (line,) = said
    numbers = ", ".join(map(str, lost[:3]))
    assert f"{path} is damaged: {skipped} of {total} records are skipped" in line
    assert f"(number {numbers}" in line
    (copy,) = copies.values()
    found = list(tf.data.TFRecordDataset(copy).batch(100).map(pipeline.parse_batch))
    wanted = [[] if n + 1 in lost else row for n, row in enumerate(rows()[:total])]
    assert found[0].to_list() == wanted


def test_what_the_manifest_counts_keeps_its_place(data, tmp_path):
    """A file that is cut off: those after it in the pass stay where they were."""
    shards = [records._shard(p, p, COUNT, 18 * COUNT) for p in sorted(data.glob("t*"))]
    path = data / "train-0.tfrecord"
    path.write_bytes(path.read_bytes()[: 7 * SIZE])
    vocabulary = Vocabulary.load(data / "vocab.txt")
    save_manifest(data, vocabulary, shards, max_seq_length=20)
    paths = pipeline.expand_files(data)
    with pytest.raises(ValueError, match=r"train-0\.tfrecord: has .*\(truncated copy"):
        pipeline.count_all(paths)
    copies, skipped = damage.skip(
        paths,
        tmp_path / "copies",
        vocab_size=len(vocabulary),
        max_seq_length=20,
        log=lambda line: None,
    )
    assert skipped == COUNT - 7
    assert pipeline.count_all(pipeline.applied(copies, paths), copies) == 2 * COUNT


def test_nothing_left_is_an_error(data, tmp_path):
    for path in data.glob("*.tfrecord"):
        path.write_bytes(b"")
    options = {"vocab_size": 100, "max_seq_length": 20, "log": lambda line: None}
    with pytest.raises(ValueError, match="None of the records in 2 files is whole"):
        damage.skip(pipeline.expand_files(data), tmp_path / "copies", **options)


def run(text, data, folder, *more):
    flags = (f"--records={data}", f"--vocab_file={data / 'vocab.txt'}")
    return in_process.run(text, folder, *flags, "--shuffle_buffer=1", *more)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zero-length", r"train-0\.tfrecord holds no record: .*=skip"),
        ("text", r"train-0\.tfrecord: no record starts at byte 0"),
        ("truncated in a record", r"train-0\.tfrecord: cut off at byte"),
        ("records of something else", r"train-0\.tfrecord: a record has no input_ids"),
    ],
)
def test_damage_that_is_found_at_once_stops_the_run(
    text, data, tmp_path, name, message
):
    path = data / "train-0.tfrecord"
    path.write_bytes(DAMAGES[name][0](path.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        run(text, data, tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_run_that_met_damage_goes_on_without_it(text, data, tmp_path):
    """Named and fatal first; then counted, and all other batches are the same."""
    path, folder = data / "train-0.tfrecord", tmp_path / "run"
    whole = path.read_bytes()
    path.write_bytes(flipped(30 * SIZE + 30)(whole))
    with pytest.raises(ValueError, match=r"train-0\.tfrecord: record 31 is damaged"):
        run(text, data, folder, "--num_train_steps=9")
    skip = ("--num_train_steps=9", "--damaged_records=skip")
    code, said = run(text, data, folder, *skip)
    assert code == cli.OK
    assert any("1 of 40 records are skipped (number 31)" in line for line in said)
    assert any(line.startswith("resuming after step") for line in said)
    metrics = read_json_lines(folder / "metrics.jsonl")
    assert [row["skipped_records"] for row in metrics if "skipped_records" in row] == [
        1
    ]
    assert np.isfinite([row["loss"] for row in metrics if "loss" in row]).all()
    described = json.loads((folder / "config.json").read_text())
    assert described["config"]["damaged_records"] == "skip"
