import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import cli
from electra_tf.config.pretraining import DataConfig
from electra_tf.data import pipeline, prepared, records
from electra_tf.data.masking import Masking
from electra_tf.data.vocabulary import Vocabulary
from tests.end_to_end import in_process

COUNT, LONGEST = 40, 20


def framed(row):
    """The bytes of one record in a shard."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.tfrecord"
        records.write_shard(path, [row])
        return path.read_bytes()


SIZE = len(framed([2, *range(5, 21), 3]))


def rows():
    """Rows of one length, so that the offset of a record is known."""
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
    return lambda c: c[:place] + bytes([c[place] ^ 4]) + c[place + 1 :]


def foreign_examples(_):
    feature = {"image": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))}
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    with tempfile.NamedTemporaryFile() as file:
        with tf.io.TFRecordWriter(file.name) as writer:
            for _ in range(3):
                writer.write(example.SerializeToString())
        return Path(file.name).read_bytes()


def other_row(row):
    return lambda c: c[: 7 * SIZE] + framed(row) + c[8 * SIZE :]


# Name -> a change of the file and the expected error.
DAMAGES = {
    "a flipped bit in a record": (flipped(7 * SIZE + 30), "record 8 is damaged"),
    "a flipped bit in a checksum": (flipped(8 * SIZE - 1), "record 8 is damaged"),
    "a flipped bit in a length": (flipped(7 * SIZE), "no record starts at byte"),
    "a flipped bit in the first length": (flipped(2), "no record starts at byte 0"),
    "truncated in a record": (lambda c: c[: 7 * SIZE + 30], "cut off at byte"),
    "truncated in a length": (lambda c: c[: 7 * SIZE + 5], "cut off at byte"),
    "zeros in the middle": (
        lambda c: c[: 7 * SIZE] + bytes(SIZE) + c[8 * SIZE :],
        "no record starts at byte",
    ),
    "text": (lambda c: b"this is not a record\n" * 50, "no record starts at byte 0"),
    "records of something else": (foreign_examples, "a record has no input_ids"),
    "an id beyond the vocabulary": (other_row([2, 2000, 3]), "record 8 is damaged"),
    "a negative id": (other_row([2, 2**63 - 1, 3]), "record 8 is damaged"),
}


def batches(files, size, *, training):
    masking = Masking(size, 4, never_masked=(2, 3), max_seq_length=LONGEST)
    options = {"batch_size": 8, "masking": masking, "sep_id": 3, "training": training}
    return pipeline.pretraining_dataset(files, **options)


def damage(data, name):
    """Changes the first file; returns the pattern of the error."""
    change, message = DAMAGES[name]
    path = data / "train-0.tfrecord"
    path.write_bytes(change(path.read_bytes()))
    return rf"train-0\.tfrecord: {message}"


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(data, name):
    message = damage(data, name)
    files = pipeline.expand_files(data)
    size = len(Vocabulary.load(data / "vocab.txt"))
    with pytest.raises(ValueError, match=message), pipeline.naming_damage(files, size):
        list(batches(files, size, training=False))


def test_empty_shards_hold_no_records_and_are_counted(data):
    """The original builder writes empty shards, and its file names are accepted."""
    for number in range(4):
        path = data / f"train-{number}.tfrecord"
        path.touch()
        path.rename(data / f"pretrain_data.tfrecord-{number}-of-4")
    said = []
    config = DataConfig(records=(str(data),), max_seq_length=LONGEST)
    found = prepared.given_data(config, said.append)
    assert len(found.train_files) == 4
    assert "2 of 4 record files are empty (0 bytes, 0 records)" in said[-1]
    for training in (True, False):
        stream = batches(found.train_files, 100, training=training).take(2 * COUNT // 8)
        ids = np.concatenate([batch["input_ids"] for batch in stream])[:, :18]
        assert sorted(ids.tolist()) == sorted(rows() * 2)


def run(text, data, folder, *more):
    flags = (f"--records={data}", f"--vocab_file={data / 'vocab.txt'}")
    return in_process.run(text, folder, *flags, "--shuffle_buffer=1", *more)


def test_damage_stops_the_run(text, data, tmp_path):
    with pytest.raises(ValueError, match=damage(data, "text")) as caught:
        run(text, data, tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_run_that_met_damage_goes_on_with_the_right_file(text, data, tmp_path):
    path, folder = data / "train-0.tfrecord", tmp_path / "run"
    whole = path.read_bytes()
    # An id beyond the vocabulary, two bytes long, with a valid checksum.
    wrong = framed([2, 2000, *range(5, 19), 3])
    path.write_bytes(whole[: 30 * SIZE] + wrong + whole[31 * SIZE :])
    with pytest.raises(ValueError, match=r"train-0\.tfrecord: record 31 is damaged"):
        run(text, data, folder, "--num_train_steps=9")
    path.write_bytes(whole)
    code, said = run(text, data, folder, "--num_train_steps=9")
    assert code == cli.OK
    assert any(line.startswith("resuming after step") for line in said)
