import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data import pipeline, records
from electra_tf.data.masking import Masking
from electra_tf.data.pipeline import expand_files, pretraining_dataset
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.features import PRETRAINING, derive_inputs
from tests.data.common import original_record, save_manifest

PAD, UNK, CLS, SEP, MASK = range(5)
LENGTH, VOCAB = 16, 200


def masking(**options):
    options = {"never_masked": (CLS, SEP), "max_seq_length": LENGTH, **options}
    return Masking(VOCAB, MASK, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Writes 37 records in three shards; the fifth token is the record's number."""
    folder = tmp_path_factory.mktemp("records")
    for shard, numbers in enumerate((range(15), range(15, 30), range(30, 37))):
        rows = [[CLS, 50, 51, 52, 100 + n, SEP, 60, 61, SEP] for n in numbers]
        records.write_shard(folder / f"train-{shard}.tfrecord", rows)
    return str(folder / "train-*.tfrecord")


def stream(files, batches, **options):
    arguments = {"batch_size": 4, "masking": masking(), "sep_id": SEP}
    dataset = pretraining_dataset(files, **{**arguments, **options})
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(batches)]


def numbers(batches):
    return np.concatenate([batch["input_ids"][:, 4] - 100 for batch in batches])


@pytest.fixture(scope="module")
def whole(files):
    """37 batches, or 148 records: four passes."""
    return stream(files, 37, mask_variants=2)


def test_each_pass_holds_each_record_once_in_new_order(files, whole):
    assert {k: (v.shape, v.dtype) for k, v in whole[0].items()} == {
        k: ((4, 2 if k.startswith("masked_lm") else LENGTH), spec.dtype)
        for k, spec in PRETRAINING.items()
    }
    order = numbers(whole)
    passes = order.reshape(4, 37)
    for one in passes:
        assert sorted(one) == list(range(37))
    assert len({tuple(one) for one in passes}) == 4
    assert tuple(passes[0]) != tuple(range(37))
    assert numbers(stream(files, 9, seed=6)).tolist() != order[:36].tolist()


def test_resuming_continues_the_stream(files, whole):
    """Within a pass and across its end (pitfall 45 of docs/fidelity.md)."""
    for start in (1, 23):
        rest = stream(files, 37 - start, start_batch=start, mask_variants=2)
        np.testing.assert_equal(rest, whole[start:])


def test_the_mask_rate_follows_the_batch_number(files):
    """Holds after a resume; shapes are static (pitfall 45 of docs/fidelity.md)."""
    falling = masking(mask_rate=0.6, final_mask_rate=0.1, steps=20)
    batches = stream(files, 26, masking=falling)
    counts = [batch["masked_lm_weights"].sum(1).tolist() for batch in batches]
    # Each row has nine tokens, of which six are candidates.
    expected = [round(9 * (0.6 - 0.5 * min(n, 20) / 20)) for n in range(26)]
    assert counts == [[n] * 4 for n in expected]
    assert {batch["masked_lm_weights"].shape for batch in batches} == {(4, 9)}
    rest = stream(files, 13, masking=falling, start_batch=13)
    np.testing.assert_equal(rest, batches[13:])


def masks_by_record(batches):
    found = {}
    for batch in batches:
        masks = np.sort(batch["masked_lm_positions"]).tolist()
        for number, mask in zip(numbers([batch]), masks, strict=True):
            found.setdefault(number, []).append(tuple(mask))
    return found


def test_static_masks_repeat_after_the_variants(files, whole):
    found = masks_by_record(whole)
    assert all(one[0] == one[2] and one[1] == one[3] for one in found.values())
    assert sum(one[0] != one[1] for one in found.values()) > 10
    # The mask of a record does not depend on the order of records.
    other = masks_by_record(stream(files, 9, mask_variants=2, shuffle_buffer=1))
    assert len(other) > 30
    assert all(found[number][0] == one[0] for number, one in other.items())


def test_dynamic_masks_change_in_every_pass(files):
    found = masks_by_record(stream(files, 370, mask_variants=None))
    # Each draw masks one of six positions; forty draws cover all six.
    assert all(len(set(one)) == 6 for one in found.values())


def test_evaluation_reads_once_in_order_and_fills_with_empty_rows(files):
    batches = stream(files, 100, training=False)
    assert len(batches) == 10
    assert numbers(batches)[:37].tolist() == list(range(37))
    last = batches[-1]
    assert last["input_mask"][1:].sum() == 0
    assert last["masked_lm_weights"][1:].sum() == 0
    assert last["input_ids"].shape == (4, LENGTH)
    # A shorter one is spread over the files.
    for most in (1, 3, 5, 9):
        chosen = numbers(stream(files, 100, training=False, max_batches=most))
        assert len(chosen) == 4 * most
        steps = np.diff([*chosen, 37])
        assert max(steps) - min(steps) <= 1
    every = stream(files, 100, training=False, max_batches=10)
    np.testing.assert_array_equal(numbers(every[:9]), range(36))
    with pytest.raises(ValueError, match="max_batches is for training=False"):
        stream(files, 1, max_batches=3)


