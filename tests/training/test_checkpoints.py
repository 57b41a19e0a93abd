import resource
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.training import checkpoints
from electra_tf.training.checkpoints import CheckpointStore, read_weights
from electra_tf.training.optimizers import AdamW
from tests import ROOT


def make_variables(value=0.0):
    return {
        "model/a/kernel": tf.Variable(tf.fill([64, 8], value)),
        "model/b.c/bias": keras.Variable(np.full(8, value, "float32")),
        "model/step": tf.Variable(int(value), dtype=tf.int64),
    }


def fill(variables, value):
    for variable in variables.values():
        variable.assign(tf.fill(variable.shape, tf.cast(value, variable.dtype)))


def contents(variables):
    return {float(np.ravel(np.array(v))[0]) for v in variables.values()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    variables, path = make_variables(), tmp_path_factory.mktemp("saved")
    store = CheckpointStore(path, variables)
    for step in (1, 2, 3):
        fill(variables, step)
        store.save(step)
    return path


@pytest.fixture
def folder(saved, tmp_path):
    """Three checkpoints, 1, 2 and 3, filled with their step."""
    return shutil.copytree(saved, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize("name", ["a[1]", "a\\b"])
def test_folders_that_tensorflow_cannot_read_are_refused(tmp_path, name):
    for use in (
        lambda path: CheckpointStore(path, make_variables()),
        lambda path: read_weights([f"{path}/ckpt-1"]),
    ):
        with pytest.raises(ValueError, match=r"cannot read .* Rename the folder"):
            use(tmp_path / name)
    CheckpointStore(tmp_path / "a[*? ", make_variables())


def reopen(folder, **kwargs):
    variables, messages = make_variables(-1.0), []
    store = CheckpointStore(folder, variables, log=messages.append, **kwargs)
    return store, variables, messages


def flip(path, position=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * position)] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "bit flip in the data": lambda d: flip(d / "ckpt-3.data-00000-of-00001"),
    "bit flip in the index": lambda d: flip(d / "ckpt-3.index", 0.2),
    "truncated data": lambda d: (d / "ckpt-3.data-00000-of-00001").write_bytes(b"abc"),
    "truncated index": lambda d: (d / "ckpt-3.index").write_bytes(b""),
    "missing data": lambda d: (d / "ckpt-3.data-00000-of-00001").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_newest_is_reported_and_the_previous_used(folder, damage):
    DAMAGE[damage](folder)
    store, variables, messages = reopen(folder)
    assert store.restore_latest() == 2
    assert contents(variables) == {2.0}
    (message,) = messages
    assert str(folder / "ckpt-3") in message
    assert message.split("ckpt-3: ")[1]


def test_old_checkpoints_are_deleted(folder):
    """A later one is damaged: the run resumed before it."""
    flip(folder / "ckpt-3.data-00000-of-00001")
    store, _, _ = reopen(folder, keep=1)
    assert store.restore_latest() == 2
    (folder / "ckpt-3.index").rename(folder / "ckpt-5.index")
    (folder / "ckpt-3.data-00000-of-00001").rename(
        folder / "ckpt-5.data-00000-of-00001"
    )
    store.save(4)
    assert store.steps() == [4, 5]
    store.save(5)
    assert store.steps() == [5]
    assert tf.train.latest_checkpoint(folder) == str(folder / "ckpt-5")
    assert len(list(folder.iterdir())) == 3


def test_all_damaged_is_an_error_that_names_them(folder):
    for step in (1, 2, 3):
        flip(folder / f"ckpt-{step}.data-00000-of-00001")
    with pytest.raises(OSError, match=r"no intact .*ckpt-3.*ckpt-2.*ckpt-1"):
        reopen(folder)[0].restore_latest()


def test_other_variables_are_refused_by_name(folder):
    variables = make_variables()
    variables["model/a/kernel"] = tf.Variable(tf.zeros([64, 9]))
    variables["model/new"] = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"a/kernel: is \[64, 8\].*") as error:
        CheckpointStore(folder, variables).restore_latest()
    assert "model/new: is (absent), model has []" in str(error.value)
    fewer = make_variables()
    del fewer["model/step"]
    with pytest.raises(ValueError, match=r"model/step: is \[\], model has \(absent\)"):
        CheckpointStore(folder, fewer).restore_latest()


