import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.interop import google_tf1
from electra_tf.interop.networks import Source
from tests.interop.models import GOLDEN, assert_agree, assert_same, expected, outputs
from tests.reference import google_tf1 as reference

VOCAB_FILE = GOLDEN / "projected" / "vocab.txt"
SIZES = {"vocab": 35, "positions": 16, "segments": 2, "embedding": 8, "hidden": 16}
SIZES |= {"layers": 2, "intermediate": 24}
# Like small, base and large: they differ in projections and numbers of heads.
CASES = {
    "small": (SIZES, {"hidden": 12, "intermediate": 20}),
    "base": (SIZES | {"embedding": 16}, {"hidden": 8, "layers": 1}),
    "wide": (SIZES | {"hidden": 128, "layers": 1}, {"hidden": 64}),
}
RULE = {"small": (1, 1), "base": (1, 1), "wide": (2, 1)}


def save(prefix, variables):
    """Writes a checkpoint in the format of `tf.train.Saver`."""
    names = sorted(variables)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(variables[name]) for name in names],
    )


def checkpoint(folder, sizes, generator, extra=None):
    # Smaller weights in wide layers keep the float32 error below the tolerance of 1e-5.
    stddev = 0.3 if sizes["hidden"] < 64 else 0.1
    shapes = reference.shapes(sizes, generator)
    variables = reference.random_variables(shapes, stddev=stddev)
    save(folder / "model", variables | (extra or {}))
    (folder / "vocab.txt").write_bytes(VOCAB_FILE.read_bytes())
    return variables


def read(path, **options):
    return google_tf1.read(Source(str(path), **options))


def assert_reference(imported, variables, *heads):
    arrays = expected("projected")
    heads = dict(zip(("electra", "generator"), heads, strict=True))
    networks = reference.Checkpoint(variables, heads)
    given = (arrays["input_ids"], arrays["segment_ids"], arrays["input_mask"])
    wanted = {
        "hidden": networks.hidden("electra", *given),
        "rtd_logits": networks.rtd_logits(*given),
        "generator_hidden": networks.hidden("generator", *given),
        "mlm_logits": networks.mlm_logits(*given, arrays["masked_lm_positions"]),
    }
    assert_agree(outputs(imported, arrays), wanted, arrays)


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_numpys_and_written_checkpoints_are_the_same(case, tmp_path):
    variables = checkpoint(tmp_path, *CASES[case])
    imported = read(tmp_path)
    assert any("attention heads" in note for note in imported.notes)
    assert_reference(imported, variables, *RULE[case])
    imported = read(tmp_path, num_heads=4)
    out = tmp_path / "out"
    out.mkdir()
    assert google_tf1.write(out, imported) == ()
    cased = dataclasses.replace(imported, lower_case=False)
    assert "--nolower_case" in google_tf1.write(out, cased)[0]
    accented = dataclasses.replace(imported, strip_accents=False)
    assert google_tf1.write(out, accented)[0].endswith("with --nostrip_accents")
    reader = tf.train.load_checkpoint(str(out))
    names = reader.get_variable_to_shape_map()
    np.testing.assert_equal(
        {name: reader.get_tensor(name) for name in names}, variables
    )
    assert_same(read(out), imported)
    assert {path.name for path in out.iterdir()} <= set(google_tf1.OUTPUTS)


def test_the_number_of_heads_by_flag_and_by_config_file(tmp_path):
    variables = checkpoint(tmp_path, *CASES["small"])
    assert read(tmp_path, num_heads=3, only="generator").generator.sizes.num_heads == 3
    with pytest.raises(ValueError, match="not divisible by num_heads 3"):
        read(tmp_path, num_heads=3)
    path = tmp_path / "small_generator_config.json"
    path.write_text(json.dumps({"num_attention_heads": 3}))
    flagged = read(tmp_path, num_heads=4)
    assert flagged.notes == ()
    assert_reference(flagged, variables, 4, 3)
    path = tmp_path / "small_discriminator_config.json"
    path.write_text(json.dumps({"num_attention_heads": 4}))
    assert_same(read(tmp_path), flagged)
    path.write_text(json.dumps({"hidden_act": "relu"}))
    with pytest.raises(ValueError, match="hidden_act is 'relu'"):
        read(tmp_path)


