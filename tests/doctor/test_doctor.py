import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import electra_tf as et
from electra_tf import doctor
from electra_tf.__main__ import main as command
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.pretraining import UnigramGenerator
from tests import tiny, tiny_run
from tests.interop.models import GOLDEN
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS


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
def subject(tmp_path_factory):
    return doctor.read(tiny_run.save(tmp_path_factory.mktemp("run")))


def examine(path):
    return doctor.examine(doctor.read(path))


def with_flags(subject, **flags):
    return dataclasses.replace(subject, flags={**subject.flags, **flags})


def with_vocabulary(subject, tokens, *, lower_case=True, is_of_training=True):
    words = Vocabulary(tokens)
    model = dataclasses.replace(subject.model, vocabulary=words, lower_case=lower_case)
    sha256 = words.sha256 if is_of_training else subject.vocabulary_sha256
    return dataclasses.replace(subject, model=model, vocabulary_sha256=sha256)


def with_tower(subject, role, **changes):
    tower = dataclasses.replace(subject.towers[role], **changes)
    return dataclasses.replace(subject, towers={**subject.towers, role: tower})


def with_scaled(subject, role, name, scale):
    encoder = dict(subject.towers[role].encoder)
    encoder[name] = encoder[name] * scale
    return with_tower(subject, role, encoder=encoder)


def with_metrics(subject, **values):
    """Changes the metrics that a row has, of training and held-out text."""
    rows = [
        {name: values.get(name.removeprefix("eval_"), x) for name, x in row.items()}
        for row in subject.metrics
    ]
    return dataclasses.replace(subject, metrics=tuple(rows))


def test_a_healthy_run(subject):
    findings = doctor.examine(subject)
    assert said(findings) == {}
    checked = {finding.trap for finding in findings}
    assert checked == {check.__name__ for check in doctor.CHECKS}


def test_what_looks_like_a_trap(subject):
    """A script without capitals, the last mask rate, and flags of other versions."""
    thai = (*TOKENS[:5], *(chr(0xE01 + i) for i in range(len(TOKENS) - 5)))
    found = with_vocabulary(subject, thai, lower_case=False)
    assert said(doctor.examine(found)) == {}
    found = with_metrics(subject, replaced_fraction=0.04)
    falling = {"mask_rate": 0.3, "final_mask_rate": 0.1}
    found = with_flags(found, **falling, mask_select="spans")
    assert said(doctor.examine(found)) == {}


def test_missing_and_damaged_files(tmp_path):
    folder = tiny_run.save(tmp_path)
    path = folder / "generator.keras"
    path.write_bytes(path.read_bytes()[:2000])
    subject = doctor.read(folder)
    assert "generator.keras" in said(doctor.examine(subject))["PROBLEM", "files"]
    assert subject.towers.keys() == {"discriminator"}
    path.unlink()
    check(examine(folder), "WARNING", "files", "there is no generator")
    (folder / "vocab.txt").write_text("\n".join(t for t in TOKENS if t != "[MASK]"))
    check(examine(folder), "PROBLEM", "files", "special tokens missing: [MASK]")
    (folder / "vocab.txt").unlink()
    (folder / "discriminator.keras").unlink()
    found = said(examine(folder))
    assert "an encoder without a head" in found["WARNING", "files"]
    assert "no vocabulary" in found["WARNING", "vocabulary"]
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
    found = doctor.read(tiny_run.save(tmp_path, model, sharing="nes"))
    text = "do not share their embeddings"
    check(doctor.examine(found), "WARNING", "files", text)
    check(doctor.examine(with_flags(found, sharing="tied")), "PROBLEM", "files", text)


def test_a_generator_that_other_formats_lack(tmp_path):
    model = tiny_run.electra()
    unigram = UnigramGenerator(len(TOKENS))
    model = et.Electra(unigram, model.discriminator, objective=model.objective)
    found = doctor.read(tiny_run.save(tmp_path, model, generator="unigram"))
    check(doctor.examine(found), "WARNING", "files", "trained with UnigramGenerator")


def test_other_epsilons(tmp_path):
    model = tiny.electra(vocab=len(TOKENS))
    table = model.discriminator.embeddings
    encoder = tiny.encoder(table, layer_norm_epsilon=1e-3, name="discriminator")
    model = type(model)(model.generator, encoder)
    randomize(model.trainable_variables)
    assert "0.001" in said(examine(tiny_run.save(tmp_path, model)))["PROBLEM", "files"]


