"""Who may import whom: seven steps, arrows down, no exemption and no cycle."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "electra_tf"

# A package imports those of lower steps and itself; never its neighbors.
STEPS = (
    ("errors", "features", "files", "config", "cli"),
    ("layers",),
    ("data", "training"),
    ("pretraining", "tasks"),
    ("systems", "folders", "serving"),
    ("runs", "interop"),
    ("comparison", "analysis", "doctor", "api"),
)
# The lowest step is what everybody stands on: of it only the commands' part knows
# another, since flags are made of the dataclasses of config.
GROUND = {
    "errors": set(),
    "features": {"errors"},
    "files": {"errors"},
    "config": {"errors"},
    "cli": {"config", "errors"},
}
# The table of commands names configs and functions as strings. Nobody imports it.
TOP = {"__main__": {"cli"}}
# Names of the package itself that every module may import.
ROOT_NAMES = {"electra_tf.lazily", "electra_tf.__version__"}
NOT_TENSORFLOW = {"files", "cli"}
TENSORFLOW = {"tensorflow", "tensorflow_text", "keras", "keras_hub", "keras_nlp"}


def allowed(unit):
    """The packages that a package, or module at the top, may import."""
    if unit in TOP:
        return TOP[unit]
    if unit in GROUND:
        return GROUND[unit] | {unit}
    (step,) = [number for number, names in enumerate(STEPS) if unit in names]
    return {unit}.union(*STEPS[:step])


def imported(source):
    """Names that a source imports, at the top or in a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or "electra_tf"
            if node.level:
                yield "a relative import"
            elif base.split(".")[0] == "electra_tf":
                yield from (f"{base}.{alias.name}" for alias in node.names)
            else:
                yield base


def forbidden(unit, source):
    """The imports that a module of a unit must not have."""
    for name in imported(source):
        root, *rest = name.split(".")
        if name == "a relative import":
            yield name
        elif root == "electra_tf":
            if name not in ROOT_NAMES and (not rest or rest[0] not in allowed(unit)):
                yield name
        elif unit == "config":
            if root not in sys.stdlib_module_names:
                yield name
        elif unit in NOT_TENSORFLOW and root in TENSORFLOW:
            yield name


def module_name(path):
    """electra_tf/data/__init__.py -> electra_tf.data."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


PATHS = sorted(PACKAGE.rglob("*.py"))
SOURCES = {path: path.read_text("utf-8") for path in PATHS}


def test_every_package_has_its_step():
    known = {unit_of(path) for path in PATHS} - {"__init__"}
    placed = [unit for step in STEPS for unit in step]
    assert len(STEPS) <= 7
    assert len(set(placed)) == len(placed)
    assert set(STEPS[0]) == GROUND.keys()
    assert known == {*placed, *TOP}


def test_no_forbidden_arrow():
    wrong = {
        str(path.relative_to(PACKAGE)): names
        for path, source in SOURCES.items()
        if path.parent != PACKAGE or path.name != "__init__.py"
        if (names := sorted(forbidden(unit_of(path), source)))
    }
    assert not wrong


def test_the_top_of_the_package_is_nearly_empty():
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert loose == {"__init__", "errors", "features", "files", "cli", *TOP}
    # The names of the root are strings, so importing it imports nothing.
    root = set(imported(SOURCES[PACKAGE / "__init__.py"]))
    assert not {x for x in root if x.split(".")[0] not in sys.stdlib_module_names}


def arrows(sources):
    """Module -> modules it imports, also in functions.

    Args:
        sources: module name -> (source, lazy names -> the modules that have them).
    """
    lazy = {name: homes for name, (_, homes) in sources.items()}
    return {
        name: {
            target
            for imported_name in imported(source)
            if (target := _module_of(imported_name, lazy)) not in (None, name)
        }
        for name, (source, _) in sources.items()
    }


def _module_of(name, lazy):
    """The module that an import of `name` needs; None if it is not ours."""
    if name in lazy:
        return name
    package, _, attribute = name.rpartition(".")
    if package not in lazy:
        return None
    # A lazy name needs the module behind it and nothing else of its package.
    home = lazy[package].get(attribute)
    return package if home is None else _module_of(home, lazy) or package


def homes(source):
    """The dict of lazy names of a package's __init__, if it has one."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return ast.literal_eval(node.value)
    return {}


