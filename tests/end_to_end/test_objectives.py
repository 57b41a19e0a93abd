"""Trains combinations of objectives' flags, and a flagfile of configs/objectives.

tests/golden and tests/end_to_end/test_systems.py train the others.
"""

import keras
import pytest

from electra_tf.layers import TextEmbedding
from tests.end_to_end import in_process
from tests.end_to_end.test_pretraining import ROOT

pytestmark = pytest.mark.slow

COMBINATIONS = {
    "electra_15_two_tower_gdes": "--objective=electra_15 --generator=two_tower "
    "--sharing=gdes --mask_select=with_replacement",
    "two_tower_token_clean_samples": "--generator=two_tower --sharing=token "
    "--nosampling_dropout --sentence_weight=1",
    "two_stage_gdes_replace_mlm": "--training=two_stage --sharing=gdes "
    "--objective=replace_mlm --generator_hidden_size=1 --generator_layers=1",
    "electric_gdes_spans_decay": "--objective=electric --sharing=gdes "
    "--mask_select=spans --mask_rate=0.4 --final_mask_rate=0.1",
    "unigram_all_tokens_sentence": "--generator=unigram --objective=all_tokens_mlm "
    "--sentence_weight=1 --temperature=2",
    "gumbel_gdes_whole_words": "--training=gumbel --sharing=gdes "
    "--mask_select=whole_words --generator_learning_rate=1e-4",
    "reinforce_token_rare": "--training=reinforce --sharing=token "
    "--mask_select=rare_tokens --disallow_correct --num_layers=2 "
    "--generator_hidden_size=1 --generator_layers=0.5",
    "mlm_spans": "--objective=mlm --mask_select=spans",
}
# A metric of each kind of discriminator, and a word in its samples.
DETECTS = ("discriminator_auc", "P(replaced) %")
SHOWN = {
    "replace_mlm": ("corrected_accuracy", " > "),
    "all_tokens_mlm": ("copy_auc", " > "),
    "mlm": ("masked_lm_loss", " > "),
}


def check(text, folder, arguments):
    """Trains a system; checks its log, metrics, samples, models and dry run."""
    config = in_process.config_of(text, folder, *arguments)
    code, said = in_process.run(text, folder, *arguments)
    assert code == 0
    number, sample = SHOWN.get(config.objective.objective, DETECTS)
    assert number in "\n".join(said)
    assert sample in (folder / "samples.txt").read_text()
    rows = in_process.rows(folder)
    assert rows[-1]["step"] == 6
    assert {"eval_loss"} < rows[-1].keys()
    assert (folder / "curves.png").stat().st_size > 0
    for part in folder.glob("*.keras"):
        model = keras.saving.load_model(part)
        encoder = model if part.stem == "encoder" else getattr(model, "encoder", None)
        if encoder is not None:
            assert type(encoder.embeddings) is TextEmbedding, "needs no other network"
    code, said = in_process.run(text, folder, *arguments, "--dry_run")
    assert code == 0
    assert "FLOPs per step" in said[-1]


def test_a_flagfile_runs_and_leaves_everything(text, tmp_path):
    flag = f"--flagfile={ROOT}/configs/objectives/generator_uniform.cfg"
    check(text, tmp_path, [flag, "--"])


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_run_and_are_restored(name, text, tmp_path):
    arguments = ["--dropout=0.1", *COMBINATIONS[name].split()]
    check(text, tmp_path, arguments)
    before = in_process.rows(tmp_path)
    assert any("eval_loss" in row for row in before)
    # The same command restores the final checkpoint and evaluates it again. Different
    # scores would add a row.
    code, said = in_process.run(text, tmp_path, *arguments)
    assert code == 0
    assert f"{tmp_path} is trained to its last step" in "\n".join(said)
    assert "trivial means" in "\n".join(said)
    assert in_process.rows(tmp_path) == before
