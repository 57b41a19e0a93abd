"""Flags of the golden runs, as their generator used them."""

import os
from pathlib import Path

import tensorflow as tf

# Large weights, so that outputs differ between texts after a few steps.
SIZES = """
--num_train_steps=12 --train_batch_size=8 --eval_batch_size=8 --max_seq_length=24
--max_positions=32 --num_layers=2 --hidden_size=16 --num_heads=2 --intermediate_size=32
--embedding_size=8 --generator_hidden_size=0.5 --initializer_range=0.3 --warmup_steps=3
--learning_rate=1e-3 --log_steps=1 --eval_steps=6 --save_checkpoint_steps=3
--keep_checkpoints=1 --eval_fraction=0.1 --shuffle_buffer=50 --corpus=text.txt
--vocab_file=vocab.txt --data_dir=data
"""
# Runs of 12 steps: the step of a SIGTERM, the run without it, and the flags.
TWO_STAGE = ("--training=two_stage", "--generator_steps=6", "--sharing=nes")
TWO_STAGE += ("--generator_hidden_size=1.0",)
STOPPED = {
    "electra": (6, "finished", ()),
    "two_stage_first": (4, "whole", TWO_STAGE),
    "two_stage_second": (8, "whole", TWO_STAGE),
}


def pretraining(model_dir, *flags):
    """Arguments of run_pretraining.py; later ones win."""
    return (*SIZES.split(), f"--model_dir={model_dir}", *flags)


FINETUNING = """
--task=classification --train=train.csv --eval=eval.csv --encoder=finished
--output_dir=task --max_seq_length=24 --train_batch_size=8 --epochs=5
--learning_rate=1e-2 --layerwise_decay=1 --log_steps=1
"""
SYSTEMS = (
    *("all_tokens_mlm", "electra", "electra_15", "electric", "fast_electra", "gdes"),
    *("gumbel", "mlm", "one_encoder", "reinforce", "replace_mlm", "sentence"),
    *("temperature", "token", "two_stage", "two_tower", "unigram", "untied"),
)

# First batches of the records: arguments of pretraining_dataset.
BATCHES = {
    "static": {"batch_size": 8, "seed": 3, "mask_variants": 2, "shuffle_buffer": 20},
    "dynamic": {"batch_size": 8, "mask_variants": None},
    "resumed": {"batch_size": 8, "seed": 3, "mask_variants": 2, "start_batch": 40},
    "held_out": {"batch_size": 5, "training": False},
}


INSPECT = "inspect --model=finished --json"
TEXTS = ("The cat sees my bird .", "Zoë paints a café ☂", "")
# Commands on the finished runs; each prints one JSON object per line.
QUESTIONS = {
    "predict": ("predict --model=task", TEXTS),
    "predict_saved_model": ("predict --model=task/saved_model", TEXTS[:1]),
    "inspect": (INSPECT, TEXTS[:2]),
    "inspect_corrupt": (f"{INSPECT} --corrupt --mask_rate=0.4", TEXTS[:2]),
    "inspect_fill": (f"{INSPECT} --fill", ["The [MASK] sees my bird ."]),
}


def variables(model_dir):
    """Returns name, dtype, shape and magnitude of a run's variables."""
    saved = Path(model_dir, "checkpoints").glob("*.index")
    newest = str(max(saved, key=os.path.getmtime)).removesuffix(".index")
    reader = tf.train.load_checkpoint(newest)
    types = reader.get_variable_to_dtype_map()
    found = []
    for name, shape in tf.train.list_variables(newest):
        row = [name, types[name].name, shape]
        if types[name].is_floating:
            value = reader.get_tensor(name).astype("float64")
            row.append(float(abs(value).sum()))
        found.append(row)
    return found
