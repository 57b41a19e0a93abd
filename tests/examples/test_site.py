import json
import sys

import matplotlib
import pytest

from tests.examples.common import ROOT, output_of

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs")
    flags = ["build", "--strict", "--site-dir", tmp_path]
    output_of([sys.executable, "-m", "mkdocs", *flags], ROOT)
    page = (tmp_path / "reference" / "index.html").read_text("utf-8")
    assert "Loads a model of any kind" in page


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in text, page.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_can_be_read_without_running(path):
    """Stored outputs are in order, contain a picture and no error."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output["output_type"] != "error" for output in outputs)


def test_ci_runs_all_tests():
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert {"python -m pytest", "python -m pytest -m slow"} <= {*lines}


# Text of a notebook -> a replacement that makes it run faster.
SMALLER = {
    "compare_objectives": {
        "steps=100 --warmup_steps=20": "steps=6 --warmup_steps=2",
    },
    "finetune_and_serve": {
        "    train_texts, train_labels,": "    train_texts[:96], train_labels[:96],",
        "data=(texts, gold)": "data=(texts[:48], gold[:48])",
        "epochs=3": "epochs=1",
    },
    "pretrain_your_domain": {
        "steps=20 --warmup_steps=5": "steps=2 --warmup_steps=1",
        "topics.values()": "list(topics.values())[:20]",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, monkeypatch):
    pytest.importorskip("IPython")
    matplotlib.use("agg")
    monkeypatch.chdir(ROOT)
    text = path.read_text("utf-8")
    for large, small in SMALLER[path.stem].items():
        assert large in text
        text = text.replace(large, small)
    names = {}
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
