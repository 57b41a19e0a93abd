"""A corpus from the docstrings of the installed Python packages.

Reads the text between triple quotes in the standard library and site-packages. A module
is a document, a paragraph is a line. Drops code, lists, tables, indented text such as
the descriptions of arguments, license text, and repeated paragraphs. A stray triple
quote costs the rest of its module: parsing the modules would take four times as long.
"""

import functools
import hashlib
import importlib.metadata
import inspect
import platform
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

# Raise it when this module reads other paragraphs: records name their text by it.
_VERSION = 2
_SKIPPED = re.compile(
    r"__pycache__|site-packages|testing|idle_test|(tests?|test_.*|.*_tests?|conftest)"
    r"(\.py)?"
)
_STRING = re.compile(r'("""|\'\'\')\\?(.*?)\1', re.DOTALL)
_FENCED = re.compile(r"^\s*```.*?```", re.DOTALL | re.MULTILINE)
# Indented text, lists, directives, fields, prompts, comments, headings, and tables.
_OTHER = re.compile(
    r"^(\s|[-*+\u2022] |\(?\w{1,2}[.)] |[:.>|@#$%])|\w {3,}\w|\||==|([-_~^+*#])\2\2",
    re.MULTILINE,
)
# Roles, targets of links, quotes and emphasis, which are removed from the text.
_MARKUP = re.compile(
    r":[\w:+-]+:(?=`)|\s*<[^>`]*>(?=`)|`+~?(_+(?!\w))?"
    r"|(?<![\w*])\*+(?=\w)|(?<=[\w.,])\*+(?![\w*])"
)
_CODE = re.compile(
    r"[{};]\s|\w\(.*\)\s*(->|:$)|[^=!<>]=[^=]\S*\(|^\w+\([^)]*\)\s*$|::|^\S+ : |\\|://"
)
_LICENSE = re.compile(
    r"copyright|all rights reserved|licen[sc]ed? (under|to|agreement)|apache license"
    r"|warrant(y|ies)|redistribut(e|ion)|permission is hereby|without limitation"
    r"|spdx|liabilit(y|ies)",
    re.IGNORECASE,
)


@functools.cache
def documents() -> Sequence[list[str]]:
    """Returns one list of paragraphs per module, in the order of the module paths."""
    read, seen = [], set()
    for path in _source_files():
        try:
            strings = _STRING.findall(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        document = []
        for text in (text for _, string in strings for text in prose(string)):
            if text.casefold() not in seen:
                seen.add(text.casefold())
                document.append(text)
        if document:
            read.append(document)
    return read


@functools.cache
def fingerprint() -> str:
    """Hashes the versions of this module, Python and the installed distributions."""
    found = importlib.metadata.distributions()
    installed = sorted(f"{each.metadata['Name']}=={each.version}" for each in found)
    text = "\n".join([str(_VERSION), platform.python_version(), *installed])
    return hashlib.sha256(text.encode()).hexdigest()


def prose(docstring: str) -> list[str]:
    """Returns the prose paragraphs of a docstring, one line each."""
    text = _FENCED.sub("", inspect.cleandoc(docstring))
    lines = [
        " ".join(_MARKUP.sub("", block).split())
        for block in re.split(r"\n\s*\n", text)
        if 60 <= len(block) <= 10_000 and not _OTHER.search(block)
    ]
    return [line for line in lines if _is_prose(line)]


def _source_files() -> list[Path]:
    paths = sysconfig.get_paths()
    files = []
    for root in dict.fromkeys([paths["stdlib"], paths["purelib"], paths["platlib"]]):
        files += sorted(
            path
            for path in Path(root).rglob("*.py")
            if not any(map(_SKIPPED.fullmatch, path.relative_to(root).parts))
        )
    return files


def _is_prose(text: str) -> bool:
    letters = sum(map(len, re.findall("[A-Za-z ]+", text)))
    return (
        letters >= 0.8 * len(text)
        and text.count(" ") >= 7
        and text[0].isalpha()
        and text[-1] in ".!?:)\"'"
        and text.isprintable()
        and not _CODE.search(text)
        and not _LICENSE.search(text)
    )