def test_a_folder_a_prefix_and_the_newest_of_several(tmp_path, monkeypatch):
    for path in (tmp_path, "google/electra-small-generator"):
        assert not google_tf1.detect(Source(str(path)))
    tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "ckpt-1"))
    with pytest.raises(ValueError, match="ckpt-1 has no tensor electra/"):
        read(tmp_path)
    for path in tmp_path.glob("ckpt-1*"):
        path.unlink()
    checkpoint(tmp_path, *CASES["small"])
    assert google_tf1.detect(Source(str(tmp_path)))
    whole = read(tmp_path)
    assert_same(read(tmp_path / "model"), whole)
    assert_same(read(tmp_path / "model.index"), whole)
    for step in (9, 100):
        shapes = reference.shapes(*CASES["small"])
        save(tmp_path / f"model.ckpt-{step}", reference.random_variables(shapes, step))
    (tmp_path / "model.index").unlink()
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(ValueError, match=r"name one, such as .*/model\.ckpt-100"):
        read(tmp_path)
    # TensorFlow's `checkpoint` file names the newest, even if it has another folder.
    for place in ("", "/somewhere/else/"):
        line = f'model_checkpoint_path: "{place}model.ckpt-9"\n'
        (tmp_path / "checkpoint").write_text(line)
        assert_same(read(tmp_path), read(tmp_path / "model.ckpt-9"))
    for text in (b"\xff\xfe\0", b'model_checkpoint_path: "model.ckpt-7"\n'):
        (tmp_path / "checkpoint").write_bytes(text)
        with pytest.raises(ValueError, match="several checkpoints"):
            google_tf1.newest(tmp_path)
    # A folder is not the checkpoint of its name beside it.
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.index").write_text("")
    assert google_tf1.newest(tmp_path / "empty") is None
    monkeypatch.chdir(tmp_path / "empty")
    assert not google_tf1.detect(Source("."))


def test_state_of_training_is_left_and_named(tmp_path):
    word = "electra/embeddings/word_embeddings"
    state = {
        "global_step": np.int64(7),
        f"{word}/adam_m": np.zeros((35, 8), np.float32),
        f"{word}/adam_v": np.zeros((35, 8), np.float32),
        "loss_scale": np.float32(8),
        "good_steps": np.int64(3),
        "electra/pooler/dense/kernel": np.zeros((16, 16), np.float32),
    }
    checkpoint(tmp_path, *CASES["small"], state)
    assert set(read(tmp_path).not_taken) == state.keys()


def test_wrong_variables_are_named(tmp_path):
    extra = "cloze_predictions/dense/bias"
    variables = checkpoint(tmp_path, *CASES["small"], {extra: np.zeros(3, "f4")})
    with pytest.raises(ValueError, match=f"not part of ELECTRA: {extra}"):
        read(tmp_path)
    name = "generator/encoder/layer_1/attention/self/key/kernel"
    save(tmp_path / "model", variables | {name: variables[name][:, :3]})
    with pytest.raises(ValueError, match=rf"{name} has the shape \[12, 3\]"):
        read(tmp_path)
    data = next(tmp_path.glob("model.data-*"))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        read(tmp_path)


def test_a_generator_with_tables_of_its_own_is_imported_alone(tmp_path):
    variables = checkpoint(tmp_path, *CASES["small"])
    own = {
        name.replace("electra/", "generator/"): value[..., ::-1].copy()
        for name, value in variables.items()
        if name.startswith("electra/embeddings/")
    }
    save(tmp_path / "model", variables | own)
    with pytest.raises(ValueError, match=r"do not share their embeddings; .*alone"):
        read(tmp_path)
    discriminator = read(tmp_path, only="discriminator")
    assert list(discriminator.towers) == ["discriminator"]
    assert own.keys() < set(discriminator.not_taken)
    tables = read(tmp_path, only="generator").generator.encoder
    words = "embeddings/word_embeddings"
    np.testing.assert_array_equal(tables[words], own[f"generator/{words}"])


def test_the_head_of_electric_is_not_taken(tmp_path):
    extra = {"cloze_predictions/output_bias": np.zeros(SIZES["vocab"], np.float32)}
    checkpoint(tmp_path, *CASES["small"], extra)
    found = read(tmp_path, only="discriminator")
    assert found.discriminator.head == {}
    assert "discriminator_predictions/dense/kernel" in found.not_taken


def test_masked_lm_alone_and_one_encoder_for_both(tmp_path):
    variables = reference.random_variables(reference.shapes(SIZES, {}))
    shared = {k: v for k, v in variables.items() if not k.startswith("generator/")}
    (tmp_path / "vocab.txt").write_bytes(VOCAB_FILE.read_bytes())
    save(tmp_path / "model", shared)
    both = read(tmp_path)
    assert list(both.towers) == ["discriminator", "generator"]
    assert [note.split()[0] for note in both.notes] == ["one", "assumed:"]
    # One encoder has one number of heads.
    towers = read(tmp_path, num_heads=4).towers.values()
    assert [tower.sizes.num_heads for tower in towers] == [4, 4]
    (tmp_path / "discriminator_config.json").write_text('{"num_attention_heads": 2}')
    assert read(tmp_path, only="generator").generator.sizes.num_heads == 2
    head = "discriminator_predictions"
    alone = {k: v for k, v in shared.items() if not k.startswith(head)}
    save(tmp_path / "model", alone)
    mlm = read(tmp_path)
    assert list(mlm.towers) == ["generator"]
    (tmp_path / "out").mkdir()
    google_tf1.write(tmp_path / "out", mlm)
    names = {name for name, _ in tf.train.list_variables(str(tmp_path / "out"))}
    assert names == alone.keys()
