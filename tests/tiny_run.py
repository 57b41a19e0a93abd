"""Folder of a finished pretraining run, without training."""

import atexit
import functools
import json
import shutil
import tempfile

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import Electric
from tests import tiny
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS, UNCASED

# The sizes of `tests.tiny.electra` as flags.
SIZES = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 128,
    "embedding_size": 12,
    "max_positions": 32,
    "max_seq_length": 32,
    "generator_hidden_size": 0.5,
    "warmup_steps": 50,
    "num_train_steps": 500,
}
# The last training window of a healthy run, and its held-out metrics.
HEALTHY = {
    "discriminator_auc": 0.92,
    "discriminator_loss": 0.21,
    "discriminator_precision": 0.8,
    "discriminator_recall": 0.5,
    "generator_accuracy": 0.4,
    "sampled_accuracy": 0.3,
    "replaced_fraction": 0.09,
}


def electra(**kwargs):
    """Returns an Electra with random values in all variables."""
    model = tiny.electra(vocab=len(TOKENS), **kwargs)
    randomize(model.trainable_variables)
    return model


def electric():
    """Returns an Electric with random values in all variables."""
    model = tiny.two_tower(Electric, vocab=len(TOKENS))
    randomize(model.trainable_variables)
    return model


def save_models(folder, model):
    for name, part in model.artifacts().items():
        part.save(f"{folder}/{name}.keras")


@functools.cache
def saved_once():
    """Folder with the models of `electra()`, saved once per process."""
    folder = tempfile.mkdtemp(prefix="electra_tf_tiny_run_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    save_models(folder, electra())
    return folder


def save(folder, model=None, *, metrics=HEALTHY, tokens=TOKENS, data=None, **flags):
    """Writes the files of a finished run; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if model is None:
        shutil.copytree(saved_once(), folder, dirs_exist_ok=True)
    else:
        save_models(folder, model)
    vocabulary = Vocabulary(tokens)
    vocabulary.save(folder / "vocab.txt")
    config = fields.to_flat(PretrainConfig()) | SIZES | flags
    known = {**UNCASED, "vocabulary_sha256": vocabulary.sha256, **(data or {})}
    (folder / "config.json").write_text(json.dumps({"config": config, "data": known}))
    rows = [{"step": step, **metrics} for step in (100, 200, 300, 400, 500)]
    rows.append({"step": 500, **{f"eval_{k}": v for k, v in metrics.items()}})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    return folder
