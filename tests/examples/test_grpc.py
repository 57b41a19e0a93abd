import numpy as np
import pytest
import tensorflow as tf

from electra_tf.serving import Predictor
from tests.examples.common import load
from tests.golden.archive import unpack

grpc = pytest.importorskip("grpc")
pytest.importorskip("tensorflow_serving.apis")
TEXTS = ["a large thing", "", "the small one"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    model = unpack("runs", tmp_path_factory.mktemp("golden")) / "task"
    start = load("serve/grpc_server.py").start
    server, port = start({"mine": str(model / "saved_model")}, 0)
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        yield stub, Predictor(str(model))
    server.stop(0).wait()


def request(name="mine", signature="", **inputs):
    from tensorflow_serving.apis import predict_pb2

    asked = predict_pb2.PredictRequest()
    asked.model_spec.name = name
    asked.model_spec.signature_name = signature
    for key, value in inputs.items():
        asked.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return asked


def test_strings_are_answered_as_the_model_does(served):
    stub, predictor = served
    found = stub.Predict(request(text=TEXTS), timeout=60).outputs
    expected = predictor([{"text": text} for text in TEXTS])
    labels = [label.decode() for label in tf.make_ndarray(found["label"])]
    assert labels == [answer["label"] for answer in expected]
    probabilities = tf.make_ndarray(found["probability"])
    wanted = [answer["probability"] for answer in expected]
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-5)


def test_ids_are_answered_too(served):
    stub, _ = served
    ids = np.array([[2, 7, 3]], np.int32)
    inputs = {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}
    found = stub.Predict(request(signature="ids", **inputs), timeout=60).outputs
    assert tf.make_ndarray(found["probabilities"]).sum() == pytest.approx(1, abs=1e-5)


def rows_of_ids(values):
    inputs = ("input_ids", "input_mask", "segment_ids")
    return {"signature": "ids", **dict.fromkeys(inputs, values.astype(np.int32))}


def unequal_rows():
    asked = rows_of_ids(np.ones([2, 4]))
    return {**asked, "segment_ids": np.zeros([1, 4], np.int32)}


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"name": "other", "text": TEXTS}, "NOT_FOUND", "known: mine"),
        ({"signature": "other", "text": TEXTS}, "NOT_FOUND", "serving_default"),
        ({"texts": TEXTS}, "INVALID_ARGUMENT", "inputs must be text"),
        ({"text": [1, 2]}, "INVALID_ARGUMENT", ""),
        ({"text": ["a" * 300_000]}, "RESOURCE_EXHAUSTED", "larger than max"),
        ({"text": ["a"] * 65}, "INVALID_ARGUMENT", "text has 65 rows; at most 64"),
        ({"text": "a"}, "INVALID_ARGUMENT", ""),
        (unequal_rows(), "INVALID_ARGUMENT", "unequal rows"),
        (rows_of_ids(np.ones([1, 9999])), "INVALID_ARGUMENT", ""),
        (rows_of_ids(np.full([1, 2], 2**30)), "INVALID_ARGUMENT", ""),
    ],
)
def test_what_cannot_be_answered_is_refused(served, asked, code, said):
    stub, _ = served
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(request(**asked), timeout=60)
    assert refused.value.code() == getattr(grpc.StatusCode, code)
    assert said in refused.value.details()


def test_a_tensor_that_only_claims_to_be_large(served):
    """Refuses a few bytes that declare a billion values, before allocation."""
    stub, _ = served
    asked = request(text=["a"])
    for shape in ([10**6, 10**6], [1, -1], [2**62, 2**62]):
        del asked.inputs["text"].tensor_shape.dim[:]
        for size in shape:
            asked.inputs["text"].tensor_shape.dim.add(size=size)
        with pytest.raises(grpc.RpcError, match="values") as refused:
            stub.Predict(asked, timeout=60)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("given", ["mine", "mine=/nothing", "=x"])
def test_flags_of_the_server(given, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["grpc_server.py", f"--model={given}", "--port=0"])
    with pytest.raises(SystemExit):
        load("serve/grpc_server.py").main()
    assert "grpc_server.py: error:" in capsys.readouterr().err
