import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from electra_tf.__main__ import main as command
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.folders import pretraining as folders
from electra_tf.folders.cards import pretraining_card
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.interop import convert, hugging_face, networks, run_folder, task_heads
from electra_tf.interop.networks import Source
from electra_tf.runs import finetuning
from tests import tiny_run
from tests.interop.models import (
    GOLDEN,
    assert_agree,
    assert_golden,
    assert_same,
    expected,
)
from tests.tasks.common import TOKENS, assert_same_weights

VOCABULARY = f"--vocab_file={GOLDEN / 'equal' / 'vocab.txt'}"


def run(source, to, *flags):
    """Runs the command; returns its output and fails on a nonzero exit code."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = command(["convert", f"--from={source}", f"--to={to}", *flags])
    assert code == 0, said.getvalue()
    return said.getvalue()


def refused(source, to, *flags):
    with pytest.raises(SystemExit) as stopped:
        run(source, to, *flags)
    message = stopped.value.code
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


def fine_tuning_start(encoder):
    """Returns the encoder as fine-tuning loads it; fails on a warning."""
    config = fields.from_flat({"encoder": str(encoder)}, FinetuneConfig)
    return finetuning.pretrained(config, pytest.fail)


def written_in(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix() for path in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    casing = {"lower_case": False, "strip_accents": False}
    about = {"data": {"records_sha256": "abc", **casing}, "corpus": ["my_text/"]}
    folder = tiny_run.save(tmp_path_factory.mktemp("finished"), **about, **casing)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8')
    (folder / "recipe.json").write_text('{"dropout": 0.0}')
    rows = [("discriminator_auc", "0.92", "0.50", "chance")]
    card = pretraining_card(PretrainingFolder(folder), {"encoder": 1234}, rows)
    (folder / "model_card.md").write_text(card)
    return folder


def test_an_imported_folder_looks_like_a_finished_run(tmp_path):
    to = tmp_path / "deep" / "imported"
    said = run(GOLDEN / "projected", to, "--trained_length=12")
    whole = {name for name in run_folder.OUTPUTS if not name.endswith(".safetensors")}
    whole -= {*task_heads.OUTPUTS, "recipe.json", "model_card.md"}
    assert {path.name for path in to.iterdir()} == whole
    assert not [path for path in to.parent.iterdir() if path != to]
    assert "discriminator: 2 layers x 16, 4 heads" in said
    assert "warning: the source lacks --lower_case; assumed" in said
    told = json.loads((to / "config.json").read_text())
    assert told["imported"]["format"] == "hugging_face"
    assert told["imported"]["source"] == str(GOLDEN / "projected")
    flags = told["config"]
    assert (flags["max_seq_length"], flags["max_positions"]) == (12, 16)
    assert (flags["hidden_size"], flags["generator_hidden_size"]) == (16, 12 / 16)
    assert_golden(run_folder.read(Source(str(to))), "projected")
    arrays, start = expected("projected"), fine_tuning_start(to / "encoder.keras")
    assert start.tokenizer.vocabulary.tokens[5:7] == ("the", "a")
    assert start.trained_length == 12
    hidden = {"hidden": start.encoder(arrays)}
    assert_agree(hidden, {"hidden": arrays["hidden"]}, arrays)


@pytest.mark.parametrize("format_name", ["hugging_face", "electra_tf"])
def test_a_run_goes_out_and_comes_back_to_the_bit(finished, tmp_path, format_name):
    out, back = tmp_path / "out", tmp_path / "back"
    run(finished, out, f"--format={format_name}")
    module = convert.FORMATS[format_name]
    assert written_in(out) <= set(module.OUTPUTS)
    assert module.detect(Source(str(out)))
    assert "warning" not in run(out, back, "--nolower_case", "--nostrip_accents")
    original = run_folder.read(Source(str(finished)))
    again = run_folder.read(Source(str(back)))
    # Other formats have no recipe.
    assert again.recipe == (original.recipe if format_name == "electra_tf" else {})
    assert original.recipe == {"dropout": 0.0}
    assert again.vocabulary == original.vocabulary
    assert (again.lower_case, again.strip_accents) == (False, False)
    assert_same(again, original)


@pytest.mark.parametrize("format_name", ["electra_tf", "hugging_face"])
def test_float16_rounds_and_halves(finished, tmp_path, monkeypatch, format_name):
    out = tmp_path / "little"
    run(finished, out, f"--format={format_name}", "--float16")
    for path in out.rglob("*.safetensors"):
        assert {array.dtype.name for array in load_file(path).values()} == {"float16"}
    assert not list(out.rglob("*.keras"))
    expected = run_folder.read(Source(str(finished)))
    for tower in expected.towers.values():
        for arrays in (tower.encoder, tower.head):
            halves = {name: x.astype(np.float16) for name, x in arrays.items()}
            arrays.update({n: x.astype(np.float32) for n, x in halves.items()})
    assert_same(convert.find_format(Source(str(out))).read(Source(str(out))), expected)
    # Fine-tuning finds the encoder by path and by the name of a shipped encoder.
    monkeypatch.setattr(folders, "SHIPPED", tmp_path)
    for name in ("little", str(out)) if format_name == "electra_tf" else ():
        start = fine_tuning_start(name)
        assert_same_weights(start.encoder, networks.models(expected)["encoder"])
        assert start.tokenizer.lower_case is False


def test_float16_keeps_a_discriminator_without_a_head(finished, tmp_path):
    """The generator's encoder took its place in fine-tuning."""
    bare, out = shutil.copytree(finished, tmp_path / "bare"), tmp_path / "little"
    (bare / "discriminator.keras").unlink()
    run(bare, out, "--float16")
    expected = run_folder.read(Source(str(bare))).discriminator.encoder
    encoder = run_folder.read(Source(str(out))).discriminator.encoder
    for name, array in expected.items():
        np.testing.assert_array_equal(encoder[name], array.astype(np.float16))
    assert fine_tuning_start(out).encoder.hidden_size == 32


