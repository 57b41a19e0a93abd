import json
import math
import re

import numpy as np
import pytest

from electra_tf.comparison.report import Scores, markdown
from electra_tf.comparison.store import Store
from electra_tf.systems import costs
from tests.comparison.helpers import VOCAB, plan_of

# Scores in the two probes, by seed; the average decides.
SCORES = {
    "electra": [(80.0, 60.0), (82.0, 61.0), (81.0, 65.0)],
    "mlm": [(78.0, 60.0), (80.0, 60.0), (80.0, 61.0)],
    "small": [(70.0, 40.0), (71.0, 41.0), (72.0, 42.0)],
    # Of an earlier version, or not among the systems any more.
    "untrained": [(1.0, 2.0)],
}


def plan(**values):
    sizes = ("--num_train_steps=9 --num_layers=1 --hidden_size=64",)
    systems = ("electra:", "mlm: --objective=mlm", "small: --generator_layers=0.5")
    return plan_of(**{"pretrain": sizes, "seeds": 3, "system": systems} | values)


def fill(store, scores=SCORES, **values):
    runs = ((name, *run) for name in scores for run in enumerate(scores[name]))
    for system, seed, both in runs:
        if both is None:
            continue
        about = {"system": system, "seed": seed}
        held_out = {"loss": 9.0, f"{system}_loss": 2.0 + seed}
        run = {"steps": 5, "train_seconds": 60.0 + seed, "held_out": held_out}
        store.add({"kind": "pretrain", **about, **run})
        for name, score in zip(("cola", "sst"), both, strict=True):
            row = {"kind": "probe", **about, "point": 1.0, "probe": name}
            row |= {"score": score, "scores": [score], "metric": "dev accuracy"}
            store.add({**row, "baseline": 50.0, "failed_seeds": [], **values})


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path)
    fill(found)
    return found


def rows_of(text, heading):
    """Returns the cells of the first table below a heading."""
    found = re.search(re.escape(heading) + r".*?\n(\|.*?)(\n\n|\Z)", text, re.DOTALL)
    lines = found[1].strip().splitlines()
    return [[cell.strip() for cell in x.strip("|").split("|")] for x in lines]


def test_scores_and_their_average(store):
    head, _, *rows = rows_of(markdown(plan(), store), "## Scores")
    assert head == ["system", "cola", "sst", "average", "seeds"]
    # Averages 70, 71.5, 73; 69, 70, 70.5; 55, 56, 57.
    assert rows == [
        ["electra", "81.00 ± 1.00", "62.00 ± 2.65", "71.50 ± 1.50", "3"],
        ["mlm", "79.33 ± 1.15", "60.33 ± 0.58", "69.83 ± 0.76", "3"],
        ["small", "71.00 ± 1.00", "41.00 ± 1.00", "56.00 ± 1.00", "3"],
        ["majority baseline", "50.00", "50.00", "50.00", ""],
    ]
    fill(store, scores={"mlm": [(78.0, 60.0)]}, metric="accuracy of masked_lm")
    metrics = "cola: dev accuracy or accuracy of masked_lm; sst: dev accuracy or"
    assert metrics in markdown(plan(), store)
    only = markdown(plan(probe=("sst: --task=sst",)), store)
    assert "\n\nsst: dev accuracy or accuracy of masked_lm.\n\n" in only
    assert "## Scores" not in markdown(plan(probe=()), store)


def test_differences_are_paired_by_seed(store):
    found = Scores(plan(), store).differences("average")
    assert found["mlm"].mean == pytest.approx(np.mean([-1, -1.5, -2.5]))
    assert found["mlm"].p_permutation == pytest.approx(0.25)
    assert found.keys() == {"mlm", "small"}
    other = Scores(plan(reference="mlm"), store).differences("cola")
    assert other["electra"].mean == pytest.approx(5 / 3)
    text = markdown(plan(), store)
    head, _, *rows = rows_of(text, "**average**")
    assert rows[0][:2] == ["mlm", "-1.67"]
    # Holm over two systems doubles the smaller of the two p-values.
    assert rows[0][head.index("p (permutation)") + 1] == "0.5"
    assert text.index("**average**") < text.index("**cola**")


def test_a_missing_score_takes_its_pair_along(tmp_path):
    store = Store(tmp_path)
    first, _, last = SCORES["mlm"]
    fill(store, scores={**SCORES, "mlm": [first, None, last]})
    found = Scores(plan(), store)
    assert found.differences("average")["mlm"].pairs == 2
    assert found.differences("average")["small"].pairs == 3
    assert np.isnan(found.by_seed("mlm", "average")[1])


def test_a_probe_that_diverged_counts_as_the_baseline(store):
    about = {"kind": "probe", "system": "electra", "seed": 0, "point": 1.0}
    row = {**about, "metric": "dev pearson", "baseline": 50.0, "failed_seeds": [1]}
    store.add({**row, "probe": "cola", "score": math.nan, "scores": [80.0, math.nan]})
    assert Scores(plan(), store).by_seed("electra", "cola")[0] == 65.0
    assert len(Scores(plan(), store).all("electra", "cola")) == 3


