"""Runs on records that are damaged: one line that names the file and the record."""

import shutil

import pytest

from electra_tf.data import records
from electra_tf.data.vocabulary import Vocabulary
from tests.end_to_end import in_process


@pytest.fixture
def data(text, tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    shutil.copy(text / "vocab.txt", folder)
    words = range(5, 20)
    rows = [[2, *words, 3] for _ in range(40)]
    records.write_shard(folder / "train-0.tfrecord", rows)
    return folder


def run(text, data, tmp_path):
    flags = (f"--records={data}", f"--vocab_file={data / 'vocab.txt'}")
    return in_process.run(text, tmp_path / "run", *flags, "--shuffle_buffer=1")


def test_a_flipped_bit(text, data, tmp_path):
    path = data / "train-0.tfrecord"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-0\.tfrecord: record 40 is damaged"):
        run(text, data, tmp_path)


@pytest.mark.slow
def test_an_id_beyond_the_vocabulary(text, data, tmp_path):
    path, size = data / "train-0.tfrecord", len(Vocabulary.load(data / "vocab.txt"))
    records.write_shard(path, [[2, 5, 3]] * 39 + [[2, size, 3]])
    with pytest.raises(ValueError, match=r"record 40 is damaged .*beyond the voc") as e:
        run(text, data, tmp_path)
    assert "\n" not in str(e.value)
