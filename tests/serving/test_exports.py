import logging
import sys
import warnings

import numpy as np
import pytest

from electra_tf.layers.serialization import fresh_copy
from electra_tf.serving import export as serving
from electra_tf.tasks import Classification, MultiLabel, Regression
from electra_tf.tasks.question_answering import QuestionAnswering
from tests import tiny
from tests.tasks import common
from tests.tasks.test_tagging import task as tagging

KINDS = {
    "classification": Classification(name="c", source=None, labels=("neg", "pos")),
    "multilabel": MultiLabel(name="m", source=None, labels=("x", "y", "z")),
    "regression": Regression(name="r", source=None, label_range=(2.0, 12.0)),
    "tagging": tagging(),
    "squad2": QuestionAnswering(
        name="squad2", source=None, unanswerable=True, answerability=True
    ),
}
OUTPUTS = {
    "classification": "logits probabilities probability",
    "multilabel": "logits predicted probabilities",
    "regression": "logits score",
    "tagging": "logits probabilities",
    "squad2": "end_index end_log_probs null_logits start_index start_log_probs",
}


def run_litert(path):
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    runner = litert.Interpreter(path).get_signature_runner()
    return lambda inputs: runner(**inputs)


def run_onnx(path):
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def inputs_of(batch, length):
    """Rows of [CLS] a [SEP] b ..., with padding in all but the first."""
    random = np.random.default_rng(length)
    lengths = np.array([length, *random.integers(3, length + 1, batch - 1)])
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    ids = random.integers(0, common.VOCAB_SIZE, mask.shape, np.int32)
    segments = mask * (np.arange(length, dtype=np.int32) >= 2)
    return {"input_ids": ids * mask, "input_mask": mask, "segment_ids": segments}


def check(kind, task, model, found):
    """Checks lengths below and above the beam, and a batch of one."""
    for batch, length in ((1, 3), (3, 12), (2, 40)):
        inputs = inputs_of(batch, length)
        outputs = model(inputs, training=False)
        named = outputs if isinstance(outputs, dict) else {"logits": outputs}
        expected = {**named, **task.serving_id_outputs(outputs, inputs)}
        expected = {name: tensor.numpy() for name, tensor in expected.items()}
        returned = found(inputs)
        for name, values in returned.items():
            assert values.shape == expected[name].shape, name
        expected = task.comparable(expected)
        assert expected
        for name, values in task.comparable(returned).items():
            if kind == "tagging":
                # Exported models skip padding; its logits are zeros.
                real = inputs["input_mask"] == 1
                assert name != "logits" or not values[~real].any()
                values, expected[name] = values[real], expected[name][real]
            np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-4)
        assert sorted(returned) == OUTPUTS[kind].split()


def checker(task):
    module = serving.NumbersModule(task.build_model(common.encoder(layers=1)), task)
    return module, lambda inputs: tiny.numpy(module.answer(inputs))


def write(module, run, path):
    return serving.write_checked(
        module, run, b"", str(path), "float32", lambda run: None
    )


def test_nan_in_any_output_is_a_difference():
    module, answer = checker(KINDS["classification"])
    for name in OUTPUTS["classification"].split():

        def run(inputs, name=name):
            outputs = answer(inputs)
            return outputs | {name: outputs[name] * np.nan}

        assert np.isnan(module.difference(run))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multilabel", "tagging", "squad2"])
def test_litert_agrees_with_the_model(tmp_path, kind):
    task = KINDS[kind]
    model = task.build_model(common.encoder(layers=1))
    path = str(tmp_path / "model.tflite")
    with warnings.catch_warnings(action="error", category=UserWarning):
        assert serving.export_litert(model, task, path) < 1e-4
    check(kind, task, model, run_litert(path))


@pytest.mark.slow
def test_mixed_precision_is_exported_in_float32(tmp_path):
    task = KINDS["classification"]
    model = task.build_model(common.encoder(layers=1))
    mixed = task.build_model(fresh_copy(model.encoder, "mixed_bfloat16"))
    mixed.set_weights(model.get_weights())
    path = str(tmp_path / "model.tflite")
    assert serving.export_litert(mixed, task, path) < 1e-4
    check("classification", task, model, run_litert(path))


@pytest.mark.slow
def test_litert_needs_no_package_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    task = KINDS["regression"]
    model = task.build_model(common.encoder(layers=1))
    path = tmp_path / "model.tflite"
    with pytest.warns(UserWarning, match="ai_edge_litert"):
        assert serving.export_litert(model, task, str(path)) < 1e-4
    assert path.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "squad2"])
def test_onnx_agrees_with_the_model(tmp_path, kind):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    task = KINDS[kind]
    model = task.build_model(common.encoder(layers=1))
    # Ones and zeros, which converters remove, are not the weights of trained models.
    random = np.random.default_rng(0)
    model.set_weights([w + random.normal(0, 0.1, w.shape) for w in model.get_weights()])
    path = str(tmp_path / "model.onnx")
    assert serving.export_onnx(model, task, path) < 1e-4
    if kind == "squad2":
        logging.disable(logging.ERROR)
        try:
            serving.export_onnx(model, task, str(tmp_path / "int8.onnx"), "int8")
            assert logging.root.manager.disable == logging.ERROR
        finally:
            logging.disable(logging.NOTSET)
    check(kind, task, model, run_onnx(path))
    graph = pytest.importorskip("onnx").load(path).graph
    operations = [node.op_type for node in graph.node]
    # One of the embeddings, two of the layer; no other has a reciprocal.
    assert operations.count("LayerNormalization") == 3
    assert "Reciprocal" not in operations


def test_onnx_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(serving, "NumbersModule", None)  # Fails if the export starts.
    with pytest.raises(ValueError, match="pip install tf2onnx onnx onnxruntime"):
        serving.export_onnx(None, None, str(tmp_path / "model.onnx"))


def test_a_model_that_answers_otherwise_is_not_written(tmp_path):
    module, answer = checker(KINDS["squad2"])
    assert module.difference(answer) == 0

    def other(inputs):
        # Another segment changes the beam.
        return answer({**inputs, "segment_ids": np.roll(inputs["segment_ids"], 1, 1)})

    assert module.difference(other) > 1e-3
    with pytest.raises(ValueError, match="differs from the Keras model"):
        write(module, other, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_scores_of_a_wide_range_of_labels_are_rounded(tmp_path):
    task = Regression(name="price", source=None, label_range=(0.0, 5e5))
    module, answer = checker(task)

    def moved(change):
        def run(inputs):
            outputs = answer(inputs)
            return outputs | {"score": outputs["score"] + np.float32(change)}

        return run

    path = tmp_path / "m.onnx"
    with pytest.raises(ValueError, match="differs from the Keras model"):
        write(module, moved(1000), path)
    assert not path.exists()
    assert 0.4 < write(module, moved(0.5), path) < 0.6
