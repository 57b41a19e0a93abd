"""Predictions for strings, one and 64 per call, against ``transformers``.

    python benchmarks/serving.py
    python benchmarks/serving.py --threads 1

Our side is an export of ``run_finetuning.py``: a SavedModel of a text classifier of
ELECTRA-Small's size, loaded with ``tf.saved_model.load``. The peer is a
``text-classification`` pipeline with ``ElectraForSequenceClassification`` (SDPA). Both
get the same strings, sentences of 5 to 60 words, and have tokenizers of one vocabulary;
weights are random, which costs the same. Both are float32.

Every round has 64 other strings, the same on both sides: one call each for latencies,
then one call with all. CPU time is the process's.
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

    encoder = texts.small_encoder(vocabulary)
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


def measure(answer: Callable, batch: list[str]) -> dict[tuple[str, str], float]:
    """Times strings one by one and in one call; returns figures by name and unit."""
    seconds, began = [], time.process_time()
    for text in batch:
        start = time.perf_counter()
        answer([text])
        seconds.append(time.perf_counter() - start)
    single = (time.process_time() - began) / len(batch)
    start, began = time.perf_counter(), time.process_time()
    answer(batch)
    used, took = time.process_time() - began, time.perf_counter() - start
    slow = sorted(seconds)[int(0.95 * len(batch))]
    return {
        ("one string: latency, median", "seconds"): statistics.median(seconds),
        ("one string: latency, 95th percentile", "seconds"): slow,
        ("one string: CPU time", "CPU seconds"): single,
        ("batch of 64: CPU time", "CPU seconds"): used,
        ("batch of 64: throughput", "strings/s"): len(batch) / took,
    }


def main() -> None:
    arguments = harness.with_threads(harness.arguments(__doc__))
    vocabulary, strings = texts.vocabulary(), texts.sentences(COUNT)
    stream = itertools.cycle(strings)
    with tempfile.TemporaryDirectory() as folder:
        sides = {OURS: ours(vocabulary, folder), PEER: peer(vocabulary)}
        # Lets either side compile or cache all lengths.
        for answer in sides.values():
            for text in strings[:BATCH]:
                answer([text])
            for start in range(0, 3 * BATCH, BATCH):
                answer(strings[start : start + BATCH])
        figures: dict[tuple, dict[str, list[float]]] = {}
        for number in range(arguments.rounds):
            batch = list(itertools.islice(stream, BATCH))
            for name in harness.turns(sides, number):
                for what, value in measure(sides[name], batch).items():
                    of_side = figures.setdefault(what, {OURS: [], PEER: []})
                    of_side[name].append(value)
    about = {"ours": OURS, "peer": PEER, "bar": 2.0}
    rows = [
        harness.row(what, values, unit=unit, **about)
        for (what, unit), values in figures.items()
    ]
    harness.report(
        "serving",
        rows,
        arguments.output,
        threads=arguments.threads,
        mean_words=statistics.mean(len(text.split()) for text in strings),
    )


if __name__ == "__main__":
    main()
