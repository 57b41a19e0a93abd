"""Every objective and sharing: trained, shown, saved, restored, fine-tuned."""

import json
import subprocess
import sys

import keras
import pytest

from electra_tf import build_models, networks, pretrain
from electra_tf import config as config_lib
from electra_tf.config import PretrainConfig
from electra_tf.layers import TextEmbedding
from tests.end_to_end.test_pretraining import ROOT, SIZES, run

pytestmark = pytest.mark.slow

SYSTEMS = {
    **{name: {"objective": name} for name in build_models.OBJECTIVES},
    "mlm_bert": {"objective": "mlm", "mask_rule": "bert"},
    "sentence": {"sentence_weight": 1.0},
    **{f"sharing_{name}": {"sharing": name} for name in networks.SHARINGS},
    "gdes_all_tokens": {"sharing": "gdes", "objective": "all_tokens_mlm"},
}
SYSTEMS["sharing_all"]["generator_hidden_size"] = 1.0
# A held-out number of each kind of discriminator, and what its samples look like.
SHOWN = {
    "electra": ("discriminator AUC", "P(replaced) %"),
    "electra_15": ("discriminator AUC", "P(replaced) %"),
    "replace_mlm": ("replaced tokens corrected", "confirmed"),
    "all_tokens_mlm": ("copy gate AUC", "elsewhere:"),
    "mlm": ("masked LM loss", " -> "),
}


def config_of(text, model_dir, **choices):
    """The sizes of the other end-to-end tests, six steps, in this process."""
    hints = {leaf.name: type(leaf.default) for _, leaf in config_lib.fields()}
    sizes = dict(flag.removeprefix("--").split("=") for flag in SIZES)
    values = {name: hints[name](value) for name, value in sizes.items()}
    places = {
        "corpus": (str(text / "text.txt"),),
        "vocab_file": str(text / "vocab.txt"),
        "data_dir": str(text / "data"),
        "model_dir": str(model_dir),
    }
    short = {"num_train_steps": 6, "save_checkpoint_steps": 3, "log_steps": 2}
    return config_lib.from_flat(
        {**values, **places, **short, **choices}, PretrainConfig
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_runs_and_leaves_everything(name, text, tmp_path):
    choices = SYSTEMS[name]
    said = []
    config = config_of(text, tmp_path, **choices)
    assert pretrain.run(config, said.append) == 0
    output = "\n".join(said)
    number, sample = SHOWN[choices.get("objective", "electra")]
    assert number in output
    assert sample in (tmp_path / "samples.txt").read_text()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert rows[-1]["step"] == 6
    assert {"eval_loss"} < rows[-1].keys()
    assert (tmp_path / "curves.png").stat().st_size > 0
    for part in tmp_path.glob("*.keras"):
        model = keras.saving.load_model(part)
        encoder = model if part.stem == "encoder" else model.encoder
        assert type(encoder.embeddings) is TextEmbedding, "needs no other network"
    # The same command again finds it trained, restores all of it and evaluates.
    assert pretrain.run(config, said.append) == 0
    assert f"{tmp_path} is trained to its last step" in "\n".join(said)
    assert (
        pretrain.run(config_of(text, tmp_path, dry_run=True, **choices), said.append)
        == 0
    )
    assert "FLOPs per step" in said[-1]


def test_one_command_line_then_fine_tuning(text, tmp_path):
    """Deltas, copy gate and sentence loss at once, then an ordinary fine-tuning."""
    model_dir = tmp_path / "pretrained"
    output = run(
        text,
        model_dir,
        "--objective=all_tokens_mlm",
        "--sharing=gdes",
        "--sentence_weight=1",
        "--num_train_steps=20",
    )
    assert "sentence accuracy" in output
    rows = [f"the {who} sees a {who},{who}" for who in ("cat", "dog")] * 8
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "run_finetuning.py"),
            "--task=classification",
            f"--encoder={model_dir / 'encoder.keras'}",
            f"--train={tmp_path / 'train.csv'}",
            f"--eval={tmp_path / 'train.csv'}",
            f"--output_dir={tmp_path / 'tuned'}",
            "--max_seq_length=16",
            "--train_batch_size=8",
            "--epochs=2",
            "--seeds=1",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    scores = json.loads((tmp_path / "tuned" / "results.json").read_text())
    assert scores["failed_seeds"] == []
    assert (tmp_path / "tuned" / "saved_model").is_dir()
