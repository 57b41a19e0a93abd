"""A file with each trap, which doctor names, and a healthy file of each kind."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from electra_tf import doctor
from electra_tf.__main__ import main as command
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.doctor import read_flagfile, report
from tests import tiny, tiny_run
from tests.doctor import files
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS

ROOT = Path(__file__).parent.parent.parent
SEEN = set()


def said(findings):
    """What is not all right: (level, trap) to the texts."""
    found = {}
    for finding in findings:
        if finding.level != doctor.OK:
            assert finding.advice, "who is warned must be told what to do"
            found.setdefault((finding.level, finding.trap), []).append(finding.found)
    return {key: " | ".join(texts) for key, texts in found.items()}


def check(findings, level, trap, text):
    """Exactly this trap is named."""
    found = said(findings)
    assert found.keys() == {(level, trap)}
    assert text in found[level, trap]
    SEEN.add(trap)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return tiny_run.save(tmp_path_factory.mktemp("run") / "healthy")


@pytest.fixture
def folder(healthy, tmp_path):
    return Path(shutil.copytree(healthy, tmp_path / "run"))


def examine(path):
    return doctor.examine(doctor.read(path))


def edit_json(path, edit):
    found = json.loads(path.read_text())
    edit(found)
    path.write_text(json.dumps(found))


def edit_weights(path, edit, names=("discriminator", "generator", "encoder")):
    """Changes the variables with `edit(path, value)`, which returns None or a value."""
    for name in names:
        file = path / f"{name}.keras"
        model = keras.saving.load_model(file, compile=False)
        for variable in model.trainable_variables:
            value = edit(variable.path, variable.numpy())
            if value is not None:
                variable.assign(value)
        model.save(file)


# Healthy files


def test_a_healthy_run(healthy):
    findings = examine(healthy)
    assert said(findings) == {}
    applies = {finding.trap for finding in findings}
    assert applies == doctor.TRAPS.keys() - {"recipe", "optimizer slots"}


@pytest.mark.parametrize("kind", ["discriminator", "generator"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_healthy_hugging_face_folder(tmp_path, kind, dtype):
    assert said(examine(files.hugging_face(tmp_path, kind, dtype=dtype))) == {}


def test_a_healthy_google_checkpoint(tmp_path):
    files.google_tf1(tmp_path / "small")
    assert said(examine(tmp_path / "small")) == {}
    assert said(examine(tmp_path / "small" / "model.ckpt-1000")) == {}
    subject = doctor.read(tmp_path / "small")
    counted = [len(tower.tensors) for tower in subject.towers.values()]
    # Tied tables count for both.
    assert sum(counted) == len(files.google_shapes()) + 5


def test_a_healthy_keras_hub_preset_has_the_faults_of_its_format(tmp_path):
    found = said(examine(files.keras_hub_preset(tmp_path / "x")))
    assert found.keys() == {
        ("WARNING", "heads"),
        ("WARNING", "pooler"),
        ("WARNING", "GELU"),
    }


@pytest.mark.parametrize("name", ["small", "base", "large", "small_plus_plus", "tiny"])
def test_shipped_configs(name):
    found = said(doctor.examine(read_flagfile(str(ROOT / "configs" / f"{name}.cfg"))))
    assert found.keys() <= {("WARNING", "untrained positions")} | {
        ("WARNING", "generator size")
    }


# Traps of a run


def test_missing_files(folder):
    (folder / "discriminator.keras").unlink()
    check(examine(folder), "PROBLEM", "files", "discriminator.keras is missing")


def test_damaged_files(folder):
    path = folder / "generator.keras"
    path.write_bytes(path.read_bytes()[:2000])
    check(examine(folder), "PROBLEM", "files", "generator.keras cannot be loaded")


@pytest.mark.parametrize("is_marked", [False, True])
def test_an_import_without_generator(folder, is_marked):
    def edit(found):
        if is_marked:
            found["imported"] = {"format": "hugging_face"}
        else:
            del found["config"]

    edit_json(folder / "config.json", edit)
    (folder / "generator.keras").unlink()
    check(examine(folder), "WARNING", "files", "no fills and corruption")


def test_a_model_of_another_kind(folder):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(
        folder / "generator.keras"
    )
    check(examine(folder), "WARNING", "files", "holds a Sequential")


def test_sharing_words_only(folder):
    def edit(path, value):
        return value + 1 if path.endswith("position_embeddings") else None

    edit_json(folder / "config.json", lambda x: x["config"].update(sharing="token"))
    edit_weights(folder, edit, ["generator"])
    assert said(examine(folder)) == {}


def test_a_masked_lm_lacks_nothing(tmp_path):
    model = tiny_run.electra().generator
    flags = {"objective": "mlm", "hidden_size": 16, "num_heads": 1}
    metrics = {"masked_lm_loss": 2.0, "masked_lm_accuracy": 0.5}
    run = tiny_run.save(
        tmp_path,
        model,
        metrics=metrics,
        intermediate_size=64,
        **flags,
    )
    assert said(examine(run)) == {}


def test_sizes_that_the_config_does_not_have(folder):
    edit_json(folder / "config.json", lambda x: x["config"].update(num_layers=3))
    found = said(examine(folder))
    assert found.keys() == {("PROBLEM", "sizes")}
    assert "num_layers 2 where the config says 3" in found["PROBLEM", "sizes"]
    SEEN.add("sizes")


def test_tables_that_disagree(folder):
    def edit(path, value):
        return value + 0.1 if path.endswith("word_embeddings") else None

    edit_weights(folder, edit, ["generator"])
    check(
        examine(folder),
        "PROBLEM",
        "shared tables",
        "generator and discriminator disagree in what they share: word_embeddings "
        "by up to 0.1",
    )


def test_an_encoder_of_another_step(folder):
    def edit(path, value):
        return value * 1.5 if path.endswith("position_embeddings") else None

    edit_weights(folder, edit, ["encoder"])
    check(examine(folder), "PROBLEM", "shared tables", "encoder and discriminator")


def test_untied_on_purpose(tmp_path):
    model = tiny_run.electra(tied=False)
    run = tiny_run.save(tmp_path, model, num_train_steps=500, sharing="nes")
    assert said(examine(run)) == {}
    edit_json(run / "config.json", lambda x: x["config"].pop("sharing"))
    check(examine(run), "PROBLEM", "shared tables", "disagree")


def test_other_epsilons(tmp_path):
    model = tiny.electra(vocab=len(TOKENS))
    table = model.discriminator.embeddings
    encoder = tiny.encoder(table, layer_norm_epsilon=1e-3, name="discriminator")
    generator = type(model.generator)(
        tiny.encoder(table, hidden_size=16, num_heads=1, name="generator")
    )
    model = type(model)(generator, encoder)
    randomize(model.trainable_variables)
    run = tiny_run.save(tmp_path, model)
    check(examine(run), "PROBLEM", "LayerNorm epsilon", "0.001 in discriminator, enc")


def test_a_generator_as_large_as_the_discriminator(tmp_path):
    table = tiny_run.electra().discriminator.embeddings
    et = tiny.et
    model = et.Electra(
        et.MaskedLM(tiny.encoder(table, name="generator"), name="masked_lm"),
        tiny.encoder(table, name="discriminator"),
    )
    randomize(model.trainable_variables)
    flags = {"generator_hidden_size": 1.0}
    run = tiny_run.save(tmp_path, model, **flags)
    check(examine(run), "WARNING", "generator size", "1 of the width and 1 of the lay")


@pytest.mark.parametrize(
    ("tokens", "level", "text"),
    [
        (None, "WARNING", "no vocabulary"),
        (TOKENS[:-1], "PROBLEM", f"{len(TOKENS):,} rows in the word table"),
        (TOKENS[:-2] + TOKENS[:-3:-1], "PROBLEM", "not the one of training"),
        (
            (*TOKENS[:4], "mask", *TOKENS[5:]),
            "PROBLEM",
            "special tokens missing: [MASK]",
        ),
        (TOKENS[:-1] + TOKENS[5:6], "PROBLEM", "there twice"),
    ],
)
def test_vocabularies_that_do_not_fit(folder, tokens, level, text):
    (folder / "vocab.txt").unlink()
    if tokens:
        files.save_vocabulary(folder, tokens)
    check(examine(folder), level, "vocabulary", text)


@pytest.mark.parametrize(
    ("lower_case", "tokens", "level", "text"),
    [
        (False, TOKENS, "PROBLEM", "no token has a capital"),
        (
            True,
            (*TOKENS[:5], *(t.title() for t in TOKENS[5:12]), *TOKENS[12:]),
            "WARNING",
            "7 tokens have capitals",
        ),
    ],
)
def test_casing(tmp_path, lower_case, tokens, level, text):
    run = tiny_run.save(tmp_path, tokens=tokens, data={"lower_case": lower_case})
    check(examine(run), level, "vocabulary", text)


def test_padding_that_is_not_zero(tmp_path):
    tokens = ("[UNK]", "[PAD]", *TOKENS[2:])
    run = tiny_run.save(tmp_path, tokens=tokens)
    check(examine(run), "WARNING", "vocabulary", "[PAD] has the id 1")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(folder, bad):
    def edit(path, value):
        if path.endswith("layer_1/output_kernel"):
            value[0, 0] = bad
            return value
        return None

    edit_weights(folder, edit, ["generator"])
    check(examine(folder), "PROBLEM", "finite weights", "layer_1/output_kernel")


def test_weights_that_are_zero(folder):
    def edit(path, value):
        return 0 * value if path.endswith("layer_0/qkv_kernel") else None

    edit_weights(folder, edit, ["discriminator"])
    check(examine(folder), "PROBLEM", "zero weights", "layer_0/qkv_kernel")


def test_weights_that_were_never_trained(tmp_path):
    run = tiny_run.save(tmp_path, tiny.electra(vocab=len(TOKENS)))
    check(examine(run), "PROBLEM", "untrained weights", "nothing was ever trained")


def test_a_head_that_was_never_trained(tmp_path):
    model = tiny_run.electra()
    fresh = tiny.electra(vocab=len(TOKENS))
    for mine, theirs in zip(
        model.objective.weights, fresh.objective.weights, strict=True
    ):
        mine.assign(theirs)
    run = tiny_run.save(tmp_path, model)
    check(
        examine(run), "PROBLEM", "untrained weights", "discriminator: untrained: head"
    )


def test_positions_that_were_never_trained(folder):
    edit_json(folder / "config.json", lambda x: x["config"].update(max_seq_length=16))
    check(examine(folder), "WARNING", "untrained positions", "at most 16 tokens")


def with_metrics(folder, **values):
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name, value in values.items():
            row |= {n: value for n in (name, f"eval_{name}") if n in row}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_discriminator_that_collapsed(folder):
    with_metrics(
        folder,
        discriminator_auc=0.51,
        discriminator_recall=0.0,
        discriminator_loss=0.303,
    )
    check(examine(folder), "PROBLEM", "collapse", "AUC 0.510")


def test_a_discriminator_without_recall(folder):
    with_metrics(folder, discriminator_recall=0.0)
    check(examine(folder), "WARNING", "collapse", "calls no replaced token replaced")


def test_a_run_that_was_not_finite(folder):
    with_metrics(folder, loss=None, generator_accuracy=None)
    found = said(examine(folder))
    assert "not finite at its end: eval_gen" in found["PROBLEM", "collapse"]


def test_a_generator_that_guesses_everything(folder):
    with_metrics(folder, replaced_fraction=0.03, generator_accuracy=0.8)
    check(examine(folder), "WARNING", "generator strength", "3.0% of all tokens")


def test_a_run_that_has_not_finished(folder):
    edit_json(folder / "config.json", lambda x: x["config"].update(num_train_steps=900))
    check(examine(folder), "WARNING", "finished", "500 of 900 steps")


# Traps of a config


def config_file(path, **flags):
    lines = [
        f"--{name}={value}" if not isinstance(value, bool) else f"--{name}"
        for name, value in flags.items()
    ]
    path.write_text("# a comment\n" + "\n".join(lines))
    return doctor.examine(read_flagfile(str(path)))


BASE = {
    "hidden_size": 768,
    "num_heads": 12,
    "learning_rate": 2e-4,
    "train_batch_size": 256,
    "max_seq_length": 512,
    "generator_hidden_size": 0.34,
}


@pytest.mark.parametrize(
    ("flags", "level", "trap", "text"),
    [
        ({"learning_rate": 5e-4}, "PROBLEM", "learning rate", "ELECTRA-Small's rate"),
        ({"warmup_steps": 2_000_000}, "WARNING", "learning rate", "never reached"),
        ({"warmup_steps": 0}, "WARNING", "learning rate", "three to six times"),
        ({"train_batch_size": 128}, "WARNING", "recipe", "train_batch_size 128"),
        ({"hidden_size": 1024, "num_heads": 16}, "WARNING", "recipe", "mask_rate 0.15"),
        ({"max_positions": 1024}, "WARNING", "untrained positions", "512 to 1023"),
        ({"generator_hidden_size": 1.0}, "WARNING", "generator size", "1 of the width"),
    ],
)
def test_configs_with_traps(tmp_path, flags, level, trap, text):
    assert said(config_file(tmp_path / "a.cfg", **BASE)) == {}
    check(config_file(tmp_path / "b.cfg", **BASE | flags), level, trap, text)


def test_configs_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="learning_rat"):
        config_file(tmp_path / "a.cfg", learning_rat=1)
    with pytest.raises(ValueError, match="must be positive"):
        config_file(tmp_path / "a.cfg", learning_rate=-1)
    with pytest.raises(FileNotFoundError, match="no flagfile"):
        read_flagfile(str(tmp_path / "none.cfg"))


# Traps of other formats


@pytest.mark.parametrize(
    ("config", "level", "trap", "text"),
    [
        ({"hidden_act": "gelu_new"}, "WARNING", "GELU", "discriminator: gelu_new"),
        ({"hidden_act": "relu"}, "PROBLEM", "GELU", "relu, not GELU"),
        ({"layer_norm_eps": 1e-5}, "WARNING", "LayerNorm epsilon", "1e-05"),
        (
            {"hidden_size": 64},
            "PROBLEM",
            "sizes",
            "hidden_size 16 where the config say",
        ),
    ],
)
def test_hugging_face_configs(tmp_path, config, level, trap, text):
    check(examine(files.hugging_face(tmp_path, **config)), level, trap, text)


def test_hugging_face_encoder_without_head(tmp_path):
    findings = examine(files.hugging_face(tmp_path, "encoder"))
    check(findings, "WARNING", "heads", "an encoder without head")


def test_hugging_face_head_that_is_declared_and_absent(tmp_path):
    config = {"architectures": ["ElectraForPreTraining"]}
    findings = examine(files.hugging_face(tmp_path, "encoder", **config))
    check(findings, "PROBLEM", "heads", "the discriminator lacks its head")


def test_hugging_face_missing_tensor(tmp_path):
    def change(tensors):
        del tensors["electra.encoder.layer.1.output.dense.weight"]

    findings = examine(files.hugging_face(tmp_path, change=change))
    check(findings, "PROBLEM", "sizes", "encoder.layer.1.output.dense.weight missing")


def test_hugging_face_pooler(tmp_path):
    def change(tensors):
        tensors["electra.pooler.dense.weight"] = np.ones((16, 16), np.float32)
        tensors["electra.pooler.dense.bias"] = np.zeros(16, np.float32)

    findings = examine(files.hugging_face(tmp_path, change=change))
    check(findings, "WARNING", "pooler", "was never trained")


def test_hugging_face_output_matrix_of_its_own(tmp_path):
    def tied(tensors):
        words = tensors["electra.embeddings.word_embeddings.weight"]
        tensors["generator_lm_head.weight"] = words

    def untied(tensors):
        tied(tensors)
        tensors["generator_lm_head.weight"] = tensors["generator_lm_head.weight"] + 1

    assert said(examine(files.hugging_face(tmp_path, "generator", change=tied))) == {}
    findings = examine(files.hugging_face(tmp_path, "generator", change=untied))
    check(findings, "PROBLEM", "shared tables", "output matrix is not the word table")


def test_hugging_face_pair(tmp_path):
    disc = doctor.read(files.hugging_face(tmp_path / "d"))
    shapes = files.hugging_face_shapes("generator")

    def other(tensors):
        tensors.update(files.values(shapes, seed=1))

    same = files.hugging_face(tmp_path / "g", "generator")
    pair = doctor.with_generator(disc, doctor.read(same))
    found = said(doctor.examine(pair))
    assert found.keys() == {("WARNING", "generator size")}
    wrong = files.hugging_face(tmp_path / "h", "generator", change=other)
    found = said(doctor.examine(doctor.with_generator(disc, doctor.read(wrong))))
    assert "word_embeddings by up to" in found["PROBLEM", "shared tables"]
    with pytest.raises(ValueError, match="holds no generator"):
        doctor.with_generator(disc, disc)


def test_hugging_face_without_readable_weights(tmp_path):
    folder = files.hugging_face(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    found = "pytorch_model.bin: pickles, which were not looked at"
    check(examine(folder), "WARNING", "files", found)
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-2.bin")
    found = "pytorch_model-00001-of-2.bin: pickles"
    check(examine(folder), "WARNING", "files", found)
    (folder / "pytorch_model-00001-of-2.bin").unlink()
    check(examine(folder), "PROBLEM", "files", "no weights")


def test_hugging_face_gelu_by_its_other_name(tmp_path):
    folder = files.hugging_face(tmp_path, hidden_act="gelu_python")
    found = [finding for finding in examine(folder) if finding.trap == "GELU"]
    assert [(each.level, each.found) for each in found] == [
        ("OK", "exact in discriminator")
    ]


def test_hugging_face_without_tensors_of_its_own(tmp_path):
    folder = files.hugging_face(tmp_path, change=dict.clear)
    check(examine(folder), "PROBLEM", "files", "no tensors in it")

    def foreign(tensors):
        tensors.clear()
        tensors["bert.x.weight"] = np.ones([3, 2], np.float32)

    folder = files.hugging_face(tmp_path, change=foreign)
    found = said(examine(folder))
    assert "no layer of an ELECTRA" in found["PROBLEM", "sizes"]


def test_hugging_face_files_that_are_cut_off(tmp_path):
    path = files.hugging_face(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        check(examine(tmp_path), "PROBLEM", "files", "damaged")


def test_a_vocabulary_that_is_only_in_the_tokenizers_file(tmp_path):
    """As `transformers` 5 saves it."""
    folder = files.hugging_face(tmp_path)
    names = (folder / "vocab.txt").read_text("utf-8").splitlines()
    (folder / "vocab.txt").unlink()
    model = {"type": "WordPiece", "vocab": {name: i for i, name in enumerate(names)}}
    whole = {"model": model, "normalizer": {"lowercase": False}}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    found = examine(folder)
    check(found, "PROBLEM", "vocabulary", "no token has a capital")
    (folder / "tokenizer.json").unlink()
    check(examine(folder), "WARNING", "vocabulary", "there is no vocabulary")


def test_hugging_face_casing(tmp_path):
    folder = files.hugging_face(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    check(examine(folder), "PROBLEM", "vocabulary", "no token has a capital")


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "index"])
def test_a_google_checkpoint_that_is_not_whole(tmp_path, damage):
    folder = files.google_tf1(tmp_path, slots=False)
    (data,) = folder.glob("*.data-*")
    values = bytearray(data.read_bytes())
    if damage == "cut":
        data.write_bytes(values[: len(values) // 2])
    elif damage == "flipped":
        values[len(values) // 2] ^= 1
        data.write_bytes(values)
    elif damage == "gone":
        data.unlink()
    else:
        (index,) = folder.glob("*.index")
        index.write_bytes(index.read_bytes()[:40])
    check(examine(folder), "PROBLEM", "files", "is not a whole checkpoint")


def test_google_checkpoints(tmp_path):
    bare = files.google_tf1(tmp_path / "a", slots=False)
    check(examine(bare), "WARNING", "optimizer slots", "without Adam slots")

    def finetuned(tensors):
        for name in list(tensors):
            if name.startswith(("generator", "discriminator_predictions")):
                del tensors[name]

    found = said(examine(files.google_tf1(tmp_path / "b", change=finetuned)))
    assert found.keys() == {("PROBLEM", "heads"), ("WARNING", "heads")}
    assert "there is no generator" in found["WARNING", "heads"]

    def electric(tensors):
        for name in list(tensors):
            if name.startswith("generator/"):
                value = tensors.pop(name)
                for tower in ("generator_ltr", "generator_rtl"):
                    tensors[name.replace("generator", tower, 1)] = value

    found = said(examine(files.google_tf1(tmp_path / "c", change=electric)))
    assert "this is Electric" in found["WARNING", "files"]
    SEEN.add("optimizer slots")


def test_google_positions_that_were_never_trained(tmp_path):
    def change(tensors):
        make = keras.initializers.TruncatedNormal(stddev=0.02, seed=1)
        rows = np.array(make((20, files.EMBEDDING)))
        # As weight decay leaves them after a long run.
        tensors["electra/embeddings/position_embeddings"][12:] = 0.1 * rows

    found = said(examine(files.google_tf1(tmp_path, change=change)))
    assert found.keys() == {("WARNING", "untrained positions")}
    assert found["WARNING", "untrained positions"].count("rows 12 to 31 of 32") == 2


def test_other_checkpoints_are_refused(tmp_path, folder):
    (folder / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="fine-tuning run"):
        doctor.read(folder)
    prefix = tmp_path / "other" / "ckpt"
    prefix.parent.mkdir()
    files.tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=["bert/x"],
        shape_and_slices=[""],
        tensors=[files.tf.constant(1.0)],
    )
    with pytest.raises(ValueError, match="no variables under electra/"):
        doctor.read(prefix)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="none of: pretraining run"):
        doctor.read(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nothing at"):
        doctor.read(tmp_path / "none")
    files.hugging_face(tmp_path / "bert", model_type="bert")
    with pytest.raises(ValueError, match="type bert"):
        doctor.read(tmp_path / "bert")


def test_keras_hub_pooler_that_was_trained(tmp_path):
    def change(backbone):
        backbone.pooled_dense.bias.assign(np.ones(files.HIDDEN))

    found = said(examine(files.keras_hub_preset(tmp_path / "x", change=change)))
    assert ("WARNING", "pooler") not in found


# The command


def test_command(folder, capsys):
    assert command(["doctor", f"--model={folder}"]) == 0
    out = capsys.readouterr().out
    assert "0 warnings, 0 problems" in out
    assert "\x1b" not in out
    (folder / "encoder.keras").unlink()
    assert command(["doctor", f"--model={folder}"]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM files" in out
    assert "-> Finish the run" in out
    assert command(["doctor", f"--model={folder}", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"level", "trap", "found", "advice"} == rows[0].keys()
    assert sum(row["level"] == "PROBLEM" for row in rows) == 1
    assert command(["doctor", f"--flagfile={ROOT / 'configs' / 'small.cfg'}"]) == 0
    for wrong in (["--model=/none"], ["--flagfile=/none"]):
        with pytest.raises(SystemExit, match="error: "):
            command(["doctor", *wrong])
    with pytest.raises(SystemExit, match="either --model or --flagfile"):
        command(["doctor"])


def test_wrapped_output():
    findings = [doctor.Finding("PROBLEM", "word " * 40, "do " * 40, "trap")]
    shown = report.shown(findings, width=80, use_color=True)
    assert max(len(line) for line in shown.splitlines()[1:]) <= 80
    assert shown.count("word") == 40
    assert "\x1b[1;31mPROBLEM" in shown


def test_every_trap_was_seen():
    """Last in this file: a trap without a file that has it is not tested."""
    if len(SEEN) < 10:
        pytest.skip("only some of this file's tests ran")
    assert doctor.TRAPS.keys() == SEEN


def test_flags_are_those_of_the_config():
    known = fields.to_flat(PretrainConfig())
    assert tiny_run.SIZES.keys() <= known.keys()
