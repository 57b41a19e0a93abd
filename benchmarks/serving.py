"""Predictions for strings, one and 64 per call, against ``transformers``.

    python benchmarks/serving.py --size=small
    python benchmarks/serving.py --size=mini --threads=1

Our sides are exports of ``run_finetuning.py``: a SavedModel of a text classifier in
float32, int8 in LiteRT and ONNX, and ONNX in float32. The peers are a
``text-classification`` pipeline with ``ElectraForSequenceClassification`` (SDPA) in
float32, and the same model exported by PyTorch and quantized by onnxruntime, as Optimum
does. All get the same strings, sentences of 5 to 60 words. Files without a tokenizer
get ids from the tokenizer of ``transformers``. The weights of small are random, which
costs the same.

Every round has 64 other strings, the same on all sides: one call each for latencies,
then one call with all. CPU time is the process's.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import collections
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness
import texts

from electra_tf.features import ENCODER_INPUTS

OURS, PEER = "electra_tf", "transformers"
LITERT, ONNX, PEER_INT8 = "LiteRT int8", "ONNX int8", "transformers, int8"
FLOAT_ONNX = "ONNX float32"
COUNT, BATCH, MAX_LENGTH = 512, 64, 128
LABELS = ("negative", "positive")
HF_INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
Answer = Callable[[list[str]], object]
LATENCY, THROUGHPUT = "one string, median", "batch of 64"
# Rows of the table: figure, our side, the peer and the ratio to reach.
ROWS = (
    (LATENCY, OURS, PEER, 2.0),
    (THROUGHPUT, OURS, PEER, 2.0),
    (LATENCY, OURS, FLOAT_ONNX, None),
    (LATENCY, LITERT, OURS, 2.0),
    (THROUGHPUT, LITERT, PEER, 3.0),
    (LATENCY, LITERT, PEER_INT8, 1.0),
    (THROUGHPUT, LITERT, PEER_INT8, 1.0),
    (LATENCY, ONNX, PEER_INT8, 1.0),
    (THROUGHPUT, ONNX, PEER_INT8, 1.0),
)


def sides(size: str, folder: Path, threads: int) -> dict[str, Answer]:
    """Returns the functions from strings to predictions by side."""
    import numpy as np
    import onnxruntime
    import tensorflow as tf
    import torch
    import transformers
    from ai_edge_litert.interpreter import Interpreter
    from onnxruntime.quantization import quantize_dynamic

    import electra_tf as et

    tokenizer = et.load("mini").tokenizer
    encoder, layers = et.load("mini").encoder, 4
    if size == "small":
        tokenizer = et.data.WordPiece(texts.vocabulary())
        encoder, layers = texts.small_encoder(tokenizer.vocabulary), 12
        random = np.random.default_rng(0)
        # Initial biases are zeros, which converters remove.
        encoder.set_weights(
            [w + random.normal(0, 0.02, w.shape) for w in encoder.get_weights()]
        )
    task = et.tasks.Classification(name="mood", source=None, labels=LABELS)
    model = task.build_model(encoder)
    network, words = texts.small_peer(tokenizer.vocabulary, layers)
    pipeline = transformers.pipeline(
        "text-classification", model=network.eval(), tokenizer=words, device="cpu"
    )

    def inputs(batch: list[str], dtype: str) -> dict[str, np.ndarray]:
        """Returns int32 inputs of our models, or int64 inputs of the peer's."""
        options = {"truncation": True, "max_length": MAX_LENGTH, "padding": True}
        row = words(batch, return_tensors="np", **options)
        names = HF_INPUTS if dtype == "int64" else ENCODER_INPUTS
        pairs = zip(names, HF_INPUTS, strict=True)
        return {name: row[source].astype(dtype) for name, source in pairs}

    et.serving.export_saved_model(
        model, task, tokenizer, str(folder / "saved"), MAX_LENGTH
    )
    loaded = tf.saved_model.load(str(folder / "saved"))
    names = (LITERT, ONNX, PEER_INT8, FLOAT_ONNX)
    files = {name: str(folder / name) for name in names}
    et.serving.export_litert(model, task, files[LITERT], "int8")
    et.serving.export_onnx(model, task, files[ONNX], "int8")
    et.serving.export_onnx(model, task, files[FLOAT_ONNX])
    example = torch.ones(2, 8, dtype=torch.long)
    torch.onnx.export(
        network,
        (example,) * 3,
        str(folder / "peer"),
        input_names=HF_INPUTS,
        output_names=["logits"],
        dynamic_axes={key: {0: "batch", 1: "length"} for key in HF_INPUTS},
        dynamo=False,
        opset_version=17,
    )
    quantize_dynamic(folder / "peer", files[PEER_INT8], per_channel=True)
    litert = Interpreter(files[LITERT], num_threads=threads).get_signature_runner()

    def in_onnx(path: str, dtype: str) -> Answer:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options)
        return lambda batch: session.run(None, inputs(batch, dtype))

    return {
        OURS: lambda batch: loaded.signatures["serving_default"](
            text=tf.constant(batch)
        )["probabilities"].numpy(),
        FLOAT_ONNX: in_onnx(files[FLOAT_ONNX], "int32"),
        LITERT: lambda batch: litert(**inputs(batch, "int32")),
        ONNX: in_onnx(files[ONNX], "int32"),
        PEER: lambda batch: pipeline(
            batch, batch_size=len(batch), truncation=True, max_length=MAX_LENGTH
        ),
        PEER_INT8: in_onnx(files[PEER_INT8], "int64"),
    }


def megabytes(path: Path) -> float:
    """Returns the size of a file or folder."""
    paths = [path, *path.rglob("*")]
    return sum(each.stat().st_size for each in paths if each.is_file()) / 1e6


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
        (LATENCY, "seconds"): statistics.median(seconds),
        ("one string: latency, 95th percentile", "seconds"): slow,
        ("one string: CPU time", "CPU seconds"): single,
        ("batch of 64: CPU time", "CPU seconds"): used,
        (THROUGHPUT, "strings/s"): len(batch) / took,
    }


def main() -> None:
    made = harness.arguments(__doc__)
    made.add_argument("--size", choices=["mini", "small"], default="small")
    arguments = harness.with_threads(made)
    strings = texts.sentences(COUNT)
    stream = itertools.cycle(strings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers = sides(arguments.size, folder, arguments.threads)
        # Lets every side compile or cache all lengths.
        for answer in answers.values():
            for text in strings[:BATCH]:
                answer([text])
            for start in range(0, 3 * BATCH, BATCH):
                answer(strings[start : start + BATCH])
        figures, units = collections.defaultdict(dict), {}
        for number in range(arguments.rounds):
            batch = list(itertools.islice(stream, BATCH))
            for side in harness.turns(answers, number):
                for (what, unit), value in measure(answers[side], batch).items():
                    figures[what].setdefault(side, []).append(value)
                    units[what] = unit
        sizes = {
            name: megabytes(folder / name) for name in (LITERT, ONNX, "saved", "peer")
        }
    rows = []
    for what, ours, peer, bar in ROWS:
        about = {"ours": ours, "peer": peer, "unit": units[what], "bar": bar}
        name = f"{arguments.size}, {ours}, {what}"
        rows.append(harness.row(name, figures[what], **about))
    harness.report(
        "serving",
        rows,
        arguments.output or harness.RESULTS / f"serving-{arguments.size}.json",
        threads=arguments.threads,
        mean_words=statistics.mean(len(text.split()) for text in strings),
        megabytes=sizes,
        figures=figures,
    )


if __name__ == "__main__":
    main()
