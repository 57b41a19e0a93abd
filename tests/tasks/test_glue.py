import os

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from electra_tf.tasks import glue
from electra_tf.tasks.glue import ROWS

DATA = os.environ.get("ELECTRA_TF_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ELECTRA_TF_DATA is not set")

HEADERS = {
    "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "qnli": "index\tquestion\tsentence\tlabel",
    "sst": "sentence\tlabel",
    "sts": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2"
    "\tsentence1\tsentence2\tscore",
    "mnli": "index\tpromptID\tpairID\tgenre\tbp1\tbp2\tp1\tp2\tsentence1\tsentence2"
    "\tlabel1\tgold_label",
}


def files(folder, **contents):
    for name, content in contents.items():
        path = folder / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return str(folder)


def read(name, folder, split="train"):
    examples = glue.glue_task(name, str(folder)).examples(split)
    return [(example.texts, example.label) for example in examples]


def test_cola_has_no_header_but_its_test_set_has(tmp_path):
    rows = 'gj04\t1\t\tHe said "hi.\ngj04\t0\t*\tHe hi said.'
    folder = files(tmp_path, train=rows, test="index\tsentence\n0\tWhat?\n")
    assert read("cola", folder) == [(('He said "hi.',), "1"), (("He hi said.",), "0")]
    assert read("cola", folder, "test") == [(("What?",), None)]


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    text = "\ufeff" + HEADERS["mrpc"] + "\r\n1\t5\t6\tA .\tB .\r\n"
    assert read("mrpc", files(tmp_path, train=text)) == [(("A .", "B ."), "1")]


def test_qqp_has_other_columns_in_its_test_set(tmp_path):
    rows = HEADERS["qqp"] + "\n9\t1\t2\tA?\tB?\t0\n"
    test = "id\tquestion1\tquestion2\n0\tC?\tD?\n"
    folder = files(tmp_path, train=rows, test=test)
    assert read("qqp", folder) == [(("A?", "B?"), "0")]
    assert read("qqp", folder, "test") == [(("C?", "D?"), None)]


def test_sts_is_scaled(tmp_path):
    rest = "main\tfile\t2012\t1\tnone\tnone\tA.\tB."
    rows = f"{HEADERS['sts']}\n0\t{rest}\t3.250\n1\t{rest}\t5.000\n"
    test = HEADERS["sts"].removesuffix("\tscore") + f"\n0\t{rest}\n"
    folder = files(tmp_path, train=rows, test=test)
    assert read("sts", folder) == [(("A.", "B."), 3.25), (("A.", "B."), 5.0)]
    # Pitfall 36.
    task = glue.glue_task("sts", folder)
    targets = task.targets(task.examples("train"))
    assert targets[:, 0].tolist() == pytest.approx([0.65, 1.0])
    assert read("sts", folder, "test") == [(("A.", "B."), None)]
    for label in ("nan", "-inf", "x", ""):
        files(tmp_path, train=f"{HEADERS['sts']}\n0\t{rest}\t{label}\n")
        with pytest.raises(ValueError, match=r"n\.tsv, line 2: .*expected a number"):
            read("sts", folder)


def test_mnli_has_two_development_sets_and_the_diagnostic(tmp_path):
    """Pitfall 42: both are scored; the matched set gives the main metric."""
    row, head = "1\t2\tfiction\t.\t.\t.\t.\tP\tH", HEADERS["mnli"]
    labeled = f"{head}\n0\t{row}\tneutral\tneutral\n1\t{row}\tentailment\t-\n"
    unlabeled = head.removesuffix("\tlabel1\tgold_label")
    splits = ("train", "dev_matched", "dev_mismatched")
    files(
        tmp_path,
        **dict.fromkeys(splits, labeled),
        **dict.fromkeys(
            ("test_matched", "test_mismatched"), f"{unlabeled}\n0\t{row}\n"
        ),
        diagnostic="index\tsentence1\tsentence2\n0\tP2\tH2\n",
    )
    task = glue.glue_task("mnli", str(tmp_path))
    assert task.labels == ("contradiction", "entailment", "neutral")
    assert task.eval_splits == ("dev_matched", "dev_mismatched")
    assert task.test_splits == ("test_matched", "test_mismatched", "ax")
    for split in splits:
        assert read("mnli", tmp_path, split) == [(("P", "H"), "neutral")]
    assert read("mnli", tmp_path, "test_mismatched") == [(("P", "H"), None)]
    assert read("mnli", tmp_path, "ax") == [(("P2", "H2"), None)]


def test_malformed_lines_are_skipped_or_named(tmp_path):
    said = []
    text = HEADERS["qnli"] + "\n0\tQ\tS\tentailment\n1\tcut off\n"
    task = glue.glue_task("qnli", files(tmp_path, train=text), log=said.append)
    assert len(task.examples("train")) == 1
    assert "skipped 1 malformed lines (3" in said[0]
    head = HEADERS["qnli"]
    files(tmp_path, train=f"{head}\n0\tQ\tS\tyes\n", test=f"{head}\n0\tonly one\n")
    with pytest.raises(ValueError, match="the label is 'yes', expected entail"):
        read("qnli", tmp_path)
    with pytest.raises(ValueError, match="line 2: 2 cells, too few"):
        read("qnli", tmp_path, "test")
    files(tmp_path, train="0\tQ\tS\tentailment\n")
    with pytest.raises(ValueError, match=r"no column 'question'.*--data_dir"):
        read("qnli", tmp_path)