def test_the_baseline_is_the_mean_of_all_seeds(store):
    """With --train_fraction, it depends on the seed."""
    row = {"kind": "probe", "system": "mlm", "probe": "cola", "point": 1.0}
    row |= {"score": 60.0, "scores": [60.0], "metric": "dev accuracy"}
    for seed in range(3):
        store.add({**row, "seed": seed, "baseline": 56.0, "failed_seeds": []})
    store.add({**row, "seed": 9, "baseline": 0.0, "failed_seeds": []})
    scores = Scores(plan(), store)
    # Three systems; the untrained one is not in the plan, but of the same tasks.
    assert 50 < scores.baseline("cola") < 56
    assert scores.baseline("sst") == 50
    assert scores.baseline("average") == (scores.baseline("cola") + 50) / 2


def test_a_probe_without_a_baseline(tmp_path):
    fill(Store(tmp_path), baseline=math.nan)
    text = markdown(plan(), Store(tmp_path))
    assert rows_of(text, "## Scores")[-1] == ["majority baseline", "", "", "", ""]


def test_costs(store):
    head, _, *rows = rows_of(markdown(plan(), store), "## Cost")
    column = dict(zip(head, zip(*rows, strict=True), strict=True))
    for index, run in enumerate(plan().systems.values()):
        flops = costs.run_flops(run, VOCAB)
        assert column["FLOPs (matmul)"][index] == f"{flops:.3g}"
        assert column["steps"][index] == f"{run.run.num_train_steps:,}"
    assert column["training time"][0] == "01:01"


def test_held_out_losses_stand_in_columns_of_their_own(store):
    head, _, *rows = rows_of(markdown(plan(), store), "## Held-out text")
    assert head == ["system", "electra loss", "mlm loss", "small loss"]
    loss = "3.000 ± 1.000"
    lines = [["electra", loss, "", ""], ["mlm", "", loss, ""], ["small", "", "", loss]]
    assert rows == lines


def test_failures_are_told(store):
    assert "## Failures" not in markdown(plan(), store)
    run = {"kind": "pretrain", "system": "mlm", "seed": 1}
    store.add(run | {"seed": 3, "failure": "beyond --seeds"})
    assert "## Failures" not in markdown(plan(), store)
    store.add(run | {"failure": "OSError: disk"})
    fill(store, scores={"electra": [(1.0, 2.0)]}, failed_seeds=[0])
    text = markdown(plan(), store)
    assert "- mlm seed 1: pretraining FAILED: OSError: disk" in text
    assert "- electra seed 0: 1 of 1 fine-tuning runs of cola diverged" in text


def fill_learned(store, electra=0.7, loss=5.2):
    trivial = {"masked_lm_loss": 6.5, "masked_lm_loss_copying": 5.6}
    for system, held_out, beside in (
        ("electra", {"replaceable_auc": electra}, {"replaceable_auc": 0.58}),
        ("mlm", {"masked_lm_loss": loss}, trivial),
    ):
        for seed in range(3):
            about = {"kind": "pretrain", "system": system, "seed": seed, "steps": 5}
            held = {"train_seconds": 1.0, "held_out": held_out, "trivial": beside}
            store.add({**about, **held})


def test_a_masked_lm_at_its_trivial_predictor_is_not_ranked(store):
    """A loss of 5.5 is 0.1 nats below the copying baseline."""
    fill_learned(store)
    assert "Below threshold" not in markdown(plan(), store)
    assert Scores(plan(), store).differences("cola").keys() == {"mlm", "small"}
    fill_learned(store, loss=5.5)
    text = markdown(plan(), store)
    assert "**Below threshold: mlm (0.10 nats).**" in text
    _, _, *rows = rows_of(text, "**average**")
    assert [row[0] for row in rows] == ["small"]
    # The scores stay in the table.
    assert {row[0] for row in rows_of(text, "## Scores")[2:]} > {"electra", "mlm"}
    assert "Below threshold" not in markdown(plan(threshold_nats=0.05), store)
    fill_learned(store, loss=7.0)
    assert "mlm (-1.40 nats)" in markdown(plan(threshold_nats=0.05), store)
    assert "Below threshold" not in markdown(plan(threshold_nats=0), store)


def test_a_reference_on_its_plateau_ranks_nobody(store):
    fill_learned(store, electra=0.538)
    text = markdown(plan(), store)
    assert "**Below threshold: electra (AUC 0.538).**" in text
    assert "## Against" not in text
    assert Scores(plan(), store).differences("cola") == {}
    # Even the best energies do not separate noise that is as likely as text.
    electric = plan(system=("electra: --objective=electric", "mlm: --objective=mlm"))
    text = markdown(electric, store)
    assert "Below threshold" not in text
    assert "## Against electra" in text
    # Non-finite scores are null in the file; the threshold ignores them.
    fill_learned(store, electra=math.nan, loss=math.nan)
    assert "Below threshold" not in markdown(plan(), Store(store.folder))


def test_damaged_stores_are_refused(tmp_path):
    (tmp_path / "ladder.json").write_text('{"systems": {"a": 1}}')
    with pytest.raises(ValueError, match=r"ladder\.json is damaged: systems"):
        Store(tmp_path).check({"systems": {}, "probes": {}})
    run = {"kind": "pretrain", "system": "a", "seed": 0}
    for row, message in (
        ({}, "kind is missing"),
        (run | {"held_out": 3}, "held_out is 3"),
        (run | {"seed": "0"}, "seed is "),
    ):
        (tmp_path / "results.jsonl").write_text(f"{json.dumps(row)}\n")
        with pytest.raises(ValueError, match=rf"results\.jsonl: result 1: .*{message}"):
            Store(tmp_path)
