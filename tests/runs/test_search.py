import dataclasses
import json
import math
import sys

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.runs import finetuning
from electra_tf.runs.search import Search, space
from electra_tf.runs.trainer import Trainer
from tests.runs.common import config, moods, table
from tests.runs.common import run as finetune
from tests.runs.test_trainer import Killed
from tests.tasks import common

SPACE = {
    "learning_rate": FloatDistribution(1e-5, 1e-2, log=True),
    "epochs": IntDistribution(1, 9, log=True),
    "dropout": CategoricalDistribution((0.0, 0.1, 0.3)),
}
FIRST = {"learning_rate": 3e-4, "epochs": 3.0, "dropout": 0.1}


def searching(folder, space, first, trials, score, *, greater=True):
    """Runs a search with known scores; returns search, trials and log lines."""
    said = []
    options = (space, first, trials, 5, "accuracy", greater, folder)
    search = Search(*options, log=said.append)
    best = search(lambda number, values: (score(number, values), ""))
    done = search.read()
    assert best == done[search.best(done)]["values"]
    return search, done, said


def toy(folder, *, trials=9, killed_at=None, greater=True):
    def score(number, values):
        if number == killed_at:
            raise Killed
        rate, epochs = values["learning_rate"], values["epochs"]
        distance = abs(math.log(rate / 1e-3)) + abs(epochs - 4)
        return -distance if greater else distance

    return searching(folder, SPACE, FIRST, trials, score, greater=greater)


def test_a_killed_search_goes_on_as_if_it_was_not(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    search, done, said = toy(whole)
    assert len(done) == 9
    assert done[0]["values"] == FIRST
    for killed_at in (0, 1, 7):
        with pytest.raises(Killed):
            toy(parts, killed_at=killed_at)
    _, again, repeated = toy(parts)
    assert again == done
    assert "7 of 9 trials are done" in repeated
    # Proposals differ. `read` has checked that they are in their ranges.
    assert len({trial["values"]["learning_rate"] for trial in done}) == 9
    stored = json.loads((whole / "search.json").read_text())
    best = max(range(9), key=lambda number: done[number]["score"])
    assert search.best(done) == stored["best_trial"] == best
    assert stored["best"] == done[best]["values"]
    assert len(stored["trials"]) == 9
    # The table has one line per trial, with learning rate and ETA.
    assert sum(" eta " in line and "trial" in line for line in said) == 9


def test_a_search_is_longer_with_more_trials_and_may_look_for_the_least(tmp_path):
    _, few, _ = toy(tmp_path, trials=3, greater=False)
    search, more, _ = toy(tmp_path, trials=5, greater=False)
    assert more[:3] == few
    assert search.best(more) == min(range(5), key=lambda n: more[n]["score"])
    # The least distances are the largest negative ones, so the proposals are equal.
    (tmp_path / "search.json").unlink()
    _, least, _ = toy(tmp_path, greater=False)
    (tmp_path / "search.json").unlink()
    _, largest, _ = toy(tmp_path)
    assert [trial["values"] for trial in least] == [t["values"] for t in largest]
    # The seed of a trial is that of the search plus its number.
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=5 + 2))
    assert largest[2]["values"] == study.ask(SPACE).params


def test_nothing_is_tried_twice(tmp_path):
    """The search ends after one trial of each value."""
    values = {"epochs": CategoricalDistribution((2.0, 4.0, 8.0))}
    options = values, {"epochs": 4.0}, 9, lambda number, values: -values["epochs"]
    search, done, said = searching(tmp_path, *options)
    assert sorted(trial["values"]["epochs"] for trial in done) == [2, 4, 8]
    assert done[search.best(done)]["values"] == {"epochs": 2.0}
    assert "search: there are no other values to try" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 3}, "damaged"),
        ({"trials": [{}]}, "damaged"),
        ({"trials": [{"values": {"epochs": 3.0}}]}, "damaged"),
        ({"trials": [{"values": FIRST | {"epochs": 99}, "failure": ""}]}, "damaged"),
        ({"metric": "f1"}, "is of another search"),
    ],
)
def test_a_search_that_cannot_go_on_is_named(tmp_path, change, message):
    toy(tmp_path, trials=1)
    path = tmp_path / "search.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message) as refused:
        toy(tmp_path)
    assert str(path) in str(refused.value)


def test_a_trial_that_diverged_is_the_worst(tmp_path):
    """The score is NaN, also on disk, and the search continues."""
    rates = {"learning_rate": SPACE["learning_rate"]}
    first = {"learning_rate": 1e-3}
    scores = [math.nan, 20.0, math.inf, 30.0]

    def search(trials):
        return searching(tmp_path, rates, first, trials, lambda n, values: scores[n])

    search(2)
    path = tmp_path / "search.json"
    stored = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert stored["trials"][0].pop("score", 0) is None
    # The score may be absent.
    path.write_text(json.dumps(stored))
    made, done, _ = search(4)
    # Infinity is null, too.
    kept = [math.nan, 20.0, math.nan, 30.0]
    np.testing.assert_array_equal([trial["score"] for trial in done], kept)
    assert made.best(done) == 3


