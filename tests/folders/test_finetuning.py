import json
import math
import shutil

import pytest

from electra_tf import files
from electra_tf.folders.cards import task_card
from electra_tf.folders.finetuning import FinetuningFolder
from electra_tf.tasks import Classification, Tagging
from tests.interop.test_task_heads import TASKS, saved
from tests.tasks import common


@pytest.fixture(scope="module")
def mood(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mood") / "run"
    saved(folder, TASKS["classification"])
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": ["a", "b"]}, "needs a ClassificationHead with 2 outputs, and the"),
        ({"labels": ["a", "b", 3]}, "expected .*str"),
        ({"kind": "tagging"}, "needs a TaggingHead with 3 outputs, and the"),
        ({"kind": "question_answering"}, "needs a SpanHead, and the model has a"),
        ({"kind": "regression"}, "main_metric is 'accuracy'; allowed are"),
    ],
)
def test_a_task_that_is_not_the_models(mood, tmp_path, change, said):
    copy = shutil.copytree(mood, tmp_path / "copy")
    path = copy / "task.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=said) as refused:
        FinetuningFolder(copy).load()
    assert str(refused.value).startswith(f"{path} is damaged: ")


def test_the_card_of_hostile_labels(mood, tmp_path):
    home = FinetuningFolder(shutil.copytree(mood, tmp_path / "copy"))
    task = home.path / "task.json"
    hostile = {"labels": ["<b>x</b>|\x1b[31m`", "b", "c"]}
    task.write_text(json.dumps(json.loads(task.read_text()) | hostile))
    over = {"median": 90.0, "mean": 90.0, "std": 0.0, "baseline": 50.0}
    seed = {"seed": 0, "scores": {"eval": {"accuracy": 90.0}}, "failure": ""}
    report = {"main_split": "eval", "main_metric": "accuracy", "exported_seed": 0}
    report |= {"summary": {"eval": {"accuracy": over}}, "seeds": [seed]}
    card = task_card(home, report)
    assert "| accuracy | 90.00 |" in card
    assert "* 3 labels: `<b>x</b>\\|\\u001b[31m'`, `b`" in card


def test_a_kill_while_the_final_run_begins_costs_no_search(tmp_path, monkeypatch):
    """SIGKILL at each step of ``begin``; the same command resumes with the trials."""
    task = Classification(name="mood", source=None, labels=("a", "b"))
    arguments = task, common.tokenizer(), 16, {"config": {}}
    for deadly in ("remove", "write_json", "write_text"):
        home = FinetuningFolder(tmp_path / deadly)
        home.begin(*arguments)
        (home.path / "search").mkdir()
        files.write_json(home.path / "search.json", {})
        calls = getattr(files, deadly)

        def killed(path, *values, calls=calls, deadly=deadly, **options):
            if deadly != "remove" or path.name == "config.json":
                raise KeyboardInterrupt
            calls(path, *values, **options)

        with monkeypatch.context() as patched:
            patched.setattr(files, deadly, killed)
            with pytest.raises(KeyboardInterrupt):
                home.begin(*arguments, keep=("search", "search.json"))
        home.check("mood", overwrite=False, searches=True)
        assert (home.path / "search").is_dir()
        assert (home.path / "search.json").exists()


def test_results_of_finished_seeds_are_read_again(tmp_path):
    home = FinetuningFolder(tmp_path)
    for seed, score in ((1, math.nan), (0, 90.0)):
        scores = {"eval": {"pearson": score}}
        home.finish_seed({"seed": seed, "scores": scores, "failure": "x"}, best=0)
    first, second = home.done()
    assert first == {"seed": 0, "scores": {"eval": {"pearson": 90.0}}, "failure": "x"}
    assert math.isnan(second["scores"]["eval"]["pearson"])


def test_a_label_is_one_line(tmp_path):
    task = Classification(name="mood", source=None, labels=("a\nb", "c"))
    FinetuningFolder(tmp_path).begin(task, common.tokenizer(), 16, {})
    assert (tmp_path / "labels.txt").read_text() == "a b\nc\n"


def test_a_tuned_task_keeps_the_length_of_the_run(tmp_path):
    path = tmp_path / "task.json"
    path.write_text(json.dumps({"max_seq_length": 64}))
    FinetuningFolder(tmp_path).describe_tuned(Tagging(name="ner", source=None))
    assert json.loads(path.read_text())["max_seq_length"] == 64


def test_metrics_that_are_no_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = ['{"seed": 0, "step": "x"}', '{"seed": 0, "step": 3, "epoch": null}', "{"]
    path.write_text("\n".join([*lines, '{"seed": 1, "step": 9}']) + "\n")
    FinetuningFolder(tmp_path).forget(0, step=4)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in kept] == [3, 9]


@pytest.mark.parametrize(
    "name", ["encoder.keras", "generator.safetensors", "checkpoints/ckpt-3.index"]
)
def test_a_pretraining_run_is_never_replaced(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(ValueError, match="holds a pretraining run"):
        FinetuningFolder(tmp_path).check("mood", overwrite=True)
