"""Four logical CPU devices, XLA cache, TensorFlow log level and fixed seeds."""

import gc
import os

# Two test workers share two cores, where waiting NumPy threads would spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from electra_tf.config import startup

# Before the import of TensorFlow, so that test workers and subprocesses share the
# cache of compiled XLA code.
startup.keep_compiled_code()
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import pytest
import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    _CPU, [tf.config.LogicalDeviceConfiguration()] * 4
)


@pytest.fixture(autouse=True)
def _fixed_seed():
    keras.utils.set_random_seed(0)


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
