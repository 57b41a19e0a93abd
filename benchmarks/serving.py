"""Answers to strings, one at a time and 64 at once, against ``transformers``.

    python benchmarks/serving.py
    python benchmarks/serving.py --threads 1

Ours is what ``run_finetuning.py`` exports: a SavedModel of a text classifier of
ELECTRA-Small's size, loaded with ``tf.saved_model.load``. The peer is a
``text-classification`` pipeline with ``ElectraForSequenceClassification`` (SDPA). Both
get the same strings, sentences of 5 to 60 words, and have tokenizers of one vocabulary;
weights are random, which costs the same. Both are float32.

Latency is the median over 64 strings, one call each; CPU time is of the process, and a
batch is 64 strings in one call.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable

import harness
import texts

OURS, PEER = "electra_tf", "transformers"
COUNT, BATCH, MAX_LENGTH = 512, 64, 128
LABELS = ("negative", "positive")


def ours(vocabulary, folder: str) -> Callable[[list[str]], object]:
    """Exports a model, loads it, and returns its string signature."""
    import tensorflow as tf

    from electra_tf import data, serving, tasks
    from electra_tf.layers import TextEmbedding
    from electra_tf.layers.encoder import TextEncoder

    encoder = TextEncoder(
        TextEmbedding(len(vocabulary), 128), num_layers=12, hidden_size=256, num_heads=4
    )
    task = tasks.Classification(name="mood", source=None, labels=LABELS)
    tokenizer = data.WordPiece(vocabulary)
    model = task.build_model(encoder)
    serving.export_saved_model(model, task, tokenizer, folder, MAX_LENGTH)
    loaded = tf.saved_model.load(folder)

    def answer(batch: list[str]) -> object:
        serve = loaded.signatures["serving_default"]
        return serve(text=tf.constant(batch))["probabilities"].numpy()

    return answer


def peer(vocabulary) -> Callable[[list[str]], object]:
    """Returns a pipeline with a model of the same size."""
    import transformers

    model, tokenizer = texts.small_peer(vocabulary)
    pipeline = transformers.pipeline(
        "text-classification",
        model=model.eval(),
        tokenizer=tokenizer,
        device="cpu",
    )
    return lambda batch: pipeline(
        batch, batch_size=len(batch), truncation=True, max_length=MAX_LENGTH
    )


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of each side")
    arguments = parser.parse_args()

    import tensorflow as tf
    import torch

    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    vocabulary, strings = texts.vocabulary(), texts.sentences(COUNT)
    pieces = itertools.cycle(strings)
    with tempfile.TemporaryDirectory() as folder:
        sides = {OURS: ours(vocabulary, folder), PEER: peer(vocabulary)}
        # Lengths are compiled or cached where a side does that.
        for answer in sides.values():
            for text in strings[:BATCH]:
                answer([text])
            for start in range(0, 3 * BATCH, BATCH):
                answer(strings[start : start + BATCH])
        rows = []

        def compare(what: str, unit: str, measure: Callable[..., float], bar: float):
            def side(name: str) -> Callable[[], float]:
                return lambda: measure(sides[name], given[0])

            given = [[]]
            figures: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(arguments.rounds):
                # Other strings in every round, the same on both sides.
                given[0] = list(itertools.islice(pieces, BATCH))
                found = harness.interleave({name: side(name) for name in sides}, 1)
                for name, values in found.items():
                    figures[name] += values
            rows.append(
                harness.row(what, figures, ours=OURS, peer=PEER, unit=unit, bar=bar)
            )

        compare("one string: latency, median", "seconds", latency, 2.0)
        compare("one string: latency, 95th percentile", "seconds", slow_latency, 2.0)
        compare("one string: CPU time", "CPU seconds", single_cpu, 2.0)
        compare("batch of 64: CPU time", "CPU seconds", batch_cpu, 2.0)
        compare("batch of 64: throughput", "strings/s", throughput, 2.0)
    words = [len(text.split()) for text in strings]
    harness.report(
        "serving",
        rows,
        arguments.output,
        threads=arguments.threads,
        mean_words=statistics.mean(words),
    )


def latencies(answer: Callable, batch: list[str]) -> list[float]:
    """Seconds of a call with each of the strings."""
    seconds = []
    for text in batch:
        began = time.perf_counter()
        answer([text])
        seconds.append(time.perf_counter() - began)
    return seconds


def latency(answer: Callable, batch: list[str]) -> float:
    return statistics.median(latencies(answer, batch))


def slow_latency(answer: Callable, batch: list[str]) -> float:
    return sorted(latencies(answer, batch))[int(0.95 * len(batch))]


def single_cpu(answer: Callable, batch: list[str]) -> float:
    began = time.process_time()
    latencies(answer, batch)
    return (time.process_time() - began) / len(batch)


def batch_cpu(answer: Callable, batch: list[str]) -> float:
    began = time.process_time()
    answer(batch)
    return time.process_time() - began


def throughput(answer: Callable, batch: list[str]) -> float:
    began = time.perf_counter()
    answer(batch)
    return len(batch) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
