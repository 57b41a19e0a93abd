"""`python -m electra_tf convert`: input, output and messages."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from electra_tf.__main__ import main as command
from electra_tf.config import fields
from electra_tf.config.finetuning import FinetuneConfig
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.folders import pretraining as folders
from electra_tf.folders.pretraining import PretrainingFolder
from electra_tf.interop import convert, hugging_face, run_folder, task_heads
from electra_tf.interop.imported import Source
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining import MaskedLM
from electra_tf.runs import finetuning
from tests import tiny
from tests.interop.models import GOLDEN, assert_agree, expected, outputs, same
from tests.layers.helpers import randomize

INPUTS = ("input_ids", "input_mask", "segment_ids")
OUTPUTS = ("hidden", "rtd_logits", "generator_hidden", "mlm_logits")


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


def written_in(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix() for path in files}


def saved_run(folder, model=None, size=tiny.VOCAB, **flags):
    """Writes models, config and scores of a finished pretraining run."""
    model = model or tiny.electra(seed=1)
    randomize(model.trainable_variables)
    for name, part in model.artifacts().items():
        part.save(folder / f"{name}.keras")
    tokens = [f"word{index}" for index in range(size - len(SPECIAL_TOKENS))]
    Vocabulary((*SPECIAL_TOKENS, *tokens)).save(folder / "vocab.txt")
    told = {
        "corpus": ["my_text/"],
        "num_train_steps": 70,
        "max_seq_length": 24,
        "lower_case": False,
        "strip_accents": False,
    }
    config = {"config": told | flags, "data": {"records_sha256": "abc"}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"step": 10, "eval_discriminator_auc": 0.6}, {"step": 70, "loss": 1.0}]
    rows.insert(1, {"step": 70, "eval_discriminator_auc": 0.9125})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines + '{"step": 8')
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return saved_run(tmp_path_factory.mktemp("finished"))


def test_an_imported_folder_looks_like_a_finished_run(tmp_path):
    to = tmp_path / "deep" / "imported"
    said = run(GOLDEN / "projected", to, "--trained_length=12")
    whole = {name for name in run_folder.OUTPUTS if not name.endswith(".safetensors")}
    whole -= {*task_heads.OUTPUTS}
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
    arrays = expected("projected")
    again = run_folder.read(Source(str(to)))
    wanted = {name: arrays[name] for name in OUTPUTS}
    assert_agree(outputs(again, arrays), wanted, arrays)


def test_fine_tuning_takes_casing_vocabulary_and_length_along(tmp_path):
    to = tmp_path / "imported"
    run(GOLDEN / "projected", to, "--nolower_case", "--trained_length=10")
    flat = {"task": "classification", "encoder": str(to / "encoder.keras")}
    config = fields.from_flat(flat, FinetuneConfig)
    said = []
    start = finetuning.pretrained(config, said.append)
    assert said == []
    assert start.tokenizer.lower_case is False
    assert start.tokenizer.vocabulary.tokens[5:7] == ("the", "a")
    assert start.trained_length == 10
    arrays = expected("projected")
    hidden = np.asarray(start.encoder({k: arrays[k] for k in INPUTS}))
    real = arrays["input_mask"] > 0
    np.testing.assert_allclose(hidden[real], arrays["hidden"][real], atol=1e-5)


@pytest.mark.parametrize("format_name", ["hugging_face", "google_tf1", "electra_tf"])
def test_a_run_goes_out_and_comes_back_to_the_bit(finished, tmp_path, format_name):
    out, back = tmp_path / "out", tmp_path / "back"
    run(finished, out, f"--format={format_name}")
    module = convert.FORMATS[format_name]
    assert written_in(out) <= set(module.OUTPUTS)
    assert module.detect(Source(str(out)))
    said = run(out, back, "--nolower_case", "--nostrip_accents")
    assert "warning" not in said
    original = run_folder.read(Source(str(finished)))
    again = run_folder.read(Source(str(back)))
    assert again.vocabulary == original.vocabulary
    for name, tower in again.towers.items():
        before = original.towers[name]
        for mine, theirs in (
            (tower.encoder, before.encoder),
            (tower.head, before.head),
        ):
            assert mine.keys() == theirs.keys()
            assert all(np.array_equal(mine[key], theirs[key]) for key in mine)
        assert tower.sizes.num_heads == before.sizes.num_heads


@pytest.mark.parametrize("format_name", ["electra_tf", "hugging_face"])
def test_float16_rounds_and_halves(finished, tmp_path, format_name):
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(finished, whole, f"--format={format_name}")
    run(finished, out, f"--format={format_name}", "--float16")
    suffix = ".keras" if format_name == "electra_tf" else ".safetensors"
    sizes = [
        sum(path.stat().st_size for path in folder.rglob(f"*{kind}"))
        for folder, kind in ((whole, suffix), (out, ".safetensors"))
    ]
    assert sizes[1] < 0.6 * sizes[0]
    assert not list(out.rglob("*.keras"))
    original = run_folder.read(Source(str(finished)))
    again = convert.find_format(Source(str(out))).read(Source(str(out)))
    assert again.towers.keys() == original.towers.keys()
    for name, tower in again.towers.items():
        before = original.towers[name]
        for part in ("encoder", "head"):
            mine, theirs = getattr(tower, part), getattr(before, part)
            assert mine.keys() == theirs.keys()
            for key, value in theirs.items():
                rounded = value.astype(np.float16).astype(np.float32)
                np.testing.assert_array_equal(mine[key], rounded)


def test_an_encoder_is_found_in_half_a_run(finished, tmp_path, monkeypatch):
    """Loads it by path and by the name of a shipped encoder."""
    run(finished, tmp_path / "shipped" / "little", "--float16")
    monkeypatch.setattr(folders, "SHIPPED", tmp_path / "shipped")
    original = PretrainingFolder(finished).load("encoder", TextEncoder)
    for name in ("little", str(tmp_path / "shipped" / "little")):
        flat = {"task": "classification", "encoder": name}
        start = finetuning.pretrained(fields.from_flat(flat, FinetuneConfig), print)
        for mine, theirs in zip(
            start.encoder.get_weights(), original.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs.astype(np.float16))
        assert start.tokenizer.lower_case is False


def test_the_model_card_states_data_steps_and_scores(finished, tmp_path):
    run(finished, tmp_path / "out", "--format=hugging_face")
    card = (tmp_path / "out" / "README.md").read_text()
    for line in (
        "library_name: transformers",
        "* text: `my_text/`",
        "* records sha256: `abc`",
        "* `--num_train_steps`: `70`",
        "| eval_discriminator_auc | 0.9125 |",
        "* text is cased; 97 WordPiece tokens",
        "* position embeddings are trained up to 24 tokens",
        "import AutoTokenizer, ElectraForPreTraining",
    ):
        assert line in card
    told = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (told["do_lower_case"], told["model_max_length"]) == (False, 24)
    # A model from another format has no known data, scores or training.
    run(GOLDEN / "equal", tmp_path / "other", "--format=hugging_face")
    card = (tmp_path / "other" / "README.md").read_text()
    assert "## Data\n\nUnknown." in card
    assert "## Scores" not in card
    assert "## Training" not in card
    assert "the weights were read from the format `hugging_face`." in card
    assert "generator, in `generator/`" in card


def test_masked_lm_alone(tmp_path):
    source = tmp_path / "mlm"
    source.mkdir()
    table = tiny.electra().discriminator.embeddings
    saved_run(source, MaskedLM(tiny.encoder(table, name="encoder")), objective="mlm")
    assert list(run_folder.read(Source(str(source))).towers) == ["generator"]
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
    said = run(source, tmp_path / "out", "--format=hugging_face")
    assert "no head" in said
    run(source, tmp_path / "imported")
    assert not (tmp_path / "imported" / "discriminator.keras").exists()
    # A generator with a different encoder makes a pair.
    shutil.copy(finished / "generator.keras", source)
    assert list(run_folder.read(Source(str(source))).towers) == [
        "discriminator",
        "generator",
    ]


def test_existing_output_needs_permission(tmp_path):
    to = tmp_path / "imported"
    to.mkdir()
    run(GOLDEN / "equal", to)
    before = (to / "encoder.keras").read_bytes()
    assert "pass --overwrite" in refused(GOLDEN / "projected", to)
    assert (to / "encoder.keras").read_bytes() == before
    run(GOLDEN / "projected", to, "--overwrite")
    assert (to / "encoder.keras").read_bytes() != before
    # Overwriting deletes all files of an earlier conversion.
    run(GOLDEN / "equal" / "generator", to, "--overwrite", vocabulary_flag("equal"))
    assert not (to / "discriminator.keras").exists()
    (to / "mine.txt").write_text("precious")
    message = refused(GOLDEN / "equal", to, "--overwrite")
    assert "not of this format (mine.txt)" in message
    assert (to / "mine.txt").read_text() == "precious"
    deep = tmp_path / "deep"
    run(GOLDEN / "equal", deep, "--format=hugging_face")
    (deep / "generator" / "notes.txt").write_text("precious")
    flags = ("--format=hugging_face", "--overwrite")
    message = refused(GOLDEN / "equal", deep, *flags)
    assert "not of this format (generator/notes.txt)" in message
    assert (deep / "generator" / "notes.txt").exists()


def vocabulary_flag(case):
    return f"--vocab_file={GOLDEN / case / 'vocab.txt'}"


def test_a_training_run_is_never_overwritten(tmp_path):
    saved_run(tmp_path)
    message = refused(GOLDEN / "equal", tmp_path, "--overwrite")
    assert "holds a training run" in message


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(folder, model):
        (folder / "config.json").write_text("half")
        raise OSError("disk full")

    run(GOLDEN / "equal", tmp_path / "out")
    monkeypatch.setattr(run_folder, "write", fail)
    message = refused(GOLDEN / "projected", tmp_path / "out", "--overwrite")
    assert "disk full" in message
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(list((tmp_path / "out").iterdir())) == 5


def test_casing_flags_win_over_what_a_run_says(finished, tmp_path):
    run(finished, tmp_path / "lower", "--lower_case", "--nostrip_accents")
    folder = PretrainingFolder(tmp_path / "lower")
    casing = {"lower_case": True, "strip_accents": False}
    assert folder.casing == casing
    run(tmp_path / "lower", tmp_path / "hf", "--format=hugging_face")
    told = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (told["do_lower_case"], told["strip_accents"]) == (True, False)


@pytest.mark.parametrize(
    ("case", "flag", "message"),
    [
        ("run", "--generator=/x", "does not need --generator"),
        ("run", "--num_heads=2", "does not need --num_heads"),
        ("google_tf1", "--generator=/x", "does not need --generator"),
        ("generator", "--num_heads=2", "--num_heads applies to the discriminator"),
        (
            "bare",
            "--generator_num_heads=2",
            "heads applies to the generator",
        ),
    ],
)
def test_flags_without_a_use_are_refused(finished, tmp_path, case, flag, message):
    source, more = finished, []
    if case == "google_tf1":
        run(finished, tmp_path / "tf1", "--format=google_tf1")
        source = tmp_path / "tf1"
    elif case == "generator":
        source, more = GOLDEN / "equal" / "generator", [vocabulary_flag("equal")]
    elif case == "bare":
        source = shutil.copytree(GOLDEN / "equal", tmp_path / "bare")
        shutil.rmtree(source / "generator")
    assert message in refused(source, tmp_path / "out", flag, *more)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["hugging_face", "google_tf1"])
def test_a_full_disk_is_one_line(finished, tmp_path, format_name):
    """A file size limit simulates the full disk."""
    program = (
        "import resource, signal, sys; from electra_tf.__main__ import main; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
        "sys.exit(main(['convert', *sys.argv[1:]]))"
    )
    flags = [f"--from={finished}", f"--to={tmp_path / 'out'}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *flags, f"--format={format_name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be written: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_is_needed_and_must_fit(tmp_path):
    source = shutil.copytree(GOLDEN / "equal", tmp_path / "source")
    (source / "vocab.txt").unlink()
    assert "pass --vocab_file" in refused(source, tmp_path / "out")
    run(source, tmp_path / "out", vocabulary_flag("equal"))
    tokens = (GOLDEN / "equal" / "vocab.txt").read_text()
    (source / "vocab.txt").write_text(tokens + "more\n")
    message = refused(source, tmp_path / "other")
    assert "36 tokens but the weights have embeddings for 35" in message
    (source / "vocab.txt").write_text("".join(tokens.splitlines(True)[:-2]))
    assert "2 rows of the word table have no token" in run(source, tmp_path / "other")
    padded = Vocabulary.load(tmp_path / "other" / "vocab.txt")
    assert padded.tokens[-2:] == ("[no_token_33]", "[no_token_34]")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nothing/here", "is not a folder or checkpoint"),
        ("{tmp}", "not in a known format (electra_tf, "),
        ("{tmp}/file.txt", "not in a known format"),
    ],
)
def test_unknown_sources(tmp_path, source, message):
    (tmp_path / "file.txt").write_text("text")
    source = source.format(tmp=tmp_path)
    assert message in refused(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_options(tmp_path):
    message = refused(GOLDEN / "equal", tmp_path / "o", "--trained_length=99")
    assert "exceeds the 16 positions" in message
    message = refused(GOLDEN / "equal", tmp_path / "o", "--num_heads=3")
    assert "not divisible by num_heads 3" in message
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(GOLDEN / "equal", tmp_path / "file")
    message = refused(GOLDEN / "equal", tmp_path / "o", "--num_heads=0")
    assert "--num_heads must be at least 1" in message
    flags = ("--format=google_tf1", "--float16")
    message = refused(GOLDEN / "equal", tmp_path / "o", *flags)
    assert "--float16 needs --format=electra_tf or hugging_face" in message


def test_a_pair_from_two_folders(tmp_path):
    discriminator = shutil.copytree(GOLDEN / "equal", tmp_path / "disc")
    generator = Path(shutil.move(discriminator / "generator", tmp_path / "gen"))
    run(discriminator, tmp_path / "out", f"--generator={generator}")
    again = run_folder.read(Source(str(tmp_path / "out")))
    wanted = hugging_face.read(Source(str(GOLDEN / "equal")))
    assert same(again, wanted)
    run(discriminator, tmp_path / "one")
    assert not (tmp_path / "one" / "generator.keras").exists()


def test_paths_relative_to_the_working_directory(tmp_path, monkeypatch):
    shutil.copytree(GOLDEN / "equal", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    said = run("model", "imported/")
    assert re.search(r"imported holds config\.json, discriminator\.keras", said)
    os.mkdir("empty")
    monkeypatch.chdir("empty")
    run("../model", ".")
    assert Path("../empty/encoder.keras").is_file()


def test_keras_hub_keeps_one_encoder_and_says_what_it_drops(finished, tmp_path):
    said = run(finished, tmp_path / "preset", "--format=keras_hub")
    assert "no place for the heads" in said
    assert "GELU" in said
    written = written_in(tmp_path / "preset")
    assert written <= set(convert.FORMATS["keras_hub"].OUTPUTS)

    said = run(tmp_path / "preset", tmp_path / "back")
    assert "(keras_hub)" in said
    original = run_folder.read(Source(str(finished)))
    again = run_folder.read(Source(str(tmp_path / "back")))
    assert list(again.towers) == ["discriminator"]
    assert not again.main.head
    for name, value in original.discriminator.encoder.items():
        np.testing.assert_array_equal(again.main.encoder[name], value)
    assert (again.lower_case, again.strip_accents) == (False, False)
    wrong = refused(tmp_path / "preset", tmp_path / "x", "--only=generator")
    assert "has no generator" in wrong
