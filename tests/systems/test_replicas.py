import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config import fields, validation
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.systems import build
from tests import tiny
from tests.strategy import cpus
from tests.tiny_run import SIZES

# The first replicas have far more tokens.
LENGTHS = (24, 24, 20, 22, 5, 6, 7, 4)
# After more, a rounding difference may change a sample.
STEPS = 5
SMALL = {
    **SIZES,
    "max_seq_length": tiny.LENGTH,
    "num_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "initializer_range": 0.1,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "clip_norm": 0.1,
}
WHOLE_WIDTH = {"generator_hidden_size": 1.0}
# Devices, micro-batches and precision of each; every registered choice is in one. The
# smallest has four devices, whose tracing is slow.
SYSTEMS = {
    "electra": (2, 1, "none", {}),
    "electra_15": (
        *(2, 2, "bfloat16"),
        {"objective": "electra_15", "generator": "two_tower", "sharing": "gdes"},
    ),
    "all_tokens_mlm": (
        *(2, 2, "none"),
        {"objective": "all_tokens_mlm", "sentence_weight": 1.0, "sharing": "all"}
        | WHOLE_WIDTH,
    ),
    "mlm": (4, 1, "bfloat16", {"objective": "mlm"}),
    "electric": (2, 1, "none", {"objective": "electric", "sharing": "untied"}),
    "two_stage": (
        *(2, 2, "bfloat16"),
        {"training": "two_stage", "objective": "replace_mlm", "sharing": "nes"}
        | WHOLE_WIDTH,
    ),
    "reinforce": (2, 2, "none", {"training": "reinforce", "sharing": "token"}),
    "gumbel": (2, 1, "none", {"training": "gumbel"}),
}


def trained(devices, micro_batches, precision, lengths, **choices):
    """Returns weights, last gradient norms, and metrics of training and evaluation."""
    flags = {
        "num_train_steps": STEPS,
        "train_batch_size": len(lengths),
        "gradient_accumulation_steps": micro_batches,
        "mixed_precision": precision,
    }
    config = fields.from_flat({**SMALL, **flags, **choices}, PretrainConfig)
    special_ids = (tiny.CLS, tiny.SEP, tiny.MASK)
    with cpus(devices).scope():
        phases = build.compiled_phases(config, tiny.VOCAB, special_ids)
    numbers, norms = [], []
    data = tiny.dataset(STEPS, lengths)
    for phase in phases:
        phase.set_trainable()
        history = phase.model.fit(data.take(phase.steps), verbose=0, shuffle=False)
        data = data.skip(phase.steps)
        numbers.append({name: value[0] for name, value in history.history.items()})
        norm = phase.model.optimizer.gradient_norm.value
        norms.append(float(tf.convert_to_tensor(norm)))
    model = phases[-1].model
    held_out = tiny.dataset(2, lengths)
    numbers.append(model.evaluate(held_out, verbose=0, return_dict=True))
    return {v.path: np.array(v) for v in model.weights}, norms, numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_on_several_devices_equals_one(name):
    """Denominators over all replicas (pitfall 27 of docs/fidelity.md)."""
    # ELECTRA's devices have unequal numbers of rows.
    lengths = LENGTHS[:7] if name == "electra" else LENGTHS
    devices, micro_batches, precision, choices = SYSTEMS[name]
    one = trained(1, 1, precision, lengths, **choices)
    many = trained(devices, micro_batches, precision, lengths, **choices)
    # Other samples would change weights by up to learning rate * steps = 0.005.
    tolerance = {"none": 2e-6, "bfloat16": 2e-3}[precision]
    assert max(one[1]) > 0.1  # Clipping is active.
    near = {"rtol": 10 * tolerance, "atol": 10 * tolerance}
    np.testing.assert_allclose(many[1], one[1], **near)
    for found, expected in zip(many[2], one[2], strict=True):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, err_msg=key, **near)
    assert many[0].keys() == one[0].keys()
    for path, value in one[0].items():
        np.testing.assert_allclose(many[0][path], value, atol=tolerance, err_msg=path)


def test_every_row_is_in_a_system():
    for kind, default, table in (
        ("objective", "electra", validation.OBJECTIVES),
        ("sharing", "tied", validation.SHARINGS),
        ("training", "joint", validation.TRAININGS),
    ):
        assert {x.get(kind, default) for *_, x in SYSTEMS.values()} == {*table}
