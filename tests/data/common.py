"""A synthetic corpus, its records, and helpers to read them."""

import bz2
import csv
import gzip
import io
import json
import lzma
import pathlib
import random

import pyarrow
import tensorflow as tf
from pyarrow import parquet

from electra_tf.config.records import RecordsConfig
from electra_tf.data import building
from electra_tf.data.pipeline import parse_batch
from electra_tf.data.records import Manifest
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = ["w" + "abcdefghij"[i // 10] + "abcdefghij"[i % 10] for i in range(100)]
VOCABULARY = Vocabulary((*SPECIAL_TOKENS, *WORDS))


def text(documents, *, seed=0, lines=12, words=20):
    rng = random.Random(seed)
    return "\n\n".join(
        "\n".join(" ".join(rng.choices(WORDS, k=words)) for _ in range(lines))
        for _ in range(documents)
    )


def packed(name, content):
    """Compresses bytes by the suffix of a file's name."""
    suffix = pathlib.Path(name).suffix.lower()
    if suffix == ".zst":
        return pyarrow.compress(content, "zstd", asbytes=True)
    modules = {".gz": gzip, ".bz2": bz2, ".xz": lzma}
    return modules[suffix].compress(content) if suffix in modules else content


def table(name, rows):
    """Returns the bytes of a table of dicts, in the format of its suffix."""
    if ".parquet" in name:
        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file.getvalue()
    if "json" in name:
        return "\n".join(map(json.dumps, rows)).encode()
    file = io.StringIO(newline="")
    writer = csv.DictWriter(
        file, rows[0], dialect="excel-tab" if "tsv" in name else "excel"
    )
    writer.writeheader()
    writer.writerows(rows)
    return b"\xef\xbb\xbf" + file.getvalue().encode()


def silent(message):
    del message


def build(corpus, folder, *, vocabulary=VOCABULARY, log=silent, **options):
    config = RecordsConfig(corpus=(corpus,), output_dir=str(folder), **options)
    return building.build(config, vocabulary=vocabulary, log=log)[1]


def save_manifest(folder, vocabulary, shards, held_out=(), *, max_seq_length):
    """Writes the manifest of a build for shards with this vocabulary."""
    casing = {"lower_case": True, "strip_accents": True}
    about = {"size": len(vocabulary), "sha256": vocabulary.sha256}
    Manifest(
        settings={"max_seq_length": max_seq_length, **casing},
        vocabulary={**about, "special_ids": [0, 1, 2, 3, 4]},
        corpus={"sources": ["text"], "lines": 2},
        train=tuple(shards),
        eval=tuple(held_out),
    ).save(folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def examples(folder, split):
    files = sorted(map(str, pathlib.Path(folder).glob(f"{split}-*.tfrecord")))
    serialized = list(tf.data.TFRecordDataset(files).as_numpy_iterator())
    return parse_batch(tf.constant(serialized)).to_list()


def original_record(ids, length):
    """Returns a record in the original format: three int64 lists of equal length."""
    padding = [0] * (length - len(ids))
    columns = {
        "input_ids": ids + padding,
        "input_mask": [1] * len(ids) + padding,
        "segment_ids": [0] * length,
    }
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in columns.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString()
