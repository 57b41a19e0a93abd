import json
import shutil

import pytest

from electra_tf import files
from electra_tf.folders.pretraining import PretrainingFolder
from tests.end_to_end.in_process import run

pytestmark = pytest.mark.slow

# Records are in model_dir/data, the default.
OWN_DATA = ("--num_train_steps=2", "--eval_fraction=0.1")


def arguments(text, model_dir, *more):
    return (text, model_dir, *OWN_DATA, f"--data_dir={model_dir / 'data'}", *more)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("finished")
    assert run(*arguments(text, model_dir))[0] == 0
    return model_dir


@pytest.fixture
def model_dir(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def content(folder):
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--corpus=typo.txt"], "typo.txt"),
        (["--vocab_file=typo.txt"], "typo.txt"),
        (["--records=typo*.tfrecord"], "No TFRecord file matches"),
        (["--model_dir={run}/a[1]"], "cannot read checkpoints"),
        (["--init_from={text}"], "has no weights"),
        (["--generator_init_from={text}/none"], "there is no"),
        (["--init_from={run}"], r"an input \(--init_from\)"),
        (["--init_from={run}/checkpoints"], r"an input \(--init_from\)"),
        (["--vocab_file={run}/vocab.txt"], r"an input \(--vocab_file\)"),
        (["--corpus={run}/data"], r"an input \(--corpus\)"),
        (["--records={run}/data/train-*.tfrecord"], r"an input \(--records\)"),
        (
            ["--records={text}/x.tfrecord", "--eval_records={run}/data/eval-*"],
            r"an input \(--eval_records\)",
        ),
        (
            ["--generator_init_from={run}/generator.keras"],
            r"an input \(--generator_init_from\)",
        ),
    ],
)
def test_what_cannot_start_deletes_nothing(text, model_dir, flags, message):
    before = content(model_dir)
    flags = [flag.format(run=model_dir, text=text) for flag in flags]
    with pytest.raises((ValueError, OSError), match=message):
        run(*arguments(text, model_dir, "--overwrite", *flags))
    assert content(model_dir) == before


def test_only_records_go_before_weights_are_read(text, model_dir):
    (model_dir / "mine.keras").write_bytes(b"nothing")
    before = content(model_dir)
    flag = f"--generator_init_from={model_dir / 'mine.keras'}"
    with pytest.raises(ValueError, match=r"mine\.keras cannot be loaded"):
        run(*arguments(text, model_dir, "--overwrite", flag))
    # The records of the new run have the same file names as before.
    assert content(model_dir).keys() == before.keys()
    assert (model_dir / "checkpoints" / "ckpt-2.index").exists()
    assert json.loads((model_dir / "config.json").read_text())
    # The folder is given back.
    with files.owned(model_dir):
        pass
    assert not (model_dir / ".lock.owner").exists()


def test_overwriting_starts_anew(text, model_dir):
    mine = [model_dir / "notes.md", model_dir / "data" / "notes.md"]
    for path in mine:
        path.write_text("mine")
    code, said = run(*arguments(text, model_dir, "--overwrite", "--seed=3"))
    assert code == 0
    assert not any("resuming" in line for line in said)
    assert not any("using" in line for line in said)
    assert json.loads((model_dir / "config.json").read_text())["config"]["seed"] == 3
    manifest = json.loads((model_dir / "data" / "manifest.json").read_text())
    assert manifest["settings"]["seed"] == 3
    assert all(path.read_text() == "mine" for path in mine)
    # A vocabulary that was not trained here is the user's.
    words = model_dir / "data" / "vocab.txt"
    words.write_text(words.read_text() + "mine\n")
    PretrainingFolder(model_dir).delete(["data"])
    assert {*words.parent.iterdir()} >= {words, mine[1]}
    assert not (words.parent / "manifest.json").exists()
    assert not list(words.parent.glob("*.tfrecord"))


def test_a_dry_run_says_what_it_would_delete(text, model_dir):
    before = content(model_dir)
    flags = ("--overwrite", "--dry_run", "--seed=3", "--hidden_size=64")
    code, said = run(*arguments(text, model_dir, *flags))
    assert code == 0
    (line,) = [line for line in said if "would delete" in line]
    for name in (str(model_dir), "checkpoints", "config.json", "data"):
        assert name in line
    assert any("dry run: nothing was trained" in text for text in said)
    assert content(model_dir) == before
