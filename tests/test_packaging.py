"""`pip install .` installs all packages, commands and flagfiles."""

import functools
import importlib
import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

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
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FLAGFILES = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").glob("**/*.cfg")
)


def test_every_package_is_listed():
    folders = {path.parent for path in (ROOT / "electra_tf").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(SETUPTOOLS["packages"]) == names | {"electra_tf.configs"}
    assert all((folder / "__init__.py").exists() for folder in folders)
    for name in names:
        importlib.import_module(name)


def test_the_newest_release_of_the_changelog_is_this_version():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    # Only "Unreleased" may precede the releases.
    assert len(found) == len(headings[headings[0] == "Unreleased" :])
    numbers = [tuple(map(int, version.split("."))) for version, _ in found]
    # The version may also be the next, unreleased one.
    is_next = headings[0] == "Unreleased" and electra_tf.__version__ > found[0][0]
    assert electra_tf.__version__ == found[0][0] or is_next
    assert numbers == sorted(numbers, reverse=True)
    dates = [date for _, date in found]
    assert dates == sorted(dates, reverse=True)


def test_commands_start(capsys):
    (target,) = SCRIPTS.values()
    module, _, function = target.partition(":")
    main = getattr(importlib.import_module(module), function)
    for name in ([], *([command] for command in COMMANDS)):
        assert main([*name, "--version"]) == 0
        assert capsys.readouterr().out == f"electra_tf {electra_tf.__version__}\n"


def test_requirements_have_upper_bounds():
    """Except importlib_resources, an undeclared dependency of tensorflow-datasets."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    needed = [line.partition("#")[0].strip() for line in lines]
    open_ended = [line for line in needed if line and "<" not in line]
    assert open_ended == ["importlib_resources>=6"]


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
    data += [*source.rglob("*.j2"), *source.rglob("samples/*.txt")]
    shipped = {path.relative_to(source) for path in (*data, source / "py.typed")}
    assert held == modules | {Path(name) for name in FLAGFILES} | shipped
    (about,) = metadata.distributions(name="electra_tf", path=[str(installed)])
    assert about.version == electra_tf.__version__
    assert {script.name for script in about.entry_points} == set(SCRIPTS)
    assert any(line.startswith("tensorflow<") for line in about.requires)


@pytest.mark.slow
def test_the_code_of_the_readme_in_an_empty_folder(installed, tmp_path):
    """Loss and score improve; the score beats TF-IDF and random weights (73 %)."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code in (ROOT / "docs" / "index.md").read_text()
    assert len([line for line in code.splitlines() if line]) == 5
    code += (
        "import json\nprint(json.dumps([model.history.history, texts, labels, dev]))"
    )
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
    run = functools.partial(python, command, folder=tmp_path, library=installed)
    done = run("pretrain", "--flagfile=configs/tiny.cfg", "--hidden_size=100")
    assert done.returncode == 1
    # The number of heads is from the flagfile.
    assert "--hidden_size=100 is not divisible by --num_heads=8" in done.stderr
    # Flagfiles nested in flagfiles and in the systems of a comparison.
    for name, wrong in (
        ("pretrain", "configs/objectives/reinforce.cfg"),
        ("compare", "configs/compare/table5.cfg"),
    ):
        done = run(name, f"--flagfile={wrong}", "--seed=-1")
        assert done.returncode == 1
        assert done.stderr == "error: --seed must be in [0, 2147483647], got -1.\n"
    assert not list(tmp_path.iterdir())
