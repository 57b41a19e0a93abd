import pkgutil
import re
import shlex

import pytest

from electra_tf import cli
from electra_tf.__main__ import COMMANDS
from electra_tf.config import fields
from tests.examples.common import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = {"run_pretraining.py": "pretrain", "run_finetuning.py": "finetune"}
COMMAND = re.compile(
    r"(?:(?:python -m electra_tf|electra-tf) ([a-z]+)|python (run_\w+\.py))([^|<>&]*)"
)
# Placeholders, and a file created by a diff in test_extending.py.
LEFT_OUT = ("...", "--help", "$", "configs/medium.cfg")


def command_lines(text):
    """Yields (name, arguments) of commands in code blocks and table cells."""
    fences = re.findall(r"^```(\w*).*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [body for language, body in fences if language in ("", "bash")]
    blocks += re.findall(r"^    \S.*(?:\n {4}.*)*", text, re.MULTILINE)
    rows = re.findall(r"^\|.*", text, re.MULTILINE)
    cells = re.findall(r"`((?:python|electra-tf) [^`]*--[^`]*)`", "\n".join(rows))
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    for line in [*lines, *cells]:
        for module, script, rest in COMMAND.findall(line):
            if not any(mark in rest for mark in LEFT_OUT):
                name = module or SCRIPTS[script]
                yield name, shlex.split(rest, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_of_a_page_can_be_read(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name, arguments in command_lines(page.read_text("utf-8")):
        assert name in COMMANDS, name
        given = [word for word in arguments if word.startswith("--")]
        config = cli.parse(pkgutil.resolve_name(COMMANDS[name].config), given)
        values = fields.to_flat(config)
        for _, leaf in fields.fields(type(config)):
            if leaf.metadata["required"]:
                assert values[leaf.name], (name, arguments, leaf.name)


def test_all_commands_are_shown():
    names = [name for page in PAGES for name, _ in command_lines(page.read_text())]
    assert len(names) > 70
    assert set(names) == set(COMMANDS)
