import dataclasses
import itertools

import numpy as np
import pytest

from electra_tf.tasks.base import Ragged, Rows
from electra_tf.tasks.batching import (
    Outputs,
    TrainingOrder,
    bucket_lengths,
    make_batch,
    training_dataset,
)


def rows(lengths, weights=None):
    ids = Ragged.of([[7] + [5] * (n - 1) for n in lengths])
    return Rows(
        {"input_ids": ids, "segment_ids": Ragged.of([[0] * n for n in lengths])},
        {"label": np.arange(len(lengths), dtype=np.int32)},
        np.arange(len(lengths)),
        weights,
        pad_id=9,
    )


@pytest.mark.parametrize(
    ("lengths", "longest", "count"),
    [
        ([9, 30, 31, 60, 61, 62, 90, 128], 128, 5),
        ([17, 33, 49, 65, 81, 97], 128, 3),
        ([3, 4, 5], 128, 5),
        ([8], 8, 5),
        ([30, 5, 17], 30, 5),
    ],
)
def test_bucket_lengths_pad_least_of_all_choices(lengths, longest, count):
    lengths = np.array(lengths)
    found = bucket_lengths(lengths, longest, count)

    def tokens(buckets):
        fits = [[b for b in buckets if b >= length] for length in lengths]
        return sum(map(min, fits)) if all(fits) else np.inf

    steps = sorted({min(n, longest) for n in range(16, max(16, longest) + 8, 8)})
    choices = [
        choice
        for size in range(1, count + 1)
        for choice in itertools.combinations(steps, size)
    ]
    assert found in choices
    assert tokens(found) == min(map(tokens, choices))
    # Every bucket has at least one row.
    assert len({min(b for b in found if b >= n) for n in lengths}) == len(found)


def test_a_batch_is_padded_with_the_pad_id_and_masked():
    base = rows([2, 4])
    inputs, targets, weights = make_batch(base, np.array([1, 0]), 5)
    assert inputs["input_ids"].tolist() == [[7, 5, 5, 5, 9], [7, 5, 9, 9, 9]]
    assert inputs["input_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert inputs["segment_ids"].tolist() == [[0] * 5] * 2
    assert targets.tolist() == [1, 0]
    assert weights is None
    # Several targets stay a dictionary; those of tokens are padded.
    both = {"tags": Ragged.of([[1, 2], [3, 4, 5, 6]]), "start": np.array([0, 1])}
    weights = Ragged.of([[1, 1], [1, 1, 0, 1]], "float32")
    tagged = dataclasses.replace(base, targets=both, weights=weights)
    _, targets, weights = make_batch(tagged, np.array([0, 1]), 5)
    assert targets["tags"].tolist() == [[1, 2, 0, 0, 0], [3, 4, 5, 6, 0]]
    assert targets["start"].tolist() == [0, 1]
    assert weights.tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 1, 0]]


def order(count=103, batch=8):
    lengths = np.random.default_rng(1).integers(3, 40, count)
    return TrainingOrder(lengths, batch, bucket_lengths(lengths, 40))


def test_every_row_comes_once_per_pass_and_all_batches_are_full():
    batches = list(order().batches(0, 103))  # eight epochs of 103 rows
    assert all(len(indices) == 8 for indices, _ in batches)
    counts = np.bincount(np.concatenate([indices for indices, _ in batches]))
    assert counts.tolist() == [8] * 103
    # Steps of the original code: CoLA 804 / 3, RTE 780 / 10, MRPC 690 / 3.
    for count, steps in ((8551, 268), (2490, 78), (7336, 230)):
        assert order(count, 32).steps_per_pass == steps


def test_order_is_a_function_of_the_seed():
    later = dataclasses.replace(order(), updates=13)
    first, again, *others = (
        [indices.tolist() for indices, _ in chosen.batches(seed, 20)]
        for chosen, seed in ((order(), 1), (order(), 1), (order(), 2), (later, 1))
    )
    assert first == again
    assert first not in others


def test_similar_lengths_come_together():
    chosen = order(2000)
    positions = real = 0
    for indices, length in chosen.batches(0, 250):
        lengths = chosen.lengths[indices]
        assert lengths.max() <= length
        positions, real = positions + length * len(indices), real + lengths.sum()
    assert real / positions > 0.8


def test_training_dataset_has_one_signature_for_all_lengths():
    weights = np.ones(103, np.float32)
    chosen = order()
    dataset = training_dataset(rows(chosen.lengths, weights), chosen, seed=0, steps=12)
    inputs, label, weight = dataset.element_spec
    assert inputs["input_ids"].shape.as_list() == [8, None]
    assert label.shape.as_list() == weight.shape.as_list() == [8]
    found = list(dataset)
    assert len(found) == 12
    assert {batch["input_ids"].shape[1] for batch, _, _ in found} <= set(chosen.buckets)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_outputs_keep_the_order_whatever_the_batch_size(batch_size):
    """Pitfall 40."""
    lengths = [5, 2, 9, 3, 3, 8, 2]

    class Model:
        def inference(self, inputs):
            return {"length": inputs["input_mask"], "ids": inputs["input_ids"]}

    outputs = Outputs(Model(), batch_size)(rows(lengths))
    assert [int(out["length"].sum()) for out in outputs] == lengths
