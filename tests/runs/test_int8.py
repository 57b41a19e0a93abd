"""int8 exports of fine-tuning runs, and the limit on their loss."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from electra_tf.__main__ import main as command
from electra_tf.runs import finetuning
from electra_tf.tasks import saved
from tests.runs.common import config, moods
from tests.serving.test_exports import run_litert, run_onnx
from tests.tasks import common

EVAL = common.sentiment(20, offset=64)
RIGHT = [example.label == "pos" for example in EVAL]


@pytest.fixture
def values(tmp_path, pretrained):
    export = {"export_onnx": True, "export_precision": "int8"}
    recipe = {"epochs": 8.0, "learning_rate": 1e-2, "train_batch_size": 16}
    data = {"train": 64, "dev": 20, "output_dir": str(tmp_path / "out")}
    return moods(tmp_path, pretrained, **data, **recipe, **export)


def test_a_loss_above_the_limit_is_refused(values, tmp_path):
    """The float32 model is right; the file is wrong for texts of even length."""
    lines = []
    job = finetuning.prepare(config(**values, max_score_loss=0.4), lines.append)
    rows = job.data.rows["eval"]
    file, report = tmp_path / "model.onnx", {}
    answers = np.stack([np.logical_not(RIGHT), RIGHT], axis=1).astype(np.float32)
    keys = (tuple(rows.inputs["input_ids"][row]) for row in range(len(RIGHT)))
    by_ids = dict(zip(keys, RIGHT, strict=True))

    def run(inputs):
        ids = [row[row > 0] for row in inputs["input_ids"]]
        is_wrong = inputs["input_mask"].sum(1) % 2 == 0
        signs = np.where(is_wrong, -1, 1) * [2 * by_ids[tuple(x)] - 1 for x in ids]
        return {"logits": np.stack([-signs, signs], axis=1).astype(np.float32)}

    found = np.where(rows.lengths % 2, RIGHT, np.logical_not(RIGHT))
    score = 100 * accuracy_score(RIGHT, found)
    assert 0 < score < 99
    file.write_bytes(b"of an earlier attempt")
    message = rf"model.onnx in int8: accuracy {score:.2f} on eval, 100.00 in float32.*"
    with pytest.raises(ValueError, match=rf"{message}exceeds --max_score_loss=0.4"):
        finetuning._accept(job, answers, file, report, run)
    assert report == {}
    assert not file.exists()
    own = finetuning.dataclasses.replace(job, max_score_loss=100 - score)
    finetuning._accept(own, answers, file, report, run)
    row = {"float32": 100.0, "int8": score, "loss": 100 - score}
    assert report["int8"] == {"model.onnx": pytest.approx(row)}
    assert f"a loss of {100 - score:.2f}" in lines[-1]


def test_int8_needs_a_format_that_has_it():
    with pytest.raises(ValueError, match="--export_litert and --export_onnx"):
        config(export_precision="int8")


@pytest.mark.slow
def test_the_command_scores_refuses_and_continues(values, monkeypatch):
    import onnx
    import onnxruntime.quantization as tool

    folder, quantize = Path(values["output_dir"]), tool.quantize_dynamic

    def damaging(model, path, **options):
        quantize(model, path, **options)
        damaged = onnx.load(path)
        for tensor in damaged.graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2:
                tensor.raw_data = bytes(len(tensor.raw_data))
        onnx.save(damaged, path)

    flags = [f"--{n}={v}" for n, v in values.items() if not isinstance(v, bool)]
    flags += ["--noexport_saved_model", "--export_onnx", "--export_litert"]
    flags.insert(0, "finetune")
    with monkeypatch.context() as patch:
        patch.setattr(tool, "quantize_dynamic", damaging)
        with pytest.raises(SystemExit) as stopped:
            command(flags)
    # A message as the exit status is printed in one line and exits with 1.
    assert "which exceeds --max_score_loss=0.4" in stopped.value.code
    names = {path.name for path in folder.iterdir()}
    assert {"model.keras", "predictions.tsv", "model.tflite"} <= names
    assert not list(folder.glob("*.onnx*"))
    rows = (folder / "metrics.jsonl").read_text()
    assert command(flags) == 0
    assert (folder / "metrics.jsonl").read_text().startswith(rows)
    results = json.loads((folder / "results.json").read_text())
    # Independent of the run: the files themselves and scikit-learn.
    home = finetuning.FinetuningFolder(folder)
    rows = saved.from_json(home.about()).featurize(EVAL, home.tokenizer(), 16)
    for name, load in (("model.onnx", run_onnx), ("model.tflite", run_litert)):
        run = load(str(folder / name))
        found = []
        for row in range(len(EVAL)):
            ids = rows.inputs["input_ids"][row][np.newaxis]
            inputs = {"input_ids": ids, "input_mask": ids * 0 + 1}
            answers = run({**inputs, "segment_ids": ids * 0})
            found.append(answers["probabilities"][0, 1] > 0.5)
        row = results["int8"][name]
        assert row["int8"] == pytest.approx(100 * accuracy_score(RIGHT, found))
        line = f"`{name}` is int8: accuracy {row['int8']:.2f}"
        assert line in (folder / "model_card.md").read_text()
    tensors = onnx.load(folder / "model.onnx").graph.initializer
    assert onnx.TensorProto.INT8 in {tensor.data_type for tensor in tensors}
