import importlib
import json
import pkgutil
import re
import tomllib
from importlib import metadata

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import electra_tf
from electra_tf.__main__ import COMMANDS
from tests import ROOT
from tests.golden.commands import python

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SCRIPTS = PROJECT["project"]["scripts"]


def test_every_package_is_listed():
    folders = {path.parent for path in (ROOT / "electra_tf").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert {*listed} == names | {"electra_tf.configs"}
    assert all((folder / "__init__.py").exists() for folder in folders)
    for name in names:
        importlib.import_module(name)


def test_commands_start(capsys):
    (target,) = SCRIPTS.values()
    main = pkgutil.resolve_name(target)
    for name in ([], *([command] for command in COMMANDS)):
        assert main([*name, "--version"]) == 0
        assert capsys.readouterr().out == f"electra_tf {electra_tf.__version__}\n"


@pytest.mark.slow
def test_the_wheel_holds_all_files(installed):
    package = installed / "electra_tf"
    paths = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    # Other tests have imported it.
    held = {path for path in paths if path.suffix != ".pyc"}
    source = ROOT / "electra_tf"
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    folders = (source / "pretrained", source / "samples")
    data = [path for each in folders for path in each.rglob("*") if path.is_file()]
    data += [*source.rglob("*.j2"), *source.glob("analysis/samples/*")]
    shipped = {path.relative_to(source) for path in (*data, source / "py.typed")}
    flagfiles = {path.relative_to(ROOT) for path in ROOT.glob("configs/**/*.cfg")}
    assert held == modules | flagfiles | shipped
    (about,) = metadata.distributions(name="electra_tf", path=[str(installed)])
    assert about.version == electra_tf.__version__
    assert {script.name for script in about.entry_points} == set(SCRIPTS)
    assert any(line.startswith("tensorflow<") for line in about.requires)


@pytest.mark.slow
def test_the_code_of_the_readme_in_an_empty_folder(installed, tmp_path, monkeypatch):
    """Loss and score improve; the score beats TF-IDF and random weights (73 %)."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code in (ROOT / "docs" / "index.md").read_text()
    assert len([line for line in code.splitlines() if line]) == 5
    code += (
        "import json; print(json.dumps([model.history.history, texts, labels, dev]))"
    )
    # The flags of tests save time of compiling, but here training takes longer.
    for name in ("XLA_FLAGS", "TF_XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    done = python("-c", code, folder=tmp_path, library=installed)
    assert done.returncode == 0, done.stderr[-2000:]
    *_, answer, last = done.stdout.splitlines()
    assert "'label': 'passive'" in answer
    history, texts, labels, dev = json.loads(last)
    assert history["loss"] == sorted(history["loss"], reverse=True)
    assert len(history["val_accuracy"]) == 3
    baseline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    score = 100 * baseline.fit(texts, labels).score(*dev)
    assert 73 < score < 80
    assert history["val_accuracy"][-1] > score + 8


@pytest.mark.slow
def test_installed_commands_find_flagfiles(installed, tmp_path):
    command = installed / "bin" / "electra-tf"
    # Flagfiles nested in flagfiles, here with the number of heads, and in the systems
    # of a comparison.
    for name, flagfile, wrong, message in (
        ("pretrain", "objectives/reinforce", "--hidden_size=100", "--num_heads=8"),
        ("compare", "compare/table5", "--seed=-1", "error: --seed must be at least 0"),
    ):
        flags = (f"--flagfile=configs/{flagfile}.cfg", wrong)
        done = python(command, name, *flags, folder=tmp_path, library=installed)
        assert done.returncode == 1
        assert message in done.stderr
    assert not list(tmp_path.iterdir())
