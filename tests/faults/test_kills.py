import signal

import keras
import numpy as np
import pytest

from tests.end_to_end.test_pretraining import SIZES, final_weights
from tests.forked import Process

STEPS = 10
# Place, number of the call, seconds after its start; in the order of the run.
INSTANTS = [
    ("shard", 1, 0.001),
    ("file", 3, 0.0),
    ("step", 1, 0.0),
    ("save", 1, 0.0),
    ("save", 2, 0.01),
    ("evaluation", 1, 0.02),
    ("step", 2, 0.03),
    ("save", 1, 0.03),
    ("save", 1, 0.05),
    ("end", 1, 0.0),
    ("end", 1, 0.1),
    ("end", 1, 0.3),
]


def run(flags, **options):
    return Process("tests.faults.kills:run", flags=flags, **options).communicate(600)


def flags_of(text, folder, steps=STEPS):
    """Flags of a run with vocabulary, records, checkpoints and models in its folder."""
    flags = f"""{SIZES} --num_train_steps={steps} --save_checkpoint_steps=1
    --log_steps=2 --eval_steps=4 --max_eval_batches=2 --mixed_precision=none
    --vocab_size=120 --eval_fraction=0.2"""
    return [*flags.split(), f"--corpus={text / 'text.txt'}", f"--model_dir={folder}"]


def shards(folder):
    return {path.name: path.read_bytes() for path in folder.glob("data/*.tfrecord")}


@pytest.mark.slow
def test_kills_end_as_one_undisturbed_run(text, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    code, said = run(flags_of(text, whole))
    assert code == 0, said
    codes = []
    for instant in INSTANTS:
        # If the place does not occur any more, the kill comes at the end of the run.
        end = [("end", 1, 0.0)] if instant[0] != "end" else []
        code, said = run(flags_of(text, folder), at=[instant, *end])
        assert "Traceback" not in said, said
        codes.append(code)
    # A run that ends before its instant exits with 0.
    assert {*codes} <= {0, -signal.SIGKILL}
    assert codes.count(-signal.SIGKILL) >= 11, codes
    code, said = run(flags_of(text, folder))
    assert code == 0, said
    assert f"trained to its last step, {STEPS}" in said
    np.testing.assert_equal(final_weights(folder, STEPS), final_weights(whole, STEPS))
    assert shards(folder) == shards(whole) != {}
    for name in ("encoder", "discriminator", "generator"):
        models = (keras.models.load_model(x / f"{name}.keras") for x in (folder, whole))
        np.testing.assert_equal(*(model.get_weights() for model in models))
    assert (folder / "samples.txt").read_text() == (whole / "samples.txt").read_text()
    assert not [path for path in folder.rglob("*") if ".part-" in path.name]
    left, expected = ({path.name for path in x.iterdir()} for x in (folder, whole))
    assert left == expected


@pytest.mark.slow
def test_no_more_files_can_be_opened(text, tmp_path):
    flags = flags_of(text, tmp_path, steps=1)
    for spare in (0, 5):
        code, said = run(flags, files=spare)
        assert code != 0, said
        assert "Traceback" not in said, said
        last = said.strip().splitlines()[-1]
        assert last.startswith("error: "), said
        assert "open files" in last
    code, said = run(flags)
    assert code == 0, said
