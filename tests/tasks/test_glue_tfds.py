import pytest
import tensorflow as tf

from electra_tf.tasks import glue_task

tfds = pytest.importorskip("tensorflow_datasets")


def prepare(folder, name, names, texts, rows):
    """Writes (idx, texts, label) rows in the layout of `tfds build glue/...`."""
    features = {
        **{text: tfds.features.Text() for text in texts},
        "label": tfds.features.ClassLabel(names=names) if names else tf.float32,
        "idx": tf.int32,
    }

    def dataset(split):
        columns = list(zip(*split, strict=True))
        values = zip(*columns[1], strict=True)
        data = {name: [*column] for name, column in zip(texts, values, strict=True)}
        data |= {"label": tf.constant(columns[2], tf.int64 if names else tf.float32)}
        data |= {"idx": tf.constant(columns[0], tf.int32)}
        return tf.data.Dataset.from_tensor_slices(data)

    tfds.dataset_builders.store_as_tfds_dataset(
        name="glue",
        config=name,
        version="2.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={split: dataset(found) for split, found in rows.items()},
        data_dir=str(folder),
    )


def test_names_of_labels_splits_and_features_are_mapped(tmp_path):
    # TFDS maps entailment to 0; the original and this library map contradiction to 0.
    names = ["entailment", "neutral", "contradiction"]
    rows = {
        "train": [(1, ("p1", "h1"), 2), (0, ("p0", "h0"), 0)],
        "validation_matched": [(0, ("p", "h"), 1)],
    }
    prepare(tmp_path, "mnli", names, ("premise", "hypothesis"), rows)
    task = glue_task("mnli", f"tfds:{tmp_path}")
    train = task.examples("train")
    assert [(e.texts, e.label) for e in train] == [
        (("p0", "h0"), "entailment"),
        (("p1", "h1"), "contradiction"),
    ]
    assert task.targets(train).tolist() == [1, 0]
    assert task.examples("dev_matched")[0].label == "neutral"


def test_test_sets_have_no_labels_and_keep_their_order(tmp_path):
    rows = {"test": [(10, ("c",), -1), (0, ("a",), -1), (2, ("b",), -1)]}
    prepare(tmp_path, "cola", ["unacceptable", "acceptable"], ("sentence",), rows)
    found = glue_task("cola", f"tfds:{tmp_path}").examples("test")
    assert [(e.id, e.texts, e.label) for e in found] == [
        ("0", ("a",), None),
        ("2", ("b",), None),
        ("10", ("c",), None),
    ]


def test_numbers_stay_numbers(tmp_path):
    rows = {"train": [(0, ("a", "b"), 3.5)]}
    prepare(tmp_path, "stsb", None, ("sentence1", "sentence2"), rows)
    assert glue_task("sts", f"tfds:{tmp_path}").examples("train")[0].label == 3.5


def test_data_that_is_not_prepared(tmp_path):
    with pytest.raises(FileNotFoundError, match="not prepared in"):
        glue_task("rte", f"tfds:{tmp_path}").examples("train")
