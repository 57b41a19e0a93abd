"""Several discriminators on one text: each as when it is asked alone."""

import json
import shutil

import numpy as np
import pytest

from electra_tf.__main__ import main as command
from electra_tf.analysis import Inspector, page, terminal
from electra_tf.analysis.course import Course, checkpoints, courses, folders
from electra_tf.config import fields
from electra_tf.config.pretraining import PretrainConfig
from electra_tf.systems import build
from electra_tf.training.checkpoints import CheckpointStore, named_variables
from tests import tiny_run
from tests.analysis.test_output import Document
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS

TEXT = "a good movie was not awful"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with two checkpoints, and the folders that it would end with at each."""
    home = tmp_path_factory.mktemp("runs")
    config = {**tiny_run.SIZES, "mask_rate": 0.5, "dropout": 0.0}
    flags = fields.to_flat(PretrainConfig()) | config
    model = build.model(fields.from_flat(flags, PretrainConfig), len(TOKENS))
    tiny_run.save(home / "run", model, **config)
    for path in (home / "run").glob("*.keras"):
        path.unlink()
    variables = named_variables(model)
    store = CheckpointStore(home / "run" / "checkpoints", variables)
    for seed, step in enumerate((100, 2000)):
        randomize(model.trainable_variables, seed=seed)
        store.save(step)
        tiny_run.save(home / str(step), model, **config)
    return home


def test_checkpoints_judge_as_the_models_they_would_become(run):
    inspector = Inspector(run / "run", pytest.fail)
    (found,) = courses([TEXT], checkpoints(inspector))
    assert found.names == ("step 100", "step 2,000")
    for step, values in zip((100, 2000), found.probabilities, strict=True):
        alone = Inspector(run / str(step), pytest.fail).verdicts(TEXT)
        assert found.tokens == alone.tokens
        np.testing.assert_allclose(values, alone.probabilities, rtol=1e-4, atol=1e-6)
    assert not np.allclose(*found.probabilities, atol=1e-3)


def test_folders_judge_the_same_corruption(run):
    inspector = Inspector(run / "100", pytest.fail)
    stages = folders(inspector, [str(run / "2000")], pytest.fail)
    (found,) = courses([TEXT], stages, inspector.corrupt)
    alone = inspector.corrupt(TEXT)
    assert (found.tokens, found.original) == (alone.tokens, alone.original)
    np.testing.assert_allclose(
        found.probabilities[0], alone.probabilities, rtol=1e-4, atol=1e-6
    )
    other = Inspector(run / "2000", pytest.fail)
    ids = np.array([other.vocabulary.ids[token] for token in alone.tokens], np.int32)
    np.testing.assert_allclose(found.probabilities[1], other.judge(ids, other.detector))


def test_the_command(run, tmp_path, capsys):
    target = tmp_path / "out.html"
    arguments = [f"--model={run / 'run'}", "--checkpoints", TEXT]
    assert command(["inspect", *arguments, f"--html={target}"]) == 0
    assert "step 2,000" in capsys.readouterr().out
    assert "step 2,000" in "".join(Document(target.read_text()).text)
    assert command(["inspect", *arguments, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert [*row["replaced_probability"]] == ["step 100", "step 2,000"]


def test_what_cannot_be_asked_is_one_line(run, tmp_path):
    mlm = tiny_run.save(tmp_path / "mlm", tiny_run.electra().generator)
    other = [token.replace("movie", "Movie") for token in TOKENS]
    cased = tiny_run.save(tmp_path / "cased", tokens=tuple(other))
    for arguments, message in (
        ([f"--model={run / '100'}", "--checkpoints", "x"], "keeps no checkpoints"),
        ([f"--model={run / 'run'}", f"--beside={run / '100'}", "x"], "not finished"),
        ([f"--model={run / '100'}", f"--beside={mlm}", "x"], "no discriminator.keras"),
        ([f"--model={run / '100'}", f"--beside={cased}", "movie"], "one vocabulary"),
        ([f"--model={run / '100'}", "--beside=x", "--fill", "x"], "leave out --fill"),
        ([f"--model={run / '100'}", "--beside=x", "--checkpoints", "x"], "exclude"),
    ):
        with pytest.raises(SystemExit, match=message) as stopped:
            command(["inspect", *arguments])
        assert "\n" not in stopped.value.code


def test_texts_are_escaped_and_lined_up():
    names, values = ("<i>early</i>", "late"), ((0.1, 0.9), (0.2, 0.4))
    course = Course("<b>x", ("<a>", "##b"), names, values, ("c", "##b"), (True, True))
    source = page.page([course], about="")
    text = "".join(Document(source).text)
    for shown in ("<i>early</i>", "<a>c", "##b=", "<b>x"):
        assert shown in text
    assert "<i>" not in source
    shown = terminal.course(course, width=80, use_color=False)
    assert shown.splitlines() == [
        "     original  c   ##b",
        "        token  <a> ##b",
        " <i>early</i>  10  *90",
        "         late  20  40",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [({"hidden_size": 10**8}, "GB"), ({"objective": "x"}, "--objective=x is unknown")],
)
def test_a_config_of_a_stranger(run, tmp_path, change, said):
    """Refused before anything is built of it."""
    copy = shutil.copytree(run / "run", tmp_path / "copy")
    path = copy / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"config": settings["config"] | change}))
    with pytest.raises(ValueError, match=said) as refused:
        list(checkpoints(Inspector(copy, pytest.fail)))
    assert str(refused.value).startswith(str(path))
