import functools
import shutil

import keras
import numpy as np
import pytest

from tests.end_to_end.in_process import rows
from tests.end_to_end.in_process import run as run_here
from tests.end_to_end.test_pretraining import final_weights

pytestmark = pytest.mark.slow

SAME = "--generator_hidden_size=1 --generator_layers=1 --sharing=nes"
SYSTEMS = {
    "two_stage": f"--training=two_stage {SAME}",
    "two_stage_no_copy": "--training=two_stage --notwo_stage_copy --sharing=nes "
    "--generator_learning_rate=2e-3 --nosampling_dropout",
    "reinforce": "--training=reinforce --adversarial_start=1 --adversarial_steps=5 "
    "--gradient_accumulation_steps=2",
    "gumbel": "--training=gumbel --sharing=gdes --generator_learning_rate=1e-4",
    # Two schedules at once.
    "unigram": "--generator=unigram --mask_select=spans --mask_rate=0.4 "
    "--final_mask_rate=0.1 --temperature=3 --final_temperature=1 --temperature_steps=6",
}


def in_process(text, model_dir, *arguments):
    """Trains for eight steps; returns the exit code and the log lines."""
    return run_here(text, model_dir, "--num_train_steps=8", *arguments)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """Returns a function: name of a system -> folder and log of its whole run."""

    @functools.cache
    def of(name):
        folder = tmp_path_factory.mktemp(name)
        code, said = in_process(text, folder, *SYSTEMS[name].split())
        assert code == 0
        return folder, "\n".join(said)

    return of


@pytest.mark.parametrize(
    ("name", "step"),
    [
        # Before weights are copied, and in the second stage.
        *(("two_stage", 4), ("two_stage", 6), ("two_stage_no_copy", 6)),
        *(("reinforce", 4), ("gumbel", 4), ("unigram", 4)),
    ],
)
def test_resumed_equals_uninterrupted_to_the_bit(text, whole, tmp_path, name, step):
    """Resumes from a checkpoint of the whole run, without what was written later."""
    later = [f"ckpt-{number}.*" for number in range(step + 1, 9)]
    finished = ("encoder.keras", "generator.keras", "curves.png", "samples.txt")
    ignore = shutil.ignore_patterns(*later, *finished)
    folder = shutil.copytree(whole(name)[0], tmp_path / "run", ignore=ignore)
    code, said = in_process(text, folder, *SYSTEMS[name].split())
    assert code == 0
    assert any(f"resuming after step {step}" in line for line in said)
    np.testing.assert_equal(final_weights(folder, 8), final_weights(whole(name)[0], 8))
    for file in finished:
        assert (folder / file).stat().st_size > 0


def test_what_systems_log(whole):
    folder, said = whole("two_stage")
    assert "phase generator: steps 1 to 4" in said
    assert "phase discriminator: steps 5 to 8" in said
    training = {row["step"]: row for row in rows(folder) if "learning_rate" in row}
    assert all("masked_lm_loss" in training[step] for step in range(1, 5))
    both = {"discriminator_loss", "generator_loss"}
    assert all(both <= training[step].keys() for step in range(5, 9))
    # The generator is no longer frozen.
    assert keras.saving.load_model(folder / "generator.keras").trainable_variables
    # Each stage's learning rate decays to 0.
    assert training[4]["learning_rate"] == training[8]["learning_rate"] == 0
    assert training[5]["learning_rate"] > 0

    training = [row for row in rows(whole("reinforce")[0]) if "reward" in row]
    mixture = [row["adversarial_weight"] for row in training]
    expected = [min(max(step - 1, 0) / 5, 1) for step in range(1, 9)]
    np.testing.assert_allclose(mixture, expected, rtol=1e-6)
    # The reward baseline starts at ln 2 and is updated.
    assert training[0]["reward_baseline"] == pytest.approx(np.log(2))
    assert training[-1]["reward_baseline"] != training[0]["reward_baseline"]

    # The unigram generator is the trivial predictor.
    lines = whole("unigram")[1].splitlines()
    line = next(line for line in lines if line.startswith("generator_loss"))
    own, trivial = line.split()[1:3]
    assert own == trivial


def test_fast_electra_takes_a_generator_and_leaves_it_alone(text, whole, tmp_path):
    """The source run has tied embeddings; this run does not."""
    source = whole("reinforce")[0]
    flags = f"""--generator_init_from={source} --freeze_generator --sharing=nes
    --temperature=2 --final_temperature=1 --temperature_steps=2
    --temperature_shape=exponential""".split()
    code, said = in_process(text, tmp_path, *flags)
    assert code == 0
    assert any(line.startswith("generator from") for line in said)
    assert "P(replaced) %" in (tmp_path / "samples.txt").read_text()
    first, last = final_weights(tmp_path, 2), final_weights(tmp_path, 8)
    trained = final_weights(source, 8)
    moved = set()
    for name, value in last.items():
        if "model.S" in name and not np.array_equal(value, first[name]):
            moved.add(name.split(".S")[1])
        if "model.Sgenerator.S" in name:
            np.testing.assert_array_equal(value, trained[name], err_msg=name)
    assert moved == {"electra", "discriminator", "embeddings", "objective"}
    temperatures = [x["temperature"] for x in rows(tmp_path) if "temperature" in x]
    np.testing.assert_allclose(temperatures[:2], 1 + np.exp([-0.5, -1.0]), rtol=1e-5)