def test_folder_above_and_missing_files(tmp_path):
    files(tmp_path / "CoLA", train="gj04\t1\t\tA.\n")
    assert read("cola", tmp_path) == [(("A.",), "1")]
    assert glue.glue_task("cola", tmp_path).examples("train")
    with pytest.raises(FileNotFoundError, match=r"dev.tsv of cola.*--data_dir"):
        read("cola", tmp_path, "dev")


def test_pairs_are_doubled_only_for_mrpc_and_sts(tmp_path):
    # Pitfall 41.
    assert {name for name, row in ROWS.items() if row.double_pairs} == {"mrpc", "sts"}
    text = HEADERS["mrpc"] + "\n1\t5\t6\tA\tB\n"
    task = glue.glue_task("mrpc", files(tmp_path, train=text))
    augmented = task.augment(task.examples("train"))
    assert [e.texts for e in augmented] == [("A", "B"), ("B", "A")]
    assert {e.label for e in augmented} == {"1"}


def test_main_scores():
    # Pitfall 42: accuracy for MRPC and QQP, Spearman for STS-B, Matthews for CoLA.
    main = {name: glue.glue_task(name, ".").main_metric for name in ROWS}
    assert main.pop("cola") == "matthews"
    assert main.pop("sts") == "spearman"
    assert set(main.values()) == {"accuracy"}


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "dev", "test"),
    [
        ("cola", 8551, 1043, 1063),
        ("sst", 67349, 872, 1821),
        ("mrpc", 7336, 408, 1725),
        ("sts", 11498, 1500, 1379),
        ("rte", 2490, 277, 3000),
        ("wnli", 635, 71, 146),
        ("qnli", None, 5463, None),
    ],
)
def test_row_counts_of_the_real_files(name, train, dev, test):
    """Pitfall 41: MRPC and STS-B are doubled for training."""
    task = glue.glue_task(name, os.path.join(DATA, "glue"))
    assert len(task.examples("dev")) == dev
    if train:
        assert len(task.augment(task.examples("train"))) == train
        assert len(task.examples("test")) == test


def test_submission_file_is_in_the_benchmarks_format(tmp_path):
    answers = ["entailment", "not_entailment"]
    folder = tmp_path / "submission"
    glue.write_submission("rte", answers, "test", str(folder))
    text = (folder / "RTE.tsv").read_text("utf-8")
    assert text == "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    glue.write_submission("mnli", ["neutral"], "test_mismatched", str(folder))
    assert {path.name for path in folder.iterdir()} == {"RTE.tsv", "MNLI-mm.tsv"}


# GLUE of TensorFlow Datasets.


def prepare(folder, name, names, texts, rows):
    """Writes (idx, texts, label) rows in the layout of `tfds build glue/...`."""
    features = {
        **{text: tfds.features.Text() for text in texts},
        "label": tfds.features.ClassLabel(names=names) if names else tf.float32,
        "idx": tf.int32,
    }

    def dataset(split):
        numbers, values, labels = zip(*split, strict=True)
        data = dict(zip(texts, map(list, zip(*values, strict=True)), strict=True))
        data["label"] = tf.constant(labels, tf.int64 if names else tf.float32)
        data["idx"] = tf.constant(numbers, tf.int32)
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
        "test_matched": [(n, (f"p{n}", "h"), -1) for n in (10, 0, 2)],
    }
    prepare(tmp_path, "mnli", names, ("premise", "hypothesis"), rows)
    task = glue.glue_task("mnli", f"tfds:{tmp_path}")
    train = task.examples("train")
    assert [(e.texts, e.label) for e in train] == [
        (("p0", "h0"), "entailment"),
        (("p1", "h1"), "contradiction"),
    ]
    assert task.targets(train).tolist() == [1, 0]
    assert task.examples("dev_matched")[0].label == "neutral"
    # Test sets have no labels and keep their order.
    found = task.examples("test_matched")
    assert [e.id for e in found] == ["0", "2", "10"]
    assert [e.texts for e in found] == [("p0", "h"), ("p2", "h"), ("p10", "h")]
    assert {e.label for e in found} == {None}


def test_numbers_stay_numbers(tmp_path):
    rows = {"train": [(0, ("a", "b"), 3.5)]}
    prepare(tmp_path, "stsb", None, ("sentence1", "sentence2"), rows)
    assert glue.glue_task("sts", f"tfds:{tmp_path}").examples("train")[0].label == 3.5
    with pytest.raises(FileNotFoundError, match="not prepared in"):
        glue.glue_task("rte", f"tfds:{tmp_path}").examples("train")
