"""Golden models and comparison of outputs, shared by tests of weights."""

from pathlib import Path

import numpy as np

from electra_tf.interop import networks

GOLDEN = Path(__file__).parent / "golden"
CASES = ("projected", "equal", "sixteen_heads")


def batch(rng, vocab_size):
    """Random ids of three rows with two segments and padding."""
    index, lengths = np.arange(12)[None], np.array([[12], [7], [9]])
    mask = (index < lengths).astype(np.int32)
    return {
        "input_ids": rng.integers(5, vocab_size, mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": ((index >= lengths // 2) * mask).astype(np.int32),
    }


def outputs(imported, arrays):
    """Hidden states and logits of the towers of an `Imported`, as NumPy arrays."""
    built = networks.models(imported)
    inputs = {k: arrays[k] for k in ("input_ids", "input_mask", "segment_ids")}
    found = {"encoder_hidden": built["encoder"](inputs)}
    if "discriminator" in built:
        found["hidden"] = built["discriminator"].encoder(inputs)
        found["rtd_logits"] = built["discriminator"](inputs)
    if "generator" in built:
        masked = {**arrays, "masked_input_ids": arrays["input_ids"]}
        found["generator_hidden"] = built["generator"].encoder(inputs)
        found["mlm_logits"] = built["generator"](masked)
    return {name: np.asarray(tensor) for name, tensor in found.items()}


def expected(case):
    with np.load(GOLDEN / case / "expected.npz") as file:
        return dict(file)


def assert_agree(found, wanted, arrays):
    """Checks that every expected output exists and agrees at the real tokens."""
    real = arrays["input_mask"] > 0
    assert wanted.keys() <= found.keys()
    for name, value in wanted.items():
        ours = found[name]
        if name != "mlm_logits":
            ours, value = ours[real], value[real]
        assert np.abs(value).max() > 0.1, "too small to tell a mistake"
        np.testing.assert_allclose(ours, value, atol=1e-5, rtol=0, err_msg=name)


def assert_golden(imported, case):
    arrays = expected(case)
    names = ("hidden", "rtd_logits", "generator_hidden", "mlm_logits")
    wanted = {name: arrays[name] for name in names}
    assert_agree(outputs(imported, arrays), wanted, arrays)


def assert_same(one, other):
    """Checks that two `Imported` hold bit-identical towers."""
    assert one.towers.keys() == other.towers.keys()
    for role, tower in one.towers.items():
        np.testing.assert_equal(vars(tower), vars(other.towers[role]))