def test_full_disk_keeps_the_previous_and_leaves_nothing_behind(folder):
    store, variables, _ = reopen(folder)
    before = sorted(p.name for p in folder.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(OSError, match=r"step 4 .*still there: 1, 2, 3"):
            store.save(4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(p.name for p in folder.iterdir()) == before
    assert store.restore_latest() == 3
    assert contents(variables) == {3.0}
    store.save(4)
    assert store.steps() == [1, 2, 3, 4]


def test_leftovers_of_a_killed_save_are_removed(folder):
    (folder / ".saving-x").mkdir()
    (folder / ".saving-x" / "ckpt-4.index").write_bytes(b"x")
    # Killed between its data and its index.
    (folder / "ckpt-5.data-00000-of-00001").write_bytes(b"x")
    # Of version 0.2: killed at the very end, in its data, and in its index.
    for step in (3, 4, 6):
        (folder / f"ckpt-{step}_temp").mkdir()
    (folder / "ckpt-4.data-00000-of-00001").write_bytes(b"x")
    (folder / "ckpt-6.index").write_bytes(b"x")
    (folder / "checkpoint").write_bytes(b"\xff{")
    store, _, messages = reopen(folder)
    assert store.restore_latest() == 3
    assert messages == []
    names = {path.name.split(".")[0] for path in folder.iterdir()}
    assert names == {"ckpt-1", "ckpt-2", "ckpt-3", "checkpoint"}
    store.save(7)
    assert tf.train.latest_checkpoint(folder) == str(folder / "ckpt-7")


KILLED = """
import itertools, sys
sys.path.insert(0, {root!r})
import tensorflow as tf
from electra_tf.training.checkpoints import CheckpointStore
variables = {{str(i): tf.Variable(tf.zeros([500_000])) for i in range(8)}}
store = CheckpointStore({folder!r}, variables, keep=2)
for step in itertools.count(1):
    for variable in variables.values():
        variable.assign(tf.fill([500_000], float(step)))
    store.save(step)
    print("saved", flush=True)
"""


@pytest.mark.slow
def test_killed_while_saving(tmp_path):
    script = KILLED.format(root=str(ROOT), folder=str(tmp_path))
    variables = {str(i): tf.Variable(tf.zeros([500_000])) for i in range(8)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        assert process.stdout.readline() == b"saved\n"
        time.sleep(0.64)
        process.send_signal(signal.SIGKILL)
    step = CheckpointStore(tmp_path, variables, keep=2).restore_latest()
    assert step >= 1
    assert contents(variables) == {float(step)}


def make_model():
    """A nested model with automatic and explicit layer names."""

    class Block(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.one = keras.layers.Dense(3)
            self.two = keras.layers.Dense(3)
            self.dropout = keras.layers.Dropout(0.1)

        def build(self, shape):
            self.one.build(shape)
            self.two.build((*shape[:-1], 3))

        def call(self, x):
            return self.two(self.dropout(self.one(x)))

    inputs = keras.Input((3,))
    x = Block(name="layer_0")(inputs)
    x = Block(name="layer_7")(x)
    # The keys of the first one's slots begin those of the second one's.
    for name in ("wide", "wide_kernel"):
        x = keras.layers.Dense(3, name=name)(x)
    x = keras.layers.Dense(2)(Block()(x))
    model = keras.Model(inputs, x)
    model.compile(AdamW(0.1), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_names_do_not_depend_on_what_was_built_before():
    first = make_model()
    keras.layers.Dense(1)
    second = make_model()
    names = checkpoints.named_variables(first, first.optimizer)
    assert list(names) == list(checkpoints.named_variables(second, second.optimizer))
    assert {
        "model/layer_0/dense/kernel",
        "model/layer_0/dense_1/bias",
        "model/layer_7/dense/kernel",
        "model/block/dense_1/kernel",
        "model/dense/kernel",
        "optimizer/iteration",
        "optimizer/gradient_norm",
        "optimizer/momentum/layer_7/dense_1/kernel",
        "optimizer/velocity/dense/bias",
    } <= set(names)
    assert any("seed_generator" in name for name in names)
    assert len(names) == len(first.variables) + len(first.optimizer.variables)
    known = {id(variable): name for name, variable in names.items()}
    velocities = [v for v in first.optimizer.variables if "velocity" in v.path]
    for velocity, variable in zip(velocities, first.trainable_variables, strict=True):
        slot = known[id(velocity)]
        assert slot == known[id(variable)].replace("model/", "optimizer/velocity/")
    assert names["model/layer_7/dense/kernel"] is first.layers[2].one.kernel


def test_loss_scaling_state_is_named_too():
    model = make_model()
    optimizer = keras.optimizers.LossScaleOptimizer(AdamW(0.1))
    optimizer.build(model.trainable_variables)
    assert {
        "optimizer/dynamic_scale",
        "optimizer/iteration",
        "optimizer/inner/iteration",
        "optimizer/inner/momentum/dense/kernel",
    } <= checkpoints.named_variables(model, optimizer).keys()


def test_equal_names_are_an_error():
    model = keras.Model()
    model.parts = [keras.layers.Dense(1, name="same") for _ in range(2)]
    for part in model.parts:
        part.build((1, 1))
    with pytest.raises(ValueError, match=r"called model/same/bias, model/same/kernel"):
        checkpoints.named_variables(model)


def test_read_weights(folder):
    """Without counters and optimizers, from the newest intact checkpoint."""
    variables = make_variables(4.0) | {"optimizer/rate": tf.Variable(4.0)}
    CheckpointStore(folder, variables).save(4)
    prefixes = [str(folder / f"ckpt-{step}") for step in (2, 4)]
    for expected in (4.0, 2.0):
        read = read_weights(prefixes)
        assert read.keys() == {"model/a/kernel", "model/b.c/bias"}
        assert contents(read) == {expected}
        flip(folder / "ckpt-4.data-00000-of-00001")
