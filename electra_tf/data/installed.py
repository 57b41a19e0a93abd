"""A corpus from the docstrings of the installed Python packages.

Reads the standard library and site-packages with ``ast``. A module is a document, a
paragraph is a line. Drops code, tables, license text, and repeated paragraphs.
"""

import ast
import functools
import gc
import hashlib
import importlib.metadata
import inspect
import itertools
import math
import operator
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra_tf.data.pools import pool

_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "test", "tests", "testing", "idle_test"}
)
_TEST_MODULE = re.compile(r"(test_.*|.*_tests?|conftest)\.py")

# Headings of Google and NumPy style sections, and of those that are prose.
_PROSE = r"(notes?|warnings?|remarks|description|summary|overview|background)"
_HEADING = re.compile(
    r"(args?|arguments|(other |keyword )?parameters|params|keyword args"
    r"|returns?|yields?|raises|warns|receives|attributes|methods|functions|classes"
    r"|inputs?|outputs?|(input|output|call|data) (shapes?|arguments|types?)"
    r"|examples?( usage)?|usage|sample usage|see also|references?|side effects"
    rf"|{_PROSE})(\s*\([^)]*\))?\s*:{{0,2}}",
    re.IGNORECASE,
)
_PROSE_HEADING = re.compile(rf"{_PROSE}\W*", re.IGNORECASE)
_UNDERLINE = re.compile(r"([=\-~^*+#\"'`.])\1{2,}")
_FENCE = re.compile(r"\s*(```|~~~)")
_BULLET = re.compile(r"\s*([-*+\u2022]|\(?\d{1,2}[.)]|\(?[a-z][)])\s+")
_DIRECTIVE = re.compile(r"\s*(\.\. |:[\w ]+:|@\w+|#|\$ |%|>>>|\.\.\. |In \[\d)")
_ROLE = re.compile(r":(?:\w+:)*\w+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_QUOTED = re.compile(r"`+([^`]+)`+_*")
_TABLE = re.compile(r"\S {3,}\S|\||\+--|==+|--{2,}|\t\S+\t|__{2,}")
_LICENSE = re.compile(
    r"copyright|all rights reserved|licen[sc]ed? (under|to|agreement)|apache license"
    r"|warrant(y|ies)|redistribut(e|ion)|permission is hereby|without limitation"
    r"|spdx|liabilit(y|ies)",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"[{};]\s|\w\(.*\)\s*(->|:$)|[^=!<>]=[^=]\S*\(|^\w+\([^)]*\)\s*$|::|^\w+ : "
)
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])")
# With halves of surrogate pairs, which UTF-8 cannot encode.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_WORD = re.compile(r"[A-Za-z]+(?:['\u2019-][a-z]+)?")

_MODULES_OF_A_PROCESS = 200  # Reading them takes as long as starting a process.


@functools.cache
def documents() -> Sequence[list[str]]:
    """Returns one list of paragraphs per module, in the order of the module paths."""
    paths = _source_files()
    if len(paths) <= _MODULES_OF_A_PROCESS:
        read = [*map(_module_paragraphs, paths)]
    else:
        with pool() as executor:
            chunk = _MODULES_OF_A_PROCESS
            read = [*executor.map(_module_paragraphs, paths, chunksize=chunk)]
    first: dict[str, tuple[int, str]] = {}
    for number, texts in enumerate(read):
        for text in texts:
            first.setdefault(text.casefold(), (number, text))
    modules = itertools.groupby(first.values(), operator.itemgetter(0))
    return [[text for _, text in module] for _, module in modules]


@functools.cache
def fingerprint() -> str:
    """Hashes the versions of Python and of the installed distributions."""
    found = importlib.metadata.distributions()
    installed = sorted(f"{each.metadata['Name']}=={each.version}" for each in found)
    text = "\n".join([platform.python_version(), *installed])
    return hashlib.sha256(text.encode()).hexdigest()


def prose(docstring: str) -> list[str]:
    """Returns the prose paragraphs of a cleaned docstring, one line each."""
    return [text for text in map(_clean, _blocks(docstring)) if _is_prose(text)]


def _source_files() -> list[Path]:
    paths = sysconfig.get_paths()
    files = []
    for root in dict.fromkeys([paths["stdlib"], paths["purelib"], paths["platlib"]]):
        below = []
        for folder, inside, names in os.walk(root):
            # In place: prunes the walk.
            inside[:] = [name for name in inside if name not in _SKIPPED_FOLDERS]
            below += [
                Path(folder, name)
                for name in names
                if name.endswith(".py") and not _TEST_MODULE.fullmatch(name)
            ]
        files += sorted(below, key=lambda path: path.parts)
    return files


def _module_paragraphs(path: Path) -> list[str]:
    was_collecting = gc.isenabled()
    # Syntax trees have no cycles, but garbage collection would take half the time.
    gc.disable()
    try:
        source = path.read_bytes()
        # Parsing dominates the time; a third of the modules have no docstring.
        if b'"""' not in source and b"'''" not in source:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes in other packages.
            docstrings = list(_docstrings(ast.parse(source)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []  # Templates and Python 2 sources.
    finally:
        if was_collecting:
            gc.enable()
    cleaned = (inspect.cleandoc(_CONTROL.sub(" ", text)) for text in docstrings)
    return [paragraph for text in cleaned for paragraph in prose(text)]


def _docstrings(node: ast.AST) -> Iterator[str]:
    match getattr(node, "body", None):
        case [ast.Expr(value=ast.Constant(value=str(text))), *_]:
            yield text
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child)


def _blocks(docstring: str) -> Iterator[list[str]]:
    """Yields blocks of lines that may be paragraphs, without code and tables.

    A skipped section ends at the next heading or, in Google style, at the first line
    that is not indented.
    """
    block: list[str] = []
    skipped_above = math.inf  # Text deeper than this indentation is skipped.
    fenced = False
    lines = [*docstring.expandtabs().splitlines(), "", ""]
    for line, following in itertools.pairwise(lines):
        if _FENCE.match(line):
            fenced = not fenced
        text, indentation = line.strip(), len(line) - len(line.lstrip())
        section = _HEADING.fullmatch(text)
        underlined = bool(text and _UNDERLINE.fullmatch(following.strip()))
        heading = underlined or section
        starts_block = _BULLET.match(line) or _DIRECTIVE.match(line)
        if fenced or heading or starts_block or not text:
            yield block
            block = []
        if fenced or not text:
            continue
        if heading:
            skipped_above = math.inf
            if section and not _PROSE_HEADING.fullmatch(text):
                skipped_above = -1 if underlined else indentation
        elif indentation <= skipped_above and not _UNDERLINE.fullmatch(text):
            # Skip the body of a literal block (`text::`) or a directive.
            is_literal = text.endswith("::") or line.lstrip().startswith(".. ")
            skipped_above = indentation if is_literal else math.inf
            block.append(line)


def _clean(lines: list[str]) -> str:
    """Joins a block to one line without markup; returns "" for code and tables."""
    # Stripped: indentation is not a table column.
    stripped = [line.strip() for line in lines]
    if not lines or _DIRECTIVE.match(lines[0]) or _TABLE.search("\n".join(stripped)):
        return ""
    text = " ".join(stripped)
    if bullet := _BULLET.match(text):
        text = text[bullet.end() :]
    text = _QUOTED.sub(r"\1", _ROLE.sub(r"\1", text))
    return re.sub(r"\s+", " ", _EMPHASIS.sub(r"\2", text)).strip()


def _is_prose(text: str) -> bool:
    if len(text) < 60 or not text[0].isalpha() or text[-1] not in ".!?:)\"'":
        return False
    words = _WORD.findall(text)
    letters = sum(map(len, words)) + text.count(" ")
    return (
        len(words) >= 8
        and letters >= 0.75 * len(text)
        and not _LICENSE.search(text)
        and not _CODE.search(text)
    )