def test_the_model_card_states_data_steps_and_scores(finished, tmp_path):
    run(finished, tmp_path / "out", "--format=hugging_face")
    card = (tmp_path / "out" / "README.md").read_text()
    for line in (
        "library_name: transformers",
        "* text: `my_text/`",
        "* records sha256: `abc`",
        "* `--num_train_steps`: `500`",
        "| discriminator_auc | 0.92 | 0.50 | chance |",
        f"* text is cased; {len(TOKENS)} tokens in `vocab.txt`",
        "* position embeddings are trained up to 32 tokens",
        "import AutoTokenizer, ElectraForPreTraining",
    ):
        assert line in card
    # The card of a run is kept in its float16 copy, with a section on the copy.
    run(finished, tmp_path / "halves", "--float16")
    told = (tmp_path / "halves" / "model_card.md").read_text()
    assert told.count("## Model") == told.count("* text is cased") == 1
    run(tmp_path / "halves", tmp_path / "again", "--format=hugging_face")
    assert (tmp_path / "again" / "README.md").read_text() == card
    # Casing flags override the run's.
    run(finished, tmp_path / "lower", "--format=hugging_face", "--lower_case")
    for name, lower_case in (("out", False), ("lower", True)):
        told = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert (told["do_lower_case"], told["strip_accents"]) == (lower_case, False)
        assert told["model_max_length"] == 32
    # A model from another format has no known data, scores or training.
    run(GOLDEN / "equal", tmp_path / "other", "--format=hugging_face")
    card = (tmp_path / "other" / "README.md").read_text()
    for section in ("Data", "Scores", "Recipe"):
        assert f"## {section}" not in card
    assert "* text is lower-cased, without accents; " in card
    assert "generator, in `generator/`" in card


def test_masked_lm_alone(tmp_path):
    model = tiny_run.electra().generator
    source = tiny_run.save(tmp_path / "mlm", model, objective="mlm")
    whole = run_folder.read(Source(str(source)))
    assert list(whole.towers) == ["generator"]
    # The encoder alone does not need generator.keras.
    damaged = shutil.copytree(source, tmp_path / "damaged")
    (damaged / "generator.keras").write_bytes(b"")
    alone = run_folder.read(Source(str(damaged), only="discriminator")).discriminator
    np.testing.assert_equal(alone.encoder, whole.generator.encoder)
    run(source, tmp_path / "out", "--format=hugging_face")
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert "generator_predictions.dense.weight" in names
    run(tmp_path / "out", tmp_path / "back")
    files = {path.name for path in (tmp_path / "back").glob("*.keras")}
    assert files == {"encoder.keras", "generator.keras"}
    told = json.loads((tmp_path / "back" / "config.json").read_text())["config"]
    # The generator could be part of an ELECTRA model, so the objective is unknown.
    assert "objective" not in told
    run(source, tmp_path / "kept")
    told = json.loads((tmp_path / "kept" / "config.json").read_text())["config"]
    assert told["objective"] == "mlm"


def test_an_encoder_without_its_head(tmp_path, finished):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("encoder.keras", "vocab.txt"):
        shutil.copy(finished / name, source)
    assert "no head" in run(source, tmp_path / "out", "--format=hugging_face")
    run(source, tmp_path / "imported")
    assert not (tmp_path / "imported" / "discriminator.keras").exists()
    # A generator with a different encoder makes a pair.
    shutil.copy(finished / "generator.keras", source)
    assert len(run_folder.read(Source(str(source))).towers) == 2


