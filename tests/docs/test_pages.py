import csv
import importlib.util
import re

import numpy as np
import pytest

from electra_tf.__main__ import main as command
from electra_tf.serving import Predictor
from tests.examples.common import ROOT

TEXTS = ["The book was written by John.", "a", "Books were sent to each other by us."]
# Tests that run the Python of other pages.
ELSEWHERE = {
    "extending.md": "tests/systems/test_outside_objective.py",
    "index.md": "tests/test_packaging.py",
}
HERE = {"finetuning.md", "python.md", "serving.md"}
# tests/test_readme.py runs this block of python.md, which needs records.
PRETRAINING = "et.Electra("


def blocks(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(page, **names):
    for code in blocks(page):
        if PRETRAINING in code:
            continue
        exec(compile(code, page, "exec"), names)
    return names


def test_every_page_with_python_is_run():
    pages = (path.name for path in (ROOT / "docs").glob("*.md"))
    assert {page for page in pages if blocks(page)} == HERE | ELSEWHERE.keys()
    for test in ELSEWHERE.values():
        assert (ROOT / test).exists()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the inputs of the pages: dev.csv and runs/cola."""
    place = tmp_path_factory.mktemp("pages")
    table = place / "dev.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "acceptable"])
        for number in range(32):
            word = ("good", "bad")[number % 2]
            rows.writerow([f"{TEXTS[number % 3]} It was {word}.", number % 2])
    flags = {
        **{"task": "classification", "text": "sentence", "label": "acceptable"},
        **{"train": table, "eval": table, "encoder": "mini", "epochs": 1, "seeds": 1},
        **{"output_dir": place / "runs" / "cola", "max_seq_length": 32},
    }
    # The exit code is 1, since this little data does not beat the baseline.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        command(["finetune", *arguments, "--export_litert", "--export_onnx"])
    return place


@pytest.mark.slow
def test_python(place, monkeypatch):
    monkeypatch.chdir(place)
    assert run("python.md")["vectors"].shape == (2, 256)
    assert (place / "served" / "saved_model.pb").is_file()


@pytest.mark.slow
def test_serving(place, monkeypatch):
    """LiteRT and ONNX Runtime, with an external tokenizer, match the SavedModel."""
    monkeypatch.chdir(place)
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("onnxruntime")
    names = run("serving.md")
    expected = Predictor("runs/cola")([{"text": text} for text in TEXTS])
    labels, inputs = names["labels"], names["ids_of"](TEXTS)
    probabilities = [[row["probabilities"][x] for x in labels] for row in expected]
    onnx = dict(zip(names["outputs"], names["session"].run(None, inputs), strict=True))
    for answer in (names["litert"](**inputs), onnx):
        np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-5)


def test_names_in_the_table_of_features_exist():
    """Covers our column; test_readme.py checks flags, test_promises.py the tests."""
    import electra_tf as et

    lines = (ROOT / "docs" / "ecosystem.md").read_text("utf-8").splitlines()
    table = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert len({len(cells) for cells in table}) == 1
    looked_up = 0
    for _, ours, *_ in table[1:]:
        for name in re.findall(r"`([^`]*)`", ours):
            if match := re.match(r"python -m ([\w.]+)", name):
                assert importlib.util.find_spec(match[1]), name
            elif match := re.match(r"et\.(\w+)(?:\.(\w+))?", name):
                value = getattr(et, match[1])
                assert not match[2] or hasattr(value, match[2]), name
            elif name.startswith("examples/"):
                assert (ROOT / name).is_file(), name
            else:
                continue
            looked_up += 1
    assert looked_up > 10