# Changes of a healthy run: function, arguments, and the expected finding.
CAPITALS = (*TOKENS[:5], *(t.title() for t in TOKENS[5:12]), *TOKENS[12:])
SWAPPED = {"tokens": TOKENS[:-2] + TOKENS[:-3:-1], "is_of_training": False}
UNCASED = {"tokens": TOKENS, "lower_case": False}
BROKEN = {"role": "generator", "name": "layer_1/output_kernel", "scale": np.nan}
EMPTY = {"role": "discriminator", "name": "layer_0/qkv_kernel", "scale": 0}
COLLAPSED = {"discriminator_auc": 0.51, "discriminator_loss": 0.31}
TRAPS = [
    (with_vocabulary, {"tokens": TOKENS[:-1]}, "PROBLEM", f"{len(TOKENS)} rows in"),
    (with_vocabulary, SWAPPED, "PROBLEM", "not the one of training"),
    (with_vocabulary, UNCASED, "PROBLEM", "no token has a capital"),
    (with_vocabulary, {"tokens": CAPITALS}, "WARNING", "7 tokens have capitals"),
    (with_scaled, BROKEN, "PROBLEM", BROKEN["name"]),
    (with_scaled, EMPTY, "PROBLEM", EMPTY["name"]),
    (with_metrics, COLLAPSED, "PROBLEM", "AUC 0.5"),
    (with_metrics, {"replaced_fraction": 0.03}, "WARNING", "only 3.0% of the"),
    (with_metrics, {"generator_accuracy": None}, "PROBLEM", "the end: eval_gen"),
    (with_flags, {"num_train_steps": 900}, "WARNING", "500 of 900 steps"),
]
TRAP_OF = {with_vocabulary: "vocabulary", with_scaled: "weights"}


@pytest.mark.parametrize(("change", "values", "level", "text"), TRAPS)
def test_runs_with_traps(subject, change, values, level, text):
    trap = TRAP_OF.get(change, "training")
    check(doctor.examine(change(subject, **values)), level, trap, text)


def test_a_loss_that_is_not_finite_beside_a_finite_auc(subject):
    lost = {"step": 500, "replaceable_auc": 0.5, "replaceable_loss": None}
    found = dataclasses.replace(subject, metrics=({**tiny_run.HEALTHY, **lost},))
    check(doctor.examine(found), "PROBLEM", "training", "replaceable_loss")


def test_weights_that_were_never_trained(subject, tmp_path):
    fresh = doctor.read(tiny_run.save(tmp_path, tiny.electra(vocab=len(TOKENS))))
    check(doctor.examine(fresh), "PROBLEM", "weights", "no part was trained")
    head = fresh.towers["discriminator"].head
    found = doctor.examine(with_tower(subject, "discriminator", head=head))
    check(found, "PROBLEM", "weights", "discriminator: untrained: head")


@pytest.fixture
def pair(tmp_path):
    """Returns a discriminator and its generator, saved by transformers."""
    one = Path(shutil.copytree(GOLDEN / "projected", tmp_path / "discriminator"))
    return one, (one / "generator").rename(tmp_path / "generator")


def test_hugging_face_pair(pair):
    check(examine(pair[0]), "WARNING", "files", "there is no generator")
    assert said(doctor.examine(doctor.read(*pair))) == {}
    tensors = load_file(pair[1] / "model.safetensors")
    changed = {name: value + 0.5 for name, value in tensors.items()}
    save_file(changed, pair[1] / "model.safetensors")
    findings = doctor.examine(doctor.read(*pair))
    assert "do not share their embeddings" in said(findings)["PROBLEM", "files"]
    assert not any("Finish the run" in finding.advice for finding in findings)
    path = pair[0] / "model.safetensors"
    for size in (100, 0):
        path.write_bytes(path.read_bytes()[:size])
        assert "PROBLEM" in {finding.level for finding in examine(pair[0])}


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="fine-tuned model"):
        doctor.read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="not in a known format"):
        doctor.read(tmp_path / "empty")
    with pytest.raises(ValueError, match="mini does not need --generator"):
        doctor.read("mini", "generator")


def test_command(tmp_path, capsys):
    folder = tiny_run.save(tmp_path)
    assert command(["doctor", f"--model={folder}"]) == 0
    out = capsys.readouterr().out
    assert "0 warnings, 0 problems" in out
    assert "\x1b" not in out
    (folder / "encoder.keras").unlink()
    assert command(["doctor", f"--model={folder}"]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM files" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "-> Finish the run" in out
    assert command(["doctor", f"--model={folder}", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"level", "trap", "found", "advice"} == rows[0].keys()
    assert sum(row["level"] == "PROBLEM" for row in rows) == 1
    with pytest.raises(SystemExit, match="error: "):
        command(["doctor", "--model=/none"])
