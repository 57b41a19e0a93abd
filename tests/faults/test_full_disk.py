import contextlib
import errno
import shutil
from unittest import mock

import pytest
import tensorflow as tf

from electra_tf import cli, files
from electra_tf.__main__ import main
from electra_tf.data import records
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.folders import models
from electra_tf.runs.curves import plot_curves
from electra_tf.serving import export
from electra_tf.tasks.text import Classification
from electra_tf.training.sinks import MetricsLog, TensorBoardScalars
from tests.interop.models import GOLDEN
from tests.tasks import common


@contextlib.contextmanager
def full(path):
    with pytest.raises(OSError, match=r"^.*No space left.*$") as caught:
        yield
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value).endswith(f"{str(path)!r}")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "filled_later"),
    [
        *[(name, False) for name in ("electra_tf", "keras_hub")],
        *[(name, True) for name in ("electra_tf", "google_tf1", "hugging_face")],
    ],
)
def test_conversion(small, name, filled_later, monkeypatch):
    """Another process may fill the disk after the check of free space."""
    if filled_later:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: mock.Mock(free=10**12))
    source = f"--from={GOLDEN / 'projected'}"
    with pytest.raises(SystemExit, match=r"error: .*No space left .*small/out'$"):
        main(["convert", source, f"--to={small / 'out'}", f"--format={name}"])
    assert list(small.iterdir()) == []


def test_tokenizer_of_hugging_face(small):
    """The tokenizers library raises a bare Exception."""
    with full(small / "out"), files.replacing(small / "out") as part:
        part.mkdir()
        raise Exception("No space left on device (os error 28)")


@pytest.mark.slow
def test_saved_model(small):
    task = Classification(name="c", source=None, labels=("a", "b"))
    model = task.build_model(common.encoder())
    path = small / "saved"
    with full(path):
        export.export_saved_model(model, task, common.tokenizer(), str(path), 16)


MANY = [f"word{number}" for number in range(5000)]
ROWS = [{"word": word} for word in MANY]


def curves(path):
    rows = [{"step": step, "loss": 1.0 / step} for step in range(1, 50)]
    metrics = path.parent.parent / "metrics.jsonl"
    files.write_json_lines(metrics, rows)
    plot_curves(metrics, path, {})


WRITERS = {
    "train-0.tfrecord": lambda path: records.write_shard(path, [[5] * 200] * 500),
    "vocab.txt": lambda path: Vocabulary((*SPECIAL_TOKENS, *MANY)).save(path),
    "config.json": lambda path: files.write_json(path, {"words": MANY}),
    "rows.jsonl": lambda path: files.write_json_lines(path, ROWS),
    "encoder.keras": lambda path: models.save(common.encoder(), path),
    "encoder.safetensors": lambda path: models.save(common.encoder(), path),
    "curves.png": curves,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_names_the_file_and_leaves_nothing(small, name):
    with full(small / name):
        WRITERS[name](small / name)


def test_metrics(small):
    """Rows written earlier stay readable, and the next line is complete."""
    path = small / "metrics.jsonl"
    log = MetricsLog(path)
    log(1, {"loss": 1.0})
    with pytest.raises(OSError, match="No space left") as caught:
        files.append_json_line(path, {"step": 2, "words": MANY})
    assert caught.value.filename == str(path)
    assert [row["step"] for row in files.read_json_lines(path)] == [1]
    with open(path, "rb+") as file:
        file.truncate(60)
    log(3, {"loss": 1.0})
    assert [row["step"] for row in files.read_json_lines(path)][-1] == 3


def test_tensorboard(small):
    """The error of TensorFlow's writer becomes one line with the path."""
    scalars = TensorBoardScalars(small)
    values = {f"loss_{number}": 1.0 for number in range(800)}
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        scalars(1, values)
    said = cli.reason(caught.value)
    assert said.startswith(str(small / "train"))
    assert said.endswith("No space left on device")
