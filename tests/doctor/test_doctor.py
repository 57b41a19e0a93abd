"""Findings of the doctor: one file per trap, and a healthy file of each kind."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from electra_tf import doctor
from electra_tf.__main__ import main as command
from electra_tf.doctor import read_flagfile, report
from tests import tiny, tiny_run
from tests.interop.models import GOLDEN
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS

ROOT = Path(__file__).parent.parent.parent


def said(findings):
    """Maps (level, trap) to the texts of all findings that are not OK."""
    found = {}
    for finding in findings:
        if finding.level != doctor.OK:
            assert finding.advice, "who is warned must be told what to do"
            found.setdefault((finding.level, finding.trap), []).append(finding.found)
    return {key: " | ".join(texts) for key, texts in found.items()}


def check(findings, level, trap, text):
    """Checks that the findings contain exactly this trap."""
    found = said(findings)
    assert found.keys() == {(level, trap)}
    assert text in found[level, trap]


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
    """Edits the variables; `edit(path, value)` returns a new value or None."""
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
    assert applies == doctor.CHECKS.keys() - {"recipe"}


@pytest.mark.parametrize("name", ["small", "base", "large", "small_plus_plus", "tiny"])
def test_shipped_configs(name):
    found = said(doctor.examine(read_flagfile(str(ROOT / "configs" / f"{name}.cfg"))))
    assert found.keys() <= {("WARNING", "untrained positions")} | {
        ("WARNING", "generator size")
    }


# Traps of a run


def test_missing_files(folder):
    (folder / "generator.keras").unlink()
    check(examine(folder), "WARNING", "heads", "there is no generator")
    (folder / "discriminator.keras").unlink()
    check(examine(folder), "WARNING", "heads", "an encoder without a head")
    (folder / "encoder.keras").unlink()
    check(examine(folder), "PROBLEM", "files", "not in a known format")


def test_a_masked_lm_lacks_nothing(tmp_path):
    model = tiny_run.electra().generator
    flags = {"objective": "mlm", "hidden_size": 16, "num_heads": 1}
    metrics = {"masked_lm_loss": 2.0, "masked_lm_accuracy": 0.5}
    run = tiny_run.save(tmp_path, model, metrics=metrics, intermediate_size=64, **flags)
    assert said(examine(run)) == {}


def test_an_untied_pair(tmp_path):
    """A warning with --sharing=nes; a problem if the flags require tied embeddings."""
    model = tiny_run.electra(tied=False)
    run = tiny_run.save(tmp_path, model, num_train_steps=500, sharing="nes")
    check(examine(run), "WARNING", "files", "do not share their embeddings")
    edit_json(run / "config.json", lambda x: x["config"].pop("sharing"))
    check(examine(run), "PROBLEM", "files", "do not share their embeddings")


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
    assert "0.001" in said(examine(run))["PROBLEM", "files"]


def test_damaged_files(folder):
    path = folder / "generator.keras"
    path.write_bytes(path.read_bytes()[:2000])
    check(examine(folder), "PROBLEM", "files", "generator.keras")


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
        (TOKENS[:-1] + TOKENS[5:6], "PROBLEM", "occurs twice"),
    ],
)
def test_vocabularies_that_do_not_fit(folder, tokens, level, text):
    (folder / "vocab.txt").unlink()
    if tokens:
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    # The reader itself reports unreadable vocabularies.
    trap = "files" if text in ("special tokens missing: [MASK]", "occurs twice") else ""
    check(examine(folder), level, trap or "vocabulary", text)


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
    check(examine(folder), "PROBLEM", "untrained weights", "layer_0/qkv_kernel")


def test_weights_that_were_never_trained(tmp_path):
    run = tiny_run.save(tmp_path, tiny.electra(vocab=len(TOKENS)))
    check(examine(run), "PROBLEM", "untrained weights", "no part was trained")


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


@pytest.mark.parametrize(
    ("values", "level", "trap", "text"),
    [
        (
            {
                "discriminator_auc": 0.51,
                "discriminator_recall": 0.0,
                "discriminator_loss": 0.303,
            },
            "PROBLEM",
            "collapse",
            "AUC 0.510",
        ),
        ({"discriminator_recall": 0.0}, "WARNING", "collapse", "no token replaced"),
        (
            {"replaced_fraction": 0.03, "generator_accuracy": 0.8},
            "WARNING",
            "generator strength",
            "3.0% of all tokens",
        ),
    ],
)
def test_metrics_with_traps(folder, values, level, trap, text):
    check(examine(with_metrics(folder, **values)), level, trap, text)


def test_a_run_that_was_not_finite(folder):
    with_metrics(folder, loss=None, generator_accuracy=None)
    found = said(examine(folder))
    assert "not finite at the end: eval_gen" in found["PROBLEM", "collapse"]


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
        (
            {"learning_rate": 5e-4},
            "PROBLEM",
            "learning rate",
            "ELECTRA-Small's learning rate",
        ),
        ({"warmup_steps": 2_000_000}, "WARNING", "learning rate", "never reached"),
        ({"warmup_steps": 0}, "WARNING", "learning rate", "three to six times"),
        ({"train_batch_size": 128}, "WARNING", "recipe", "train_batch_size 128"),
        ({"hidden_size": 1024, "num_heads": 16}, "WARNING", "recipe", "mask_rate 0.15"),
        ({"max_positions": 1024}, "WARNING", "untrained positions", "1024 rows"),
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


# Another format


@pytest.fixture
def pair(tmp_path):
    """Returns a discriminator and its generator, saved by transformers."""
    one = Path(shutil.copytree(GOLDEN / "projected", tmp_path / "discriminator"))
    return one, (one / "generator").rename(tmp_path / "generator")


def test_hugging_face_pair(pair):
    check(examine(pair[0]), "WARNING", "heads", "there is no generator")
    found = doctor.examine(doctor.read(*pair))
    check(found, "WARNING", "generator size", "0.75 of the width")
    tensors = load_file(pair[1] / "model.safetensors")
    changed = {name: value + 0.5 for name, value in tensors.items()}
    save_file(changed, pair[1] / "model.safetensors")
    found = said(doctor.examine(doctor.read(*pair)))
    assert "do not share their embeddings" in found["PROBLEM", "files"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"hidden_act": "gelu_new"}, "gelu_new"),
        ({"layer_norm_eps": 1e-5}, "1e-05"),
        ({"hidden_size": 64}, "64"),
    ],
)
def test_hugging_face_configs(pair, config, text):
    edit_json(pair[0] / "config.json", lambda x: x.update(config))
    assert text in said(examine(pair[0]))["PROBLEM", "files"]


def test_hugging_face_classifier():
    found = said(examine(GOLDEN / "classifier"))
    assert "an encoder without a head" in found["WARNING", "heads"]
    assert "no token has a capital" in found["PROBLEM", "vocabulary"]


def test_hugging_face_files_that_are_cut_off(pair):
    path = pair[0] / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "PROBLEM" in {finding.level for finding in examine(pair[0])}


def test_other_folders_are_refused(tmp_path, folder):
    (folder / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="fine-tuning run"):
        doctor.read(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="not in a known format"):
        doctor.read(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="not a folder or checkpoint"):
        doctor.read(tmp_path / "none")


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
