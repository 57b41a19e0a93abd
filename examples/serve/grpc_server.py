"""A gRPC server for fine-tuned models, with the API of TensorFlow Serving.

    pip install grpcio && pip install --no-deps tensorflow-serving-api
    python grpc_server.py --model=cola=runs/cola/saved_model --port=8500

Implements ``PredictionService.Predict``, so clients of TensorFlow Serving work
unchanged, and loads a SavedModel, so it does not need this library. It does not batch
requests, reload models or support versions.
"""

from __future__ import annotations

import argparse
import math
from concurrent import futures
from typing import Any

import grpc
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's operations
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

MAX_BYTES = 256 * 1024  # of a request
MAX_VALUES = 64 * 512  # of an input: a small request may claim a huge tensor
MAX_ROWS = 64  # of a request
WORKERS = 4


class Models(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Runs signatures of SavedModels by name."""

    def __init__(self, folders: dict[str, str]):
        # A signature does not keep its variables alive.
        self.models = {name: tf.saved_model.load(f) for name, f in folders.items()}

    def Predict(
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        """Predicts a batch; errors have the codes of TensorFlow Serving."""
        spec = request.model_spec
        if spec.name not in self.models:
            known = ", ".join(self.models)
            self._refuse(context, "NOT_FOUND", f"model {spec.name!r}; known: {known}")
        signatures = self.models[spec.name].signatures
        name = spec.signature_name or "serving_default"
        if name not in signatures:
            known = ", ".join(signatures)
            self._refuse(context, "NOT_FOUND", f"signature {name!r}; known: {known}")
        names = set(signatures[name].structured_input_signature[1])
        if set(request.inputs) != names:
            message = f"inputs must be {', '.join(sorted(names))}"
            self._refuse(context, "INVALID_ARGUMENT", message)
        lengths = set()
        for key, given in request.inputs.items():
            shape = [each.size for each in given.tensor_shape.dim]
            rows = shape[0] if shape else 1
            lengths.add(rows)
            if min(shape, default=1) < 0 or math.prod(shape) > MAX_VALUES:
                message = f"{key} has the shape {shape}; at most {MAX_VALUES} values"
                self._refuse(context, "INVALID_ARGUMENT", message)
            if rows > MAX_ROWS:
                message = f"{key} has {rows} rows; at most {MAX_ROWS}"
                self._refuse(context, "INVALID_ARGUMENT", message)
        if len(lengths) > 1:
            self._refuse(context, "INVALID_ARGUMENT", "inputs have unequal rows")
        try:
            inputs = {key: tf.make_ndarray(x) for key, x in request.inputs.items()}
            outputs = signatures[name](**{k: tf.constant(x) for k, x in inputs.items()})
        except (KeyError, TypeError, ValueError, tf.errors.OpError) as error:
            message = str(error).partition("\n")[0]
            self._refuse(context, "INVALID_ARGUMENT", message)
        response = predict_pb2.PredictResponse(model_spec=spec)
        for key, value in outputs.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def _refuse(self, context: Any, code: str, message: str) -> None:
        context.abort(getattr(grpc.StatusCode, code), message)  # raises


def start(folders: dict[str, str], port: int) -> tuple[grpc.Server, int]:
    """Starts a server; returns it and its port. Port 0 takes a free one."""
    options = [("grpc.max_receive_message_length", MAX_BYTES)]
    # Otherwise two servers share a port, and clients get answers of either.
    options.append(("grpc.so_reuseport", 0))
    pool = futures.ThreadPoolExecutor(WORKERS)
    server = grpc.server(pool, options=options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Models(folders), server
    )
    port = server.add_insecure_port(f"[::]:{port}")
    server.start()
    return server, port


def main() -> None:
    """Serves until the process is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append", required=True, help="NAME=FOLDER")
    parser.add_argument("--port", type=int, default=8500)
    given = parser.parse_args()
    if nameless := [x for x in given.model if not all(x.partition("=")[::2])]:
        parser.error(f"--model={nameless[0]}: give NAME=FOLDER")
    try:
        server, port = start(dict(x.split("=", 1) for x in given.model), given.port)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        # The SavedModel is missing, or the port is in use.
        parser.error(str(error).partition("\n")[0])
    print(f"listening at {port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
