"""Combinations that tests/golden and test_systems.py do not train."""

import shutil

import keras
import pytest

from electra_tf.layers import TextEmbedding
from tests.end_to_end import in_process

pytestmark = pytest.mark.slow

COMBINATIONS = {
    "two_tower_token_clean_samples": "--generator=two_tower --sharing=token "
    "--nosampling_dropout --sentence_weight=1 --mask_select=with_replacement",
    "two_stage_gdes_replace_mlm": "--training=two_stage --sharing=gdes "
    "--objective=replace_mlm --generator_hidden_size=1 --generator_layers=1",
    "electric_gdes_words_decay": "--objective=electric --sharing=gdes "
    "--mask_select=whole_words --mask_rate=0.4 --final_mask_rate=0.1",
    "uniform_all_tokens_sentence": "--generator=uniform --objective=all_tokens_mlm "
    "--sentence_weight=1",
    "reinforce_token_rare": "--training=reinforce --sharing=token "
    "--mask_select=rare_tokens --disallow_correct --num_layers=2 "
    "--generator_hidden_size=1 --generator_layers=0.5",
    "mlm_words": "--objective=mlm --mask_select=whole_words",
}
# A metric of each kind of model without samples.
SHOWN = {
    "replace_mlm": "corrected_accuracy",
    "all_tokens_mlm": "copy_auc",
    "mlm": "masked_lm_loss",
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_run_and_are_restored(name, text, tmp_path):
    arguments = ["--dropout=0.1", *COMBINATIONS[name].split()]
    config = in_process.config_of(text, tmp_path, *arguments)
    code, said = in_process.run(text, tmp_path, *arguments)
    assert code == 0
    kind, samples = config.objective.objective, tmp_path / "samples.txt"
    assert SHOWN.get(kind, "discriminator_auc") in "\n".join(said)
    assert samples.exists() != (kind in SHOWN)
    if samples.exists():
        assert "P(replaced) %" in samples.read_text()
    assert (tmp_path / "curves.png").stat().st_size > 0
    for part in tmp_path.glob("*.keras"):
        model = keras.saving.load_model(part)
        encoder = model if part.stem == "encoder" else getattr(model, "encoder", None)
        if encoder is not None:
            assert type(encoder.embeddings) is TextEmbedding, "needs no other network"
    before = in_process.rows(tmp_path)
    assert before[-1]["step"] == 6
    assert "eval_loss" in before[-1]
    # The same command restores the final checkpoint and evaluates it again. Different
    # scores would add a row.
    code, said = in_process.run(text, tmp_path, *arguments)
    assert code == 0
    assert f"{tmp_path} is trained to its last step" in "\n".join(said)
    assert "trivial means" in "\n".join(said)
    assert in_process.rows(tmp_path) == before
    # It trained again, and emptied the metrics.
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match=r"models without checkpoints.*--overwrite"):
        in_process.run(text, tmp_path, *arguments)
    assert in_process.rows(tmp_path) == before