def test_workers_share_each_batch(files):
    """By file, workers would read other batches than one device."""
    dataset = pretraining_dataset(files, batch_size=4, masking=masking(), sep_id=SEP)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.DATA


def test_masking_with_ids_of_another_vocabulary_is_refused(tmp_path):
    shard = records.write_shard(tmp_path / "train-0.tfrecord", [[CLS, 5, 6, 7, SEP]])
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a", "b", "c"])
    save_manifest(tmp_path, vocabulary, [shard], max_seq_length=8)
    for size, mask_id, said in (8, 5, "mask_id is 4"), (9, MASK, "vocab_size is 8"):
        other = Masking(size, mask_id, never_masked=(CLS, SEP), max_seq_length=8)
        with pytest.raises(ValueError, match=f"{said}, not masking's"):
            pretraining_dataset(str(tmp_path), batch_size=1, masking=other)


def test_folders_with_different_vocabularies_are_refused(tmp_path):
    folders = []
    for name, word in (("a", "one"), ("b", "one"), ("c", "two")):
        folder = tmp_path / name
        folder.mkdir()
        folders.append(str(folder))
        shard = records.write_shard(folder / "train-0.tfrecord", [[CLS, 5, SEP]] * 9)
        vocabulary = Vocabulary([*SPECIAL_TOKENS, word])
        save_manifest(folder, vocabulary, [shard], max_seq_length=8)
    assert pretraining_dataset(folders[:2], batch_size=4)
    with pytest.raises(ValueError, match="built with different vocabularies"):
        pretraining_dataset(folders, batch_size=4)


def test_segments_change_after_the_first_separator():
    ids = tf.constant([[CLS, 9, SEP, 8, 7, SEP, PAD], [CLS, 9, 9, 9, SEP, PAD, PAD]])
    segments = derive_inputs(ids, tf.cast(ids != PAD, tf.int32), SEP)["segment_ids"]
    assert segments.numpy().tolist() == [[0, 0, 0, 1, 1, 1, 0], [0] * 7]


def test_other_records_are_refused(tmp_path):
    """tests/faults/test_records.py damages records in other ways."""
    path = tmp_path / "other.tfrecord"
    records.write_shard(path, [[CLS, *range(50, 80), SEP]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_seq_length=16"):
        stream(str(path), 1, training=False)
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\xffx")
    with pytest.raises(ValueError, match=r"other.tfrecord: a record has no input_ids"):
        stream(str(path), 1)
    # Ids are not wrapped around.
    for index in (-1, 2**40 + 7):
        serialized = tf.constant([original_record([CLS, index, SEP], 3)])
        with pytest.raises(tf.errors.InvalidArgumentError, match="an id is"):
            pipeline.parse_batch(serialized)


def test_a_path_that_exists_is_taken_as_it_is(tmp_path, files):
    folder = tmp_path / "lr[5e-4],seed=1"
    folder.mkdir()
    path = folder / "train-0.tfrecord"
    for copy in (path, folder / "eval-0.tfrecord"):
        shutil.copy(files.replace("*", "0"), copy)
    assert expand_files(str(path)) == expand_files([path]) == [str(path)]
    assert expand_files(folder) == [str(path)]
    again = os.path.relpath(path)
    assert expand_files([str(path), again]) == expand_files([path])
    held_out = expand_files([folder], in_folder=pipeline.HELD_OUT)
    assert held_out == [str(folder / "eval-0.tfrecord")]
    # An evaluation of a folder does not read its training files, and training on a glob
    # does not read the held-out ones.
    assert len(stream(folder, 100, training=False)) == 4
    records.write_shard(folder / "eval-0.tfrecord", [[CLS, 99, SEP]] * 4)
    batches = stream(f"{tmp_path}/lr*/*.tfrecord", 12)
    assert all(99 not in batch["input_ids"] for batch in batches)
    (folder / "eval-0.tfrecord").unlink()
    with pytest.raises(ValueError, match=r"No TFRecord file matches .*eval-\*"):
        stream(folder, 1, training=False)
    both = ",".join(files.replace("*", part) for part in ("1", "[02]"))
    assert expand_files(both) == expand_files(files)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="No TFRecord file matches"):
        expand_files(tmp_path / "empty")
    records.write_shard(tmp_path / "empty" / "train-0.tfrecord", [])
    with pytest.raises(ValueError, match=r"The 1 TFRecord files are empty"):
        stream(tmp_path / "empty", 1)


def test_numbers_that_are_too_small_are_refused(files):
    for name in ("batch_size", "mask_variants", "shuffle_buffer"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            stream(files, 1, **{name: 0})
    for name in ("seed", "start_batch"):
        with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
            stream(files, 1, **{name: -1})


def test_an_error_about_something_else_passes():
    """It does not read the records again, which can take hours."""
    error = tf.errors.ResourceExhaustedError(None, None, "out of memory")
    with pytest.raises(type(error)), pipeline.naming_damage(["missing"], VOCAB):
        raise error
