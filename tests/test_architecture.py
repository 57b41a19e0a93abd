import ast
import graphlib
import sys

import grimp
import pytest

from tests import ROOT

# A package imports packages of lower steps and itself, not its neighbors.
STEPS = (
    ("errors", "features", "files", "config", "cli"),
    ("layers",),
    ("data", "training"),
    ("pretraining", "tasks"),
    ("systems", "folders", "serving"),
    ("runs", "interop"),
    ("comparison", "analysis", "doctor", "api"),
)
# In the lowest step only `cli` imports another package, because flags come from the
# dataclasses of config. The table of commands names functions as strings.
ALLOWED = {
    "errors": set(),
    "features": {"errors"},
    "files": {"errors"},
    "config": {"errors"},
    "cli": {"config", "errors"},
    "__main__": {"cli"},
}
for number, names in enumerate(STEPS[1:], start=1):
    ALLOWED |= dict.fromkeys(names, set().union(*STEPS[:number]))
TENSORFLOW = {"tensorflow", "tensorflow_text", "keras", "keras_hub", "keras_nlp"}


# Import graph of all modules, with imports in functions and lazy names of packages.
GRAPH = grimp.build_graph("electra_tf", include_external_packages=True, cache_dir=None)
for path in (ROOT / "electra_tf").glob("*/**/__init__.py"):
    for node in ast.parse(path.read_text("utf-8")).body:
        # A dictionary has public names and their modules.
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            package = ".".join(path.parent.relative_to(ROOT).parts)
            for home in {*ast.literal_eval(node.value).values()}:
                GRAPH.add_import(importer=package, imported=home)
MODULES = {name for name in GRAPH.modules if name.split(".")[0] == "electra_tf"}


def imported(unit):
    whole = f"electra_tf.{unit}"
    own = {whole} | GRAPH.find_descendants(whole)
    return set().union(*map(GRAPH.find_modules_directly_imported_by, own)) - own


def test_every_package_has_its_step():
    units = {name.split(".")[1] for name in MODULES - {"electra_tf"}}
    assert units == ALLOWED.keys() == {*sum(STEPS, ("__main__",))}


@pytest.mark.parametrize("unit", ALLOWED)
def test_no_forbidden_arrow(unit):
    names = imported(unit) & MODULES - {"electra_tf"}
    assert {name.split(".")[1] for name in names} <= ALLOWED[unit]


def test_only_two_names_of_the_root_are_imported():
    for importer in GRAPH.find_modules_that_directly_import("electra_tf"):
        details = GRAPH.get_import_details(importer=importer, imported="electra_tf")
        for line in details:
            _, _, names = line["line_contents"].partition("from electra_tf import ")
            own = {n for n in names.split(", ") if f"electra_tf.{n}" not in MODULES}
            assert own <= {"lazily", "__version__"}, f"{importer}: {names}"


def test_config_and_root_need_no_library_and_commands_no_tensorflow():
    assert imported("config") - MODULES <= sys.stdlib_module_names
    # Names of the root are lazy, so its import does not import submodules.
    root = GRAPH.find_modules_directly_imported_by("electra_tf")
    assert root <= sys.stdlib_module_names
    for unit in ("files", "cli"):
        assert not imported(unit) & TENSORFLOW


def test_no_cycle_between_modules():
    arrows = {m: GRAPH.find_modules_directly_imported_by(m) & MODULES for m in MODULES}
    assert sum(map(len, arrows.values())) > 300
    graphlib.TopologicalSorter(arrows).prepare()


def test_fine_tuning_imports_nothing_of_pretraining():
    """Fine-tuning accepts any encoder, without the models of the paper."""

    def units(module):
        names = GRAPH.find_upstream_modules(module) & MODULES - {"electra_tf"}
        return {name.split(".")[1] for name in names}

    fine_tuning = units("electra_tf.runs.finetuning")
    assert "tasks" in fine_tuning
    assert not {"pretraining", "systems", "interop", "comparison"} & fine_tuning
    assert "pretraining" in units("electra_tf.runs.pretraining")
