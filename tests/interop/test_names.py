"""The name table: joins, splits, and missing, unknown or wrongly shaped tensors."""

import numpy as np
import pytest

from electra_tf.interop.imported import Imported, Sizes, Tower
from electra_tf.interop.names import GOOGLE_TF1, HUGGING_FACE, Row, Tensors, scatter

SIZES = Sizes(
    vocab_size=11,
    embedding_size=6,
    max_positions=7,
    num_segments=2,
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    intermediate_size=10,
)


def arrays(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return {
        row.ours: rng.normal(size=row.shape).astype(np.float32)
        for row in HUGGING_FACE.encoder(sizes)
    }


def rows(style, sizes=SIZES, prefix=""):
    return style.encoder(sizes, prefix, prefix)


def test_three_kernels_are_one_in_the_order_query_key_value():
    row = Row("qkv_kernel", ("q", "k", "v"), (4, 6), flip=True)
    query, key, value = (np.full((2, 2), number) for number in (1, 2, 3))
    query = np.array([[1, 10], [100, 1000]])
    joined = row.join([query, key, value])
    np.testing.assert_array_equal(joined[:, :2], [[1, 100], [10, 1000]])
    np.testing.assert_array_equal(joined[:, 2:], [[2, 2, 3, 3]] * 2)
    back = row.split(joined)
    np.testing.assert_array_equal(back["q"], query)
    assert row.their_shape == (2, 4)


@pytest.mark.parametrize("style", [HUGGING_FACE, GOOGLE_TF1])
@pytest.mark.parametrize("width", [6, 8])
def test_every_array_comes_back_to_the_bit(style, width):
    sizes = Sizes(**{**vars(SIZES), "embedding_size": width})
    ours = arrays(sizes)
    theirs = scatter(rows(style, sizes, "p:"), ours)
    tensors = Tensors(theirs, "source")
    found = tensors.sizes(style, embeddings="p:", body="p:", num_heads=2)
    assert found == sizes
    back = tensors.read(rows(style, sizes, "p:"))
    assert tensors.left == []
    assert back.keys() == ours.keys()
    assert all(np.array_equal(back[name], ours[name]) for name in ours)


def test_heads_follow_the_original_rule():
    wide = Sizes(**{**vars(SIZES), "hidden_size": 192, "num_layers": 1})
    theirs = scatter(rows(GOOGLE_TF1, wide), arrays(wide))
    found = Tensors(theirs, "source").sizes(GOOGLE_TF1, embeddings="", body="")
    assert found.num_heads == 3
    narrow = scatter(rows(GOOGLE_TF1), arrays())
    found = Tensors(narrow, "source").sizes(GOOGLE_TF1, embeddings="", body="")
    assert found.num_heads == 1


def test_wrong_tensors_are_named():
    theirs = scatter(rows(HUGGING_FACE), arrays())
    name = "encoder.layer.1.output.dense.weight"
    missing = {key: value for key, value in theirs.items() if key != name}
    with pytest.raises(ValueError, match=f"has no tensor {name}"):
        Tensors(missing, "here").read(rows(HUGGING_FACE))
    misshapen = theirs | {name: theirs[name].T}
    with pytest.raises(ValueError, match=rf"{name} has the shape \[10, 8\].*\[8, 10\]"):
        Tensors(misshapen, "here").read(rows(HUGGING_FACE))
    broken = theirs | {name: np.full_like(theirs[name], np.nan)}
    with pytest.raises(ValueError, match=f"{name} has values that are not finite"):
        Tensors(broken, "here").read(rows(HUGGING_FACE))
    empty = {key: v for key, v in theirs.items() if not key.startswith("encoder")}
    with pytest.raises(ValueError, match=r"has no tensor encoder\.layer\.0"):
        Tensors(empty, "here").sizes(HUGGING_FACE, embeddings="", body="")


def test_an_array_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for relative_positions"):
        scatter(rows(HUGGING_FACE), arrays() | {"relative_positions": np.zeros(3)})


def test_towers_that_do_not_share_their_tables_are_no_pair():
    one, other = arrays(), arrays(seed=1)
    discriminator, generator = Tower(SIZES, one, {}), Tower(SIZES, other, {})
    pair = {"discriminator": discriminator, "generator": generator}
    with pytest.raises(ValueError, match=r"do not share .*word_embeddings \(up to"):
        Imported(format="f", source="s", **pair)
    pair["generator"] = Tower(SIZES, one, {})
    assert list(Imported(format="f", source="s", **pair).towers) == list(pair)
    with pytest.raises(ValueError, match="neither tower"):
        Imported(format="f", source="s")
