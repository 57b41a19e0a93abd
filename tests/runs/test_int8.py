import json
import re

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


def test_int8_needs_a_format_that_has_it():
    with pytest.raises(ValueError, match="--export_litert or --export_onnx"):
        config(export_precision="int8")


@pytest.mark.slow
def test_the_command_scores_refuses_and_continues(tmp_path, pretrained, monkeypatch):
    import onnx
    import onnxruntime.quantization as tool

    recipe = {"epochs": 8.0, "learning_rate": 1e-2, "train_batch_size": 16}
    recipe |= {"layerwise_decay": 1.0, "pooling": "mean", "adam_bias_correction": True}
    values = moods(tmp_path, pretrained, train=64, dev=20, **recipe)
    values |= {"export_precision": "int8", "output_dir": str(tmp_path / "out")}
    folder, quantize = tmp_path / "out", tool.quantize_dynamic

    def damaging(model, path, **options):
        quantize(model, path, **options)
        damaged = onnx.load(path)
        for tensor in damaged.graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2:
                tensor.raw_data = bytes(len(tensor.raw_data))
        onnx.save(damaged, path)

    flags = [f"--{n}={v}" for n, v in values.items() if not isinstance(v, bool)]
    flags += ["--noexport_saved_model", "--export_onnx", "--export_litert"]
    flags.append("--adam_bias_correction")
    flags.insert(0, "finetune")
    with monkeypatch.context() as patch:
        patch.setattr(tool, "quantize_dynamic", damaging)
        with pytest.raises(SystemExit) as stopped:
            command(flags)
    # A message as the exit status is printed in one line and exits with 1.
    message = r"model.onnx in int8: accuracy 50.00 on eval, 100.00 in float32.*exceeds"
    assert re.search(f"{message} --max_score_loss=0.4", stopped.value.code)
    names = {path.name for path in folder.iterdir()}
    assert {"model.keras", "predictions.tsv", "model.tflite"} <= names
    assert not list(folder.glob("*.onnx*"))
    rows = (folder / "metrics.jsonl").read_text()
    assert command(flags) == 0
    assert (folder / "metrics.jsonl").read_text().startswith(rows)
    results = json.loads((folder / "results.json").read_text())
    # Independent of the run: the files themselves and scikit-learn.
    home = finetuning.FinetuningFolder(folder)
    rows = saved.from_json(home.about()).featurize(EVAL, home.tokenizer(print), 16)
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
        assert row == {**row, "float32": 100, "loss": pytest.approx(100 - row["int8"])}
        line = f"`{name}` is int8: accuracy {row['int8']:.2f}"
        assert line in (folder / "model_card.md").read_text()
    tensors = onnx.load(folder / "model.onnx").graph.initializer
    assert onnx.TensorProto.INT8 in {tensor.data_type for tensor in tensors}
