"""Examples that a fine-tuning run trains on per CPU second, against a PyTorch loop.

    python benchmarks/finetuning.py
    python benchmarks/finetuning.py --precision float32

Our side is the ``Trainer`` of ``run_finetuning.py`` between two evaluations: batches,
forward, backward, clipping, AdamW with layer-wise rates, metrics. The peer is
``ElectraForSequenceClassification`` with SDPA, autocast, fused AdamW and clipping. Both
train ELECTRA-Small's size on the same sentences of 5 to 60 words, 32 a step, grouped by
length. Ours pads a batch to one of five lengths, the peer to its longest row. Compiling
and tracing are not counted (``benchmarks/startup.py`` measures them).
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time
from collections.abc import Callable

import harness
import numpy as np
import texts

OURS, PEER = "electra_tf", "PyTorch"
COUNT, BATCH, MAX_LENGTH, STEPS = 2048, 32, 128, 50


def ours(vocabulary, strings: list[str], policy: str) -> Callable[[], float]:
    """Returns a function: trains for ``STEPS``, returns examples per CPU second."""
    import keras

    from electra_tf import data, tasks
    from electra_tf.config.finetuning import RecipeConfig
    from electra_tf.runs import finetuning
    from electra_tf.runs.trainer import Trainer
    from electra_tf.tasks.batching import TrainingOrder, bucket_lengths

    keras.utils.set_random_seed(0)
    encoder = texts.small_encoder(vocabulary, policy)
    task = tasks.Classification(name="mood", source=None, labels=("0", "1"))
    examples = [
        tasks.Example(str(number), (text,), str(number % 2))
        for number, text in enumerate(strings)
    ]
    rows = task.featurize(examples, data.WordPiece(vocabulary), MAX_LENGTH)
    model = task.build_model(encoder)
    buckets = bucket_lengths(rows.lengths, MAX_LENGTH)
    order = TrainingOrder(rows.lengths, BATCH, buckets)
    settings = {"learning_rate": 3e-4, "weight_decay": 0.01}
    settings |= {"layerwise_decay": 0.8, "layerwise_exponent": "exact"}
    model.compile(
        optimizer=finetuning.optimizer(RecipeConfig(), settings, model, STEPS),
        loss=task.loss("mean"),
        jit_compile=finetuning.JIT_COMPILE["none"],
    )
    options = {"log": lambda line: None, "record": lambda row: None, "log_steps": 10}
    trainer = Trainer(model, rows, order, total_steps=STEPS, **options)

    def train() -> float:
        began = time.process_time()
        trainer.train(0)
        return STEPS * BATCH / (time.process_time() - began)

    return train


def peer(vocabulary, strings: list[str], precision: str) -> Callable[[], float]:
    """Returns the same function in PyTorch."""
    import torch

    from electra_tf.tasks.batching import TrainingOrder

    torch.manual_seed(0)
    model, tokenizer = texts.small_peer(vocabulary)
    model.train()
    ids = tokenizer(strings, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
    # Groups rows of similar length in our order.
    order = TrainingOrder(np.array(list(map(len, ids))), BATCH, (MAX_LENGTH,))

    def train() -> float:
        began = time.process_time()
        for rows, _ in order.batches(0, STEPS):
            batch = tokenizer.pad(
                {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
            )
            labels = torch.tensor(rows % 2)
            with autocast:
                loss = model(**batch, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return STEPS * BATCH / (time.process_time() - began)

    return train


def main() -> None:
    parser = harness.arguments(__doc__, rounds=3)
    precisions = ("bfloat16", "float32")
    parser.add_argument("--precision", choices=precisions, default="bfloat16")
    arguments = harness.with_threads(parser)
    vocabulary, strings = texts.vocabulary(), texts.sentences(COUNT)
    precision = arguments.precision
    policy = {"bfloat16": "mixed_bfloat16", "float32": "float32"}[precision]
    sides = {
        OURS: ours(vocabulary, strings, policy),
        PEER: peer(vocabulary, strings, precision),
    }
    for train in sides.values():
        train()  # Compiles or warms up every length.
    figures = harness.interleave(sides, arguments.rounds)
    about = {"ours": OURS, "peer": PEER, "unit": "examples/s of CPU time", "bar": 1.5}
    row = harness.row(f"fine-tuning, {precision}", figures, **about)
    harness.report("finetuning", [row], arguments.output, threads=arguments.threads)


if __name__ == "__main__":
    main()
