"""Outputs of stored models, loaded after ``import electra_tf.api`` alone.

    python answers.py MODELS OUT

Calls every MODELS/*/*.keras and trains each whole.keras for one step.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import electra_tf as et
import electra_tf.api  # The only import from the library.


def main(folder, out):
    folder = Path(folder)
    known = sorted(keras.saving.get_custom_objects())
    described = {"registered": [x for x in known if x.startswith("electra_tf>")]}
    numbers = {}
    for path in sorted(folder.glob("*/*.keras")):
        name = str(path.relative_to(folder).with_suffix(""))
        # Otherwise Keras's numbered names depend on the models loaded before.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        model = keras.saving.load_model(path)
        described[name] = describe(model)
        own = folder / "inputs" / f"{path.stem}.npz"
        inputs = own if own.exists() else folder / "inputs" / "pretraining.npz"
        batch = {key: tf.constant(value) for key, value in np.load(inputs).items()}
        for number, value in enumerate(tf.nest.flatten(model(batch))):
            numbers[f"{name}:output_{number}"] = np.asarray(value)
        if path.stem == "whole":
            for key, value in train(model, batch).items():
                numbers[f"{name}:{key}"] = np.asarray(value, np.float64)
    Path(f"{out}.json").write_text(json.dumps(described, indent=1) + "\n")
    np.savez(f"{out}.npz", **numbers)


def describe(model):
    """Class, size, variables and optimizer, as plain values."""
    found = {
        "class": type(model).__name__,
        "parameters": model.count_params(),
        "variables": [_variable(variable) for variable in model.variables],
    }
    if model.compiled:
        optimizer = keras.saving.serialize_keras_object(model.optimizer)
        # Keras serializes the module of a part, which may change.
        config = json.loads(
            json.dumps(optimizer["config"]),
            object_hook=lambda part: {k: v for k, v in part.items() if k != "module"},
        )
        found["optimizer"] = {
            "registered_name": optimizer["registered_name"],
            "config": config,
            "variables": [_variable(v) for v in model.optimizer.variables],
            "magnitudes": _magnitudes(model.optimizer.variables),
        }
    return found


def train(model, batch):
    """Returns losses on a batch, and weights after an update with dropout."""
    if not model.compiled:
        model.compile(optimizer=et.training.AdamW(1e-3))
    # Eager mode, because tracing would take most of the time.
    model.run_eagerly = True
    data = tf.data.Dataset.from_tensors(batch)
    held_out = model.evaluate(data, verbose=0, return_dict=True)
    history = model.fit(data, verbose=0, shuffle=False).history
    return {
        **{f"evaluate_{k}": np.ravel(v)[0] for k, v in held_out.items()},
        **{f"fit_{k}": np.ravel(v)[0] for k, v in history.items()},
        "weights": _magnitudes(model.variables),
    }


def _magnitudes(variables):
    return [float(np.abs(np.asarray(v, np.float64)).sum()) for v in variables]


def _variable(variable):
    shape = list(variable.shape)
    return [variable.path, shape, variable.dtype, bool(variable.trainable)]


if __name__ == "__main__":
    main(*sys.argv[1:])
