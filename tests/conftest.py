"""Four logical CPU devices, a cache for XLA, quiet TensorFlow, fixed seeds."""

import gc
import os

# Two workers have two cores: threads of NumPy's that wait for each other's would spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from electra_tf.config import startup

# Before TensorFlow is imported: the workers, and the processes that tests start, share
# what XLA compiles.
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
    """Frees what a file has left, and looks at the rest no more.

    After some hundred tests a full collection would walk through millions of objects
    that stay, for many seconds each time.
    """
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done