def test_existing_output_needs_permission(finished, tmp_path):
    message = refused(GOLDEN / "equal", finished, "--overwrite")
    assert "not of this format (" in message
    assert "metrics.jsonl" in message
    to = tmp_path / "imported"
    to.mkdir()
    run(GOLDEN / "equal", to)
    before = (to / "encoder.keras").read_bytes()
    assert "pass --overwrite" in refused(GOLDEN / "projected", to)
    assert (to / "encoder.keras").read_bytes() == before
    run(GOLDEN / "projected", to, "--overwrite")
    assert (to / "encoder.keras").read_bytes() != before
    # Overwriting deletes all files of an earlier conversion.
    run(GOLDEN / "equal" / "generator", to, "--overwrite", VOCABULARY)
    assert not (to / "discriminator.keras").exists()
    deep = tmp_path / "deep"
    run(GOLDEN / "equal", deep, "--format=hugging_face")
    (deep / "generator" / "notes.txt").write_text("precious")
    flags = ("--format=hugging_face", "--overwrite")
    message = refused(GOLDEN / "equal", deep, *flags)
    assert "not of this format (generator/notes.txt)" in message
    assert (deep / "generator" / "notes.txt").exists()


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(folder, model):
        (folder / "config.json").write_text("half")
        raise OSError("disk full")

    run(GOLDEN / "equal", tmp_path / "out")
    monkeypatch.setattr(run_folder, "write", fail)
    assert "disk full" in refused(GOLDEN / "projected", tmp_path / "out", "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out").iterdir())) == 5


def test_weights_that_are_not_finite_are_refused(tmp_path):
    theirs = shutil.copytree(GOLDEN / "equal", tmp_path / "theirs")
    tensors = load_file(theirs / "model.safetensors")
    tensors["discriminator_predictions.dense.bias"] *= np.nan
    save_file(tensors, theirs / "model.safetensors")
    message = refused(theirs, tmp_path / "out")
    assert "theirs: dense_bias of the discriminator has values that are" in message
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_needed_and_must_fit(finished, tmp_path):
    source = shutil.copytree(GOLDEN / "equal", tmp_path / "source")
    (source / "vocab.txt").unlink()
    assert "pass --vocab_file" in refused(source, tmp_path / "out")
    run(source, tmp_path / "out", VOCABULARY)
    tokens = (GOLDEN / "equal" / "vocab.txt").read_text()
    (source / "vocab.txt").write_text(tokens + "more\n")
    message = refused(source, tmp_path / "other")
    assert "36 tokens but the weights have embeddings for 35" in message
    (source / "vocab.txt").write_text("".join(tokens.splitlines(True)[:-2]))
    assert "2 rows of the word table have no token" in run(source, tmp_path / "other")
    padded = Vocabulary.load(tmp_path / "other" / "vocab.txt")
    assert padded.tokens[-2:] == ("[no_token_33]", "[no_token_34]")
    swapped = shutil.copytree(finished, tmp_path / "swapped")
    Vocabulary((*TOKENS[:5], *TOKENS[:4:-1])).save(swapped / "vocab.txt")
    assert "vocab.txt does not have the SHA-256" in refused(swapped, tmp_path / "no")
    run(swapped, tmp_path / "yes", f"--vocab_file={finished / 'vocab.txt'}")
    other = f"--vocab_file={swapped / 'vocab.txt'}"
    assert "vocab.txt does not have the SHA-256" in refused(
        finished, tmp_path / "no", other
    )


def test_mistakes_are_refused(finished, tmp_path):
    equal, file = GOLDEN / "equal", tmp_path / "file.txt"
    file.write_text("text")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    lone = "--only=discriminator"
    for source, flags, message in (
        ("/nothing/here", [], "is not a folder, a checkpoint or owner"),
        (tmp_path, [], "not in a known format (electra_tf, "),
        (file, [], "not in a known format"),
        (tmp_path / "run", [], "did not finish"),
        (equal, [f"--to={file}"], "Not a directory"),
        (equal, ["--trained_length=99"], "exceeds the 16 positions"),
        (equal, ["--num_heads=3"], "does not need --num_heads"),
        (equal, ["--num_heads=0"], "--num_heads must be at least 1"),
        (finished, ["--generator=/x"], "does not need --generator"),
        (equal, ["--generator=/x", lone], f"--generator cannot be used with {lone}"),
        (equal, ["--format=google_tf1", "--float16"], "--float16 needs --format"),
    ):
        assert message in refused(source, tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_presets(finished, tmp_path):
    said = run(finished, tmp_path / "preset", "--format=keras_hub")
    assert "no place for the heads" in said
    assert written_in(tmp_path / "preset") <= {*convert.FORMATS["keras_hub"].OUTPUTS}
    run(tmp_path / "preset", tmp_path / "back")
    starts = (fine_tuning_start(x).encoder for x in (finished, tmp_path / "back"))
    assert_same_weights(*starts)


def test_two_folders_relative_to_the_working_directory(tmp_path, monkeypatch):
    shutil.copytree(GOLDEN / "equal", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    shutil.move("model/generator", "other")
    said = run("model", "imported/", "--generator=other")
    assert "imported holds config.json, discriminator.keras" in said
    again = run_folder.read(Source("imported"))
    assert_same(again, hugging_face.read(Source(str(GOLDEN / "equal"))))
    os.mkdir("empty")
    monkeypatch.chdir("empty")
    run("../model", ".")
    assert Path("../empty/encoder.keras").is_file()
