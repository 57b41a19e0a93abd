"""Four logical CPU devices, fixed seeds, and the installed library."""

import gc
import os
import shutil
import subprocess
import sys

# Two test workers share two cores, where waiting NumPy threads would spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests wait longer for XLA's compiler than for its compiled code.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import pytest

from tests import ROOT
from tests.locks import lock_holder  # noqa: F401

# Inputs of a build.
SOURCES = ("electra_tf", "configs", "pyproject.toml", "requirements.txt")
SOURCES += ("README.md", "LICENSE")


def pytest_configure(config):
    """Makes the devices of a process with tests; others need no TensorFlow."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        from electra_tf.config import startup

        # As commands do: less garbage collection, which takes 5 % of the time.
        with startup.lightly():
            import tensorflow as tf
            from tensorflow.python import pywrap_tfe
            from tensorflow.python.util import tf_stack

        # TensorFlow optimizes a graph for each eager operation that it has not run yet,
        # and each new variable is one: a quarter of the time of all tests. Without it,
        # the last bits of an eager softmax are not a graph's.
        pywrap_tfe.TFE_ContextOptionsSetRunEagerOpAsFunction = lambda *_: None
        # It also reads the whole Python stack for each operation of a graph: 5 %.
        stack = tf_stack.extract_stack()
        # The first access reads the frames, which XLA cannot without xdist (-n 0).
        str(stack)
        tf_stack.extract_stack = lambda **_: stack

        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * 4
        tf.config.set_logical_device_configuration(cpu, devices)


@pytest.fixture(autouse=True)
def _fixed_seed_and_policy():
    import keras

    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with the library after `pip install`, built from a copy."""
    work = tmp_path_factory.mktemp("packaging")
    (work / "source").mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, work / "source" / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, work / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(work)]
    subprocess.run([*pip, *build], cwd=work / "source", check=True)
    (wheel,) = work.glob("*.whl")
    target = work / "site"
    install = ["install", "--no-deps", "--no-compile", "--target", str(target)]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    shutil.rmtree(work / "source")
    return target


def pytest_collection_modifyitems(items):
    """Puts the folders with the longest files first: no worker ends alone."""
    items.sort(key=lambda item: item.path.parent.name not in ("tests", "systems"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Collects garbage after each file and freezes the remaining objects.

    Otherwise, after some hundred tests, each full collection scans millions of live
    objects for many seconds.
    """
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done