def test_what_the_flag_says():
    own = {"learning_rate": 1e-4, "epochs": 3.0, "dropout": 0.1}
    own |= {"layerwise_decay": 0.5, "weight_decay": 0.2}
    found = space(("learning_rate", "epochs=2:8", "dropout=0/0.2"), own)
    assert found == {
        "learning_rate": FloatDistribution(1e-4 / 5, 1e-4 * 5, log=True),
        "epochs": IntDistribution(2, 8, log=True),
        "dropout": CategoricalDistribution((0.0, 0.2)),
    }
    # The default range contains the value of the run.
    for name, around in space([*own], own).items():
        assert around.low <= own[name] <= around.high
    (half,) = space(("epochs=0.5:1.5",), own).values()
    assert half == FloatDistribution(0.5, 1.5, log=True)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"search": ("learning_rat",)}, "Did you mean learning_rate"),
        ({"search": ("pooling",)}, "cannot be searched"),
        ({"search": ("epochs=3:1",)}, "the smaller end first"),
        ({"search": ("epochs=3",)}, "several values"),
        ({"search": ("epochs=2/2",)}, "several values"),
        ({"search": ("learning_rate=0:1e-3",)}, "--learning_rate must be above 0"),
        ({"search": ("dropout=-inf:0.1",)}, "--dropout must be a finite number"),
        ({"search": ("learning_rate=a:b",)}, "the smaller end first"),
        ({"search": ("epochs", "epochs=1:2")}, "names epochs twice"),
        ({"search": ("dropout=0.5:1.5",)}, "--dropout must be below"),
        ({"search": ("epochs",), "frozen": True}, "--frozen does not"),
        ({"search": ("seed",)}, "seed cannot be searched"),
        ({"search": ("epochs",), "search_trials": 1}, "--search_trials must be"),
    ],
)
def test_flags_that_make_no_search_are_refused(flags, wanted):
    with pytest.raises(ValueError, match=wanted) as error:
        config(**flags)
    assert "\n" not in str(error.value)


def test_without_the_package_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match="pip install optuna"):
        finetuning.run(config(search=("epochs",)), lambda line: None)


# -- Runs ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def values(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("moods")
    recipe = {"epochs": 2.0, "train_batch_size": 16, "learning_rate": 1e-3}
    recipe["search"] = ("learning_rate=1e-3:1e-2", "epochs=2/3")
    sizes = {"max_seq_length": 10, "search_trials": 3}
    return moods(folder, pretrained, train=50, dev=20, **recipe, **sizes)


def run(values, folder, **changes):
    report, said = finetune(folder, **values | changes)
    return report, "\n".join(said)


@pytest.fixture(scope="module")
def searched(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    return folder, *run(values, folder)


def assert_same_models(one, other):
    models = (FinetuningFolder(folder).load() for folder in (one, other))
    common.assert_same_weights(*models)


def trials(folder):
    stored = json.loads((folder / "search.json").read_text())
    return stored["trials"]


@pytest.mark.slow
def test_the_best_trains_on_all_and_evaluation_decides_nothing(
    values, searched, tmp_path
):
    folder, report, said = searched
    stored = json.loads((folder / "search.json").read_text())
    assert "search: chooses on 10 training examples" in said
    assert not (folder / "search").exists()
    assert "`--search`" in (folder / "model_card.md").read_text()
    # The same run, with the best hyperparameters as flags.
    best = stored["best"]
    default = config().search.search_trials
    flags = {"search": (), "search_trials": default, **best}
    other, _ = run(values, tmp_path / "plain", **flags)
    assert report["seeds"] == other["seeds"]
    assert_same_models(folder, tmp_path / "plain")
    # Wrong labels in the evaluation data do not change the trials.
    examples, other = common.sentiment(20, offset=50), {"pos": "neg", "neg": "pos"}
    wrong = [dataclasses.replace(e, label=other[e.label]) for e in examples]
    flags = {**values, "eval": table(tmp_path / "wrong.csv", wrong)}
    flags["output_dir"] = str(tmp_path / "wrong")
    finetuning.searched(config(**flags), lambda line: None)
    assert trials(tmp_path / "wrong") == trials(folder)
    with pytest.raises(ValueError, match="holds a finished run"):
        run(values, folder)


@pytest.mark.slow
def test_a_search_that_is_killed_anywhere_gives_the_same(
    values, searched, tmp_path, monkeypatch
):
    whole, report, _ = searched
    parts = tmp_path / "parts"
    train = Trainer.train
    # Kills in the first trial, in the third, and in the final run.
    for calls_before in (0, 2, 1):
        left = [calls_before]

        def killed(self, *args, left=left, **kwargs):
            if not left[0]:
                self._begin(*args)
                raise Killed
            left[0] -= 1
            return train(self, *args, **kwargs)

        monkeypatch.setattr(Trainer, "train", killed)
        with pytest.raises(Killed):
            run(values, parts)
        monkeypatch.setattr(Trainer, "train", train)
    # Only the last trial's checkpoints are kept.
    assert [path.name for path in (parts / "search").glob("trial-*")] == ["trial-2"]
    with pytest.raises(ValueError, match="search: was"):
        run(values, parts, search=("epochs",))
    again, said = run(values, parts)
    assert "3 of 3 trials are done" in said
    assert trials(parts) == trials(whole)
    assert again["seeds"] == report["seeds"]
    assert_same_models(parts, whole)


def test_a_fifth_of_little_data_is_too_little(values, tmp_path):
    with pytest.raises(ValueError, match="too few for --search"):
        run(values, tmp_path / "few", train_fraction=0.5, search=("epochs",))
