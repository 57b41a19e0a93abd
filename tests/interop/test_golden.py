"""Imported models against outputs of `transformers`, written by `make_golden.py`."""

import numpy as np
import pytest

from electra_tf.interop import hugging_face
from electra_tf.interop.imported import Source
from tests.interop.models import CASES, GOLDEN, assert_agree, expected, outputs

OUTPUTS = ("hidden", "rtd_logits", "generator_hidden", "mlm_logits")
ATTENTION = "encoder.layer.0.attention."


@pytest.mark.parametrize("case", CASES)
def test_both_towers_and_heads_agree(case):
    arrays = expected(case)
    imported = hugging_face.read(Source(str(GOLDEN / case)))
    wanted = {name: arrays[name] for name in OUTPUTS}
    assert_agree(outputs(imported, arrays), wanted, arrays)


def swapped(one, other):
    def change(tensors):
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return change


def transposed(name):
    def change(tensors):
        tensors[name] = tensors[name].T

    return change


MISTAKES = {
    "query and key": swapped(
        f"electra.{ATTENTION}self.query.weight", f"electra.{ATTENTION}self.key.weight"
    ),
    "key and value": swapped(
        f"electra.{ATTENTION}self.key.weight", f"electra.{ATTENTION}self.value.weight"
    ),
    "a transposed square kernel": transposed(f"electra.{ATTENTION}output.dense.weight"),
    "the two LayerNorms of a block": swapped(
        f"electra.{ATTENTION}output.LayerNorm.weight",
        "electra.encoder.layer.0.output.LayerNorm.weight",
    ),
    "scale and shift": swapped(
        f"electra.{ATTENTION}output.LayerNorm.weight",
        f"electra.{ATTENTION}output.LayerNorm.bias",
    ),
    "segments": lambda tensors: tensors.update(
        {
            "electra.embeddings.token_type_embeddings.weight": tensors[
                "electra.embeddings.token_type_embeddings.weight"
            ][::-1]
        }
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_sees_a_mistake(mistake, monkeypatch):
    """Mistakes that keep all shapes exceed the tolerance by far."""
    read_tensors = hugging_face.tensor_files.read_tensors

    def changed(folder):
        tensors = read_tensors(folder)
        MISTAKES[mistake](tensors)
        return tensors

    arrays = expected("equal")
    monkeypatch.setattr(hugging_face.tensor_files, "read_tensors", changed)
    source = Source(str(GOLDEN / "equal"), only="discriminator")
    found = outputs(hugging_face.read(source), arrays)
    real = arrays["input_mask"] > 0
    assert np.abs(found["hidden"] - arrays["hidden"])[real].max() > 1e-2
