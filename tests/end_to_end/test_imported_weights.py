import json
import math

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.systems import build
from tests.end_to_end import in_process
from tests.end_to_end.test_pretraining import SIZES
from tests.golden import commands
from tests.interop.test_google_tf1 import save
from tests.reference import google_tf1 as reference
from tests.reference import step

HEADS = {"electra": 2, "generator": 1}
# Samples the most probable token, so the reference needs no random numbers.
FLAGS = f"""
{SIZES} --num_layers=2 --num_train_steps=2 --log_steps=1 --max_eval_batches=1
--dropout=0 --attention_dropout=0 --temperature=1e-6
"""


@pytest.fixture(scope="module")
def imported(text, tmp_path_factory):
    """Variables of a checkpoint, and the folder of its import."""
    folder = tmp_path_factory.mktemp("original")
    vocabulary = (text / "vocab.txt").read_text()
    sizes = {"embedding": 16, "hidden": 32, "layers": 2, "intermediate": 64}
    sizes |= {"vocab": len(vocabulary.splitlines()), "positions": 32, "segments": 2}
    shapes = reference.shapes(sizes, {"hidden": 16, "intermediate": 32})
    variables = reference.random_variables(shapes, stddev=0.2)
    save(folder / "electra_small", variables)
    (folder / "vocab.txt").write_text(vocabulary)
    to = folder / "imported"
    flags = (f"--num_heads={HEADS['electra']}", "--trained_length=32")
    commands.run("convert", f"--from={folder}", f"--to={to}", *flags)
    return variables, to


def pretrain(text, model_dir, imported, *flags):
    arguments = (
        *FLAGS.split(),
        f"--corpus={text / 'text.txt'}",
        f"--model_dir={model_dir}",
        f"--init_from={imported}",
        *flags,
    )
    return "".join(commands.run("run_pretraining", *arguments))


def reference_losses(variables, model_dir):
    """Returns generator and discriminator loss of the first batch, in NumPy."""
    flat = json.loads((model_dir / "config.json").read_text())["config"]
    config = fields.from_flat(flat, PretrainConfig)
    data = build.pretraining_data(config, lambda _: None)
    batch = next(build.train_batches(config, data)(start_batch=0).as_numpy_iterator())
    networks = reference.Checkpoint(variables, HEADS)
    segments, mask = batch["segment_ids"], batch["input_mask"]
    used = batch["masked_lm_weights"] > 0
    positions = batch["masked_lm_positions"]
    logits = networks.mlm_logits(batch["masked_input_ids"], segments, mask, positions)
    tokens = logits.argmax(-1)
    corrupted, replaced = step.corrupt(batch["input_ids"], positions, used, tokens)
    scores = networks.rtd_logits(corrupted, segments, mask)
    return (
        step.generator_loss(logits, batch["masked_lm_ids"], used),
        step.discriminator_loss(scores, replaced, mask),
    )


@pytest.mark.slow
def test_continued_pretraining_starts_at_the_loss_of_the_checkpoint(
    text, imported, tmp_path
):
    """The export to the original format then has other values in every variable."""
    variables, folder = imported
    rates = ("--warmup_steps=0", "--learning_rate=1e-2")
    assert "kept as initialized: none" in pretrain(text, tmp_path, folder, *rates)
    first = next(row for row in in_process.rows(tmp_path) if "generator_loss" in row)
    assert first["step"] == 1
    generator, discriminator = reference_losses(variables, tmp_path)
    assert first["generator_loss"] == pytest.approx(generator, rel=1e-4)
    assert first["discriminator_loss"] == pytest.approx(discriminator, rel=1e-4)
    assert first["loss"] == pytest.approx(generator + 50 * discriminator, rel=1e-4)
    # A fresh model starts at losses of ln V and ln 2.
    vocabulary = variables["electra/embeddings/word_embeddings"].shape[0]
    assert abs(generator - math.log(vocabulary)) > 0.2
    assert abs(discriminator - math.log(2)) > 0.1
    assert (tmp_path / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    # The same command resumes from the run's own checkpoint, not from the import.
    assert "trained to its last step" in pretrain(text, tmp_path, folder, *rates)
    out = tmp_path / "out"
    flags = (f"--from={tmp_path}", f"--to={out}", "--format=google_tf1")
    commands.run("convert", *flags)
    reader = tf.train.load_checkpoint(str(out))
    shapes = reader.get_variable_to_shape_map()
    assert shapes == {name: list(value.shape) for name, value in variables.items()}
    still = [k for k, v in variables.items() if np.array_equal(reader.get_tensor(k), v)]
    assert still == []
