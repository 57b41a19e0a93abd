import pytest

from tests.golden.commands import python

LIGHT = """
import gc, sys
from electra_tf.config import startup
with startup.lightly():
    import keras
    sys.stderr.write("a line of somebody else\\n")
assert not {"sklearn", "pandas", "matplotlib"} & set(sys.modules)
assert keras.Model and gc.isenabled() and gc.get_freeze_count() > 100_000
import matplotlib.pyplot, sklearn.base
"""


@pytest.mark.slow
def test_keras_is_imported_without_what_no_command_uses(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    # Without the filter, TensorFlow logs the CPU's features and the missing GPU.
    done = python("-c", LIGHT)
    assert (done.returncode, done.stderr) == (0, "a line of somebody else\n")