def cycle(graph):
    """A cycle of the graph, or None."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


GRAPH = arrows(
    {module_name(path): (text, homes(text)) for path, text in SOURCES.items()}
)


def test_no_cycle_between_modules():
    assert len(GRAPH) == len(PATHS)
    assert sum(map(len, GRAPH.values())) > 300
    assert cycle(GRAPH) is None


def reachable(graph, start):
    """Modules that are loaded with `start`, or by a function of any of them."""
    seen, waiting = set(), {start}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        # With a module, Python loads the packages that it is in.
        waiting |= ({*graph[name], name.rpartition(".")[0]} & graph.keys()) - seen
    return seen


def test_fine_tuning_knows_nothing_of_pretraining():
    """It takes any encoder, and starts without the models of the paper."""
    names = reachable(GRAPH, "electra_tf.runs.finetuning")
    assert "electra_tf.tasks" in names
    assert not {name for name in names if unit_name(name) == "pretraining"}
    assert "electra_tf.pretraining" in reachable(GRAPH, "electra_tf.runs.pretraining")


def unit_name(module):
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize(
    ("unit", "source", "wrong"),
    [
        ("config", "import dataclasses, tensorflow as tf", ["tensorflow"]),
        ("config", "from absl import flags", ["absl"]),
        ("config", "from electra_tf import cli", ["electra_tf.cli"]),
        ("cli", "from absl import flags\nfrom electra_tf.config import fields", []),
        ("cli", "def f():\n  import tensorflow as tf", ["tensorflow"]),
        ("files", "from keras import ops", ["keras"]),
        ("files", "from electra_tf import cli", ["electra_tf.cli"]),
        ("features", "import tensorflow as tf", []),
        ("layers", "from electra_tf import cli", []),
        ("layers", "from electra_tf import cli, data", ["electra_tf.data"]),
        (
            "data",
            "from electra_tf.training import AdamW",
            ["electra_tf.training.AdamW"],
        ),
        ("data", "from electra_tf.layers import Dropout", []),
        (
            "pretraining",
            "from electra_tf.tasks import RECIPES",
            ["electra_tf.tasks.RECIPES"],
        ),
        ("tasks", "def f():\n  import electra_tf.runs", ["electra_tf.runs"]),
        ("interop", "import electra_tf.runs.results", ["electra_tf.runs.results"]),
        ("doctor", "from electra_tf.runs import results", []),
        (
            "runs",
            "from electra_tf.comparison import plan",
            ["electra_tf.comparison.plan"],
        ),
        (
            "__main__",
            "from electra_tf.runs import results",
            ["electra_tf.runs.results"],
        ),
        ("layers", "import electra_tf", ["electra_tf"]),
        ("layers", "from electra_tf import TextEncoder", ["electra_tf.TextEncoder"]),
        ("layers", "from electra_tf import __version__, lazily", []),
        ("layers", "from . import fused", ["a relative import"]),
        ("layers", "from electra_tf.layers import fused\nimport keras", []),
    ],
)
def test_the_test_can_fail(unit, source, wrong):
    assert list(forbidden(unit, source)) == wrong


def graph_of(**sources):
    modules = {"electra_tf": "", "electra_tf.a": ""}
    modules |= {f"electra_tf.a.{name}": text for name, text in sources.items()}
    if "__init__" in sources:
        modules["electra_tf.a"] = modules.pop("electra_tf.a.__init__")
    return arrows({name: (text, homes(text)) for name, text in modules.items()})


def test_cycles_are_found():
    forth = "from electra_tf.a import y"
    assert cycle(graph_of(x=forth, y="import os")) is None
    found = cycle(graph_of(x=forth, y="def f():\n  from electra_tf.a.x import b"))
    assert set(found) == {"electra_tf.a.x", "electra_tf.a.y"}


def test_cycles_through_lazy_names_are_found():
    lazily = "_HOMES = {'B': 'electra_tf.a.x', 'C': 'electra_tf.a.z'}"
    backward = {"x": "from electra_tf.a.y import D", "z": ""}
    graph = graph_of(__init__=lazily, y="from electra_tf.a import C", **backward)
    assert cycle(graph) is None
    graph = graph_of(__init__=lazily, y="from electra_tf.a import B", **backward)
    assert set(cycle(graph)) == {"electra_tf.a.x", "electra_tf.a.y"}
    # A package that imports its modules at once, and one of them a name of the package.
    eager = "from electra_tf.a.x import B"
    graph = graph_of(__init__=eager, x="from electra_tf.a import B")
    assert set(cycle(graph)) == {"electra_tf.a", "electra_tf.a.x"}
