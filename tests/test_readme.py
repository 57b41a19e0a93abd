import pkgutil
import re

import keras
import pytest

from electra_tf.__main__ import COMMANDS
from electra_tf.config import fields
from electra_tf.features import PRETRAINING
from tests import ROOT
from tests.data import common

README = (ROOT / "README.md").read_text()
TREE = (ROOT / "docs" / "architecture.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_ci_runs_the_readme_test_command_literally():
    command = "python -m pytest\n"
    assert f"&& {command}" in README
    script = (ROOT / ".ci" / "run").read_text()
    assert f"\n{command}" in script
    assert "configs/tiny.cfg" in script
    assert "configs/tasks/tiny.cfg" in script


@pytest.mark.slow
def test_pretraining_example_runs(tmp_path, monkeypatch):
    """tests/docs/test_pages.py and tests/test_packaging.py run the other examples."""
    code = re.findall(r"```python\n(.*?)```", PYTHON, re.DOTALL)[-1]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 17
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(common.text(8))
    common.build("text.txt", "runs/tiny/data", max_seq_length=32)
    code = code.replace("steps_per_epoch=100", "steps_per_epoch=2")
    code = code.replace("batch_size=32", "batch_size=4")
    exec(compile(code, "python.md", "exec"), {})
    assert keras.saving.load_model(tmp_path / "encoder.keras").hidden_size == 128


def test_file_tree_names_what_exists():
    tree = re.search(r"```\nrun_pretraining\.py.*?```", TREE, re.DOTALL)[0]
    pattern = r"^ {0,2}((?:[\w*]+(?:\.py|/) ?)+)(?: {2,}|$)"
    names = re.findall(pattern, tree, re.MULTILINE)
    listed = [name for group in names for name in group.split()]
    assert len(listed) > 20
    for name in listed:
        matches = [*ROOT.glob(name), *(ROOT / "electra_tf").glob(name)]
        assert matches, f"the file tree names {name}, which does not exist"
    # The tree contains every module and folder of the package.
    there = {path.name for path in (ROOT / "electra_tf").glob("[!_]*")}
    assert there <= {"py.typed", *(name.strip("/") for name in listed)}


def test_link_targets_exist():
    for doc in DOCS:
        for target in re.findall(r"\]\(([\w./:-]+)(?:#[^)]*)?\)", doc.read_text()):
            if "://" not in target:
                assert (doc.parent / target).exists(), f"{doc.name}: {target}"


# Flags of Apache Beam, Spark, pip, uvicorn and curl, and of examples/serve.
FOREIGN_FLAGS = """
runner direct_num_workers direct_running_mode environment_type flink_master
flink_version flink_job_server_jar job_endpoint project region
spark_master_url spark_job_server_jar conf cores host master memory temp_location
port clients requests no app fail retry show silent
tf_xla_persistent_cache_directory
"""


def test_flags_that_docs_name_exist():
    configs = [pkgutil.resolve_name(command.config) for command in COMMANDS.values()]
    leaves = (leaf for config in configs for _, leaf in fields.fields(config))
    scripts = [
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "examples").glob("*.py"),
        ROOT / "tests" / "fuzz" / "drive.py",
    ]
    code = "".join(path.read_text() for path in scripts)
    known = {*FOREIGN_FLAGS.split(), "flagfile", "help"}
    known |= {fields.flag_name(leaf) for leaf in leaves}
    known |= {*re.findall(r"add_argument\(\s*\"--([\w-]+)\"", code)}
    for doc in DOCS:
        for name in re.findall(r"(?<![\w-])--(\w+)", doc.read_text()):
            assert name in known or name.removeprefix("no") in known, (doc.name, name)


def test_feature_table_in_the_docs():
    text = (ROOT / "docs" / "data.md").read_text()
    for name, spec in PRETRAINING.items():
        axes = "B, P" if name.startswith("masked_lm") else "B, S"
        assert f"| `{name}` | [{axes}] | {spec.dtype.name} | " in text
