import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data import records
from electra_tf.data.pipeline import parse_batch
from electra_tf.data.records import count_records, read_manifest, verify, write_shard
from tests.data import common

EXAMPLES = [[2, 7, 3], [2, 30_521, 8, 3, 9, 3], [2, 3]]


def test_written_examples_are_read_back(tmp_path):
    path = tmp_path / "a.tfrecord"
    shard = write_shard(path, iter(EXAMPLES))
    assert (shard.name, shard.records, shard.tokens) == ("a.tfrecord", 3, 11)
    assert shard.size == path.stat().st_size
    assert count_records(path) == 3
    original = common.original_record([2, 0, 3], 8)
    written = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    rows = parse_batch(tf.constant([original, *written]))
    assert rows.to_list() == [[2, 0, 3], *EXAMPLES]
    assert rows.dtype == tf.int32
    assert rows.shape.as_list() == [4, None]


def test_counting_names_the_place_of_the_damage(tmp_path):
    path = tmp_path / "a"
    write_shard(path, EXAMPLES)
    whole = path.read_bytes()
    size = write_shard(tmp_path / "first", EXAMPLES[:1]).size
    for content, message in (
        (whole[:-3], f"cut off at byte {len(whole) - 3}, in a"),
        (whole[: size + 5], f"cut off at byte {size + 5}, in a"),
        (whole[:size] + b"\1" + whole[size + 1 :], f"no record starts at byte {size} "),
        (b"this is text, not records", "no record starts at byte 0 "),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"a: {message}"):
            count_records(path)


def test_an_empty_or_negative_example_is_refused(tmp_path):
    """Skipping an empty one would shift the following examples."""
    for row, message in (([], "has no token ids"), ([2, -1, 3], "a token id is neg")):
        row = np.array(row, np.int32)
        for rows in ([row, [2, 7, 3]], [[2, 7, 3], row]):
            with pytest.raises(ValueError, match=f"a: .*{message}"):
                write_shard(tmp_path / "a", rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("length", "largest"),
    [(1, 1), (125, 127), (7, 128), (512, 30_521), (125, 2**21), (5000, 2**31 - 1)],
)
def test_the_bytes_are_those_of_tensorflow(length, largest, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "WRITTEN_AT_ONCE", 4)
    rng = np.random.default_rng(length)
    sizes = (*range(1, length, 397), length, 3, length)
    rows = [rng.integers(0, largest, size, endpoint=True) for size in sizes]
    rows += [np.full(4, largest), np.zeros(2, np.int32)]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for row in rows:
            ids = tf.train.Feature(int64_list=tf.train.Int64List(value=row.tolist()))
            features = tf.train.Features(feature={"input_ids": ids})
            writer.write(tf.train.Example(features=features).SerializeToString())
    shard = write_shard(tmp_path / "ours", [row.astype(np.int32) for row in rows])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert (shard.records, shard.tokens) == (len(rows), sum(map(len, rows)))


def test_missing_and_truncated_files(tmp_path):
    shards = [write_shard(tmp_path / name, EXAMPLES) for name in ("train-0", "train-1")]
    common.save_manifest(tmp_path, common.VOCABULARY, shards, max_seq_length=128)
    path = tmp_path / "train-1"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=f"train-1: has {len(whole) - 1} bytes, the"):
        verify(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="train-1: missing"):
        verify(tmp_path)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format_version": 99}))
    with pytest.raises(ValueError, match="format 99"):
        read_manifest(tmp_path)
    path.write_bytes(json.dumps(content).encode().replace(b"train-0", b"train-\xff"))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"manifest\.json does not exist"):
        read_manifest(tmp_path)
