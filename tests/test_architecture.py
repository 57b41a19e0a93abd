"""Who may import whom: the arrows of docs/architecture.md as a table."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "electra_tf"

# Modules and packages of electra_tf to those they may import.
ALLOWED = {
    "config": {"config_checks", "config_fields", "config_run", "config_system"},
    "config_checks": set(),
    "config_fields": set(),
    "config_run": {"config_fields"},
    "config_system": {"config_fields"},
    "finetune_config": set(),
    "features": set(),
    "losses": {"replicas"},
    "replicas": {"losses"},
    "flops": set(),
    "footprint": {"flops"},
    "costs": {"config", "flops", "footprint"},
    "layers": {"losses", "features", "replicas"},
    "encoder": {"layers", "replicas"},
    "data": {"features"},
    "pretraining": {"encoder", "layers", "losses", "features", "replicas"},
    "training": {"encoder", "features", "replicas"},
    "tasks": {"encoder", "layers", "losses", "features", "replicas", "data"},
    "interop": {"encoder", "layers", "pretraining", "data", "features"},
}
# These choose and report: they sit above all others and may import anything.
TOP = {
    "__init__",
    "build",
    "build_data",
    "build_models",
    "build_training",
    "compare",
    "comparison",
    "convert",
    "flags",
    "networks",
    "samples",
    "overwrite",
    "pretrain",
    "results",
    "serving",
    "predict",
    "model_folder",
    "inspect",
    "doctor",
    "warm_start",
    "finetune",
    "finetune_build",
    "finetune_checks",
    "finetune_data",
    "finetune_folder",
    "finetune_report",
    "finetune_tasks",
    "finetune_trainer",
}
STANDARD_LIBRARY_ONLY = {
    "config",
    "config_checks",
    "config_fields",
    "config_run",
    "config_system",
    "costs",
    "finetune_config",
    "flops",
    "footprint",
}


def imported(source):
    """Absolute names of everything a source imports, at the top or in a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "a relative import"
            elif node.module == "electra_tf":
                yield from (f"electra_tf.{alias.name}" for alias in node.names)
            else:
                yield node.module


def forbidden(unit, source):
    """The imports that a module of `unit` must not have."""
    for name in imported(source):
        root, *rest = name.split(".")
        if root != "electra_tf":
            standard = root in sys.stdlib_module_names
            if root.startswith("a ") or (
                unit in STANDARD_LIBRARY_ONLY and not standard
            ):
                yield name
        elif not rest or rest[0] not in ALLOWED[unit] | {unit}:
            yield name


def units():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def test_no_forbidden_arrow():
    found = {
        str(path.relative_to(PACKAGE)): wrong
        for unit, path in units()
        if unit not in TOP and (wrong := sorted(forbidden(unit, path.read_text())))
    }
    assert not found


def test_every_module_has_its_place():
    known = {unit for unit, _ in units()}
    assert known <= ALLOWED.keys() | TOP, "add new modules to one of the two tables"
    assert ALLOWED.keys() <= known
    assert not ALLOWED.keys() & TOP


@pytest.mark.parametrize(
    ("unit", "source", "wrong"),
    [
        ("config", "import dataclasses, tensorflow as tf", ["tensorflow"]),
        ("data", "from electra_tf.layers import Dropout", ["electra_tf.layers"]),
        ("data", "from electra_tf import features, losses", ["electra_tf.losses"]),
        ("tasks", "def f():\n  import electra_tf.build", ["electra_tf.build"]),
        ("training", "from electra_tf.build import model", ["electra_tf.build"]),
        ("layers", "from electra_tf.config import RunConfig", ["electra_tf.config"]),
        ("encoder", "import electra_tf", ["electra_tf"]),
        ("layers", "from . import fused", ["a relative import"]),
        ("layers", "from electra_tf.layers import fused\nimport keras", []),
    ],
)
def test_the_test_can_fail(unit, source, wrong):
    assert list(forbidden(unit, source)) == wrong
