"""Two logical CPU devices, a cache for XLA, quiet TensorFlow, fixed seeds."""

import os
import shutil
import tempfile

# Before TensorFlow is imported. XLA reports an error whenever it reads its cache.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What one process compiled, other workers and the processes that tests start read back.
# The first process to come here is pytest's own: it makes the folder and deletes it.
_XLA_CACHE = None
if "TF_XLA_FLAGS" not in os.environ:
    _XLA_CACHE = tempfile.mkdtemp(prefix="electra_tf_xla_")
    flag = f"--tf_xla_persistent_cache_directory={_XLA_CACHE}"
    os.environ["TF_XLA_FLAGS"] = flag
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import pytest
import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    _CPU, [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True)
def _fixed_seed():
    keras.utils.set_random_seed(0)


def pytest_unconfigure():
    if _XLA_CACHE:
        shutil.rmtree(_XLA_CACHE, ignore_errors=True)
