import doctest
import importlib
import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from tests.test_surface import PACKAGES, public_names

PACKAGE = Path(et.__file__).parent
# Names available to every example.
GIVEN = {"et": et, "keras": keras, "np": np, "tf": tf}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# Slow modules, which train, export or trace a network.
LONG = {
    *("api.loading", "api.text_models", "data.pipeline"),
    *("pretraining.electra", "pretraining.electric", "pretraining.objectives"),
    *("serving.export", "serving.predictor", "tasks.heads"),
    *("tasks.recipe", "tasks.span_head", "tasks.text"),
}


def with_examples():
    """Yields the modules with examples without importing them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text("utf-8"):
            name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            marks = [pytest.mark.slow] if name in LONG else []
            yield pytest.param(f"electra_tf.{name}", marks=marks)


def test_every_public_name_has_an_example():
    without = {
        f"{value.__module__}.{value.__name__}"
        for package in map(importlib.import_module, PACKAGES)
        for name in public_names(package)
        # Modules and constants have no `__module__`.
        if hasattr(value := getattr(package, name), "__module__")
        and ">>> " not in (inspect.getdoc(value) or "")
    }
    assert without == set()


@pytest.mark.parametrize("name", with_examples())
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    given = {**vars(module), **GIVEN}
    # The package docstring defines names for all examples of the package.
    package = importlib.import_module(module.__package__)
    for example in doctest.DocTestParser().get_examples(package.__doc__):
        exec(example.source, given)
    tests = doctest.DocTestFinder().find(module, globs=given)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    messages = []
    for test in tests:
        keras.utils.set_random_seed(0)
        runner.run(test, out=messages.append)
    assert not runner.failures, "".join(messages)
    assert runner.tries
