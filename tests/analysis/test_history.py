"""Stages of a model: each is measured as when it is asked alone."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import special
from sklearn import metrics as peers

from electra_tf.analysis import Inspector, history
from electra_tf.analysis.errors import word_scores
from electra_tf.analysis.judged import judge
from electra_tf.analysis.subject import Subject, short_names
from electra_tf.cli import note
from electra_tf.config import fields
from electra_tf.config.commands import AnalyzeConfig
from tests import tiny_run
from tests.layers.helpers import randomize
from tests.tasks.common import TOKENS


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("early", "late")):
        model = tiny_run.electra()
        randomize(model.trainable_variables, seed=seed)
        tiny_run.save(home / name, model, mask_rate=0.5)
    (home / "text.txt").write_text("a good movie was not awful\nthe song is fine\n" * 9)
    edit = "A 1 2|||<kind>|||x|||R|||-|||0\n\n"
    (home / "errors.m2").write_text(f"S a books was bad\n{edit}" * 6)
    return home


def subject(home, **values):
    values |= {"model": str(home / "late"), "output": "x", "limit": 18}
    values |= {"text": (str(home / "text.txt"),)}
    return Subject(fields.from_flat(values, AnalyzeConfig), note)


def test_stages_are_measured_as_each_alone(home):
    flags = {"beside": (str(home / "early"),), "errors": (str(home / "errors.m2"),)}
    given = subject(home, **flags)
    found = history.section(given)
    assert [*found.numbers["calibration"]] == ["early", "late"]
    late, early = given.inspector, Inspector(home / "early", note)
    # The early stage reads what the generator of the late one has written.
    shown = judge(late, given.text.rows, late.generator)
    ends = early.vocabulary.cls_id, early.vocabulary.sep_id
    rows = np.split(shown.shown, np.flatnonzero(np.diff(shown.row)) + 1)
    answers = (
        early.judge(np.array([ends[0], *ids, ends[1]], np.int32), early.detector)
        for ids in rows
    )
    p = np.concatenate([answer[1:-1] for answer in answers])
    stage = found.numbers["calibration"]["early"]
    expected = peers.roc_auc_score(shown.is_replaced, p)
    assert stage.auc == pytest.approx(expected, abs=1e-3)
    expected = peers.brier_score_loss(shown.is_replaced, p)
    assert stage.brier == pytest.approx(expected, rel=1e-4)
    words = [("a", "books", "was", "bad")] * 6
    wrong = [False, True, False, False] * 6
    numbers = found.numbers["errors"]["errors.m2"]
    for name, inspector in (("early", early), ("late", late)):
        scores = word_scores(inspector, words, np.ones(len(TOKENS)))["discriminator"]
        expected = peers.average_precision_score(wrong, special.expit(scores))
        assert numbers[name]["average_precision"] == pytest.approx(expected)
    first, last = (numbers[name] for name in ("early", "late"))
    more = last["average_precision"] - first["average_precision"]
    assert first["to_the_last"]["average_precision"] == pytest.approx(more)
    assert last["to_the_last"]["average_precision"] == 0
    assert [*found.numbers["verdicts"][0]["replaced_probability"]] == ["early", "late"]
    for picture in found.pictures:
        picture.figure()


def test_what_cannot_be_a_stage(home, tmp_path):
    other = [token.replace("movie", "Movie") for token in TOKENS]
    cased = tiny_run.save(tmp_path / "cased", tokens=tuple(other))
    with pytest.raises(ValueError, match="cased has another vocabulary"):
        history.section(subject(home, beside=(str(cased),)))
    for twice in (("late",), ("early", "early")):
        beside = tuple(str(home / name) for name in twice)
        with pytest.raises(ValueError, match="is there twice, or is the --model"):
            history.section(subject(home, beside=beside))
    with pytest.raises(ValueError, match="keeps no checkpoints"):
        history.section(subject(home, checkpoints=True))
    with pytest.raises(ValueError, match="--beside"):
        history.section(subject(home))


def test_names_and_pictures(tmp_path):
    folders = [tmp_path / name for name in ("a/run", "b/run", "c")]
    assert short_names(folders) == ["a/run", "b/run", "c"]
    assert short_names([tmp_path / "a", tmp_path / "a"]) == [str(tmp_path / "a")] * 2
    axis = Figure().subplots()
    history.draw_stages(axis, ["$a", "b"], {"x": [0.5, 0.7]}, "AUC")
    assert axis.lines[0].get_ydata(orig=False).tolist() == [0.5, 0.7]
