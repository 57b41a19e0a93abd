"""Offline example task: classifies docstring paragraphs by their package.

The data are docstrings of the largest installed packages. Training and dev split share
neither modules nor paragraphs.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import random
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from electra_tf.errors import UserError
from electra_tf.tasks.base import Example
from electra_tf.tasks.text import Classification

_LEFT_OUT = {"__pycache__", "test", "tests", "testing", "site-packages", "_vendor"}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documentation_task(prose: Callable[[str], list[str]]) -> Classification:
    """Returns the task; ``prose`` splits a docstring into paragraphs."""
    return Classification(
        name="documentation",
        source=PackageParagraphs(prose),
        main_metric="accuracy",
        max_seq_length=64,
        test_splits=(),
    )


@dataclasses.dataclass(frozen=True)
class PackageParagraphs:
    """Reads docstring paragraphs of installed packages, or of packages in ``root``.

    The classes are the ``num_packages`` largest packages. At most ``per_package``
    paragraphs of each are used, which roughly balances the classes.
    """

    prose: Callable[[str], list[str]]
    num_packages: int = 8
    per_package: int = 700
    dev_fraction: float = 0.2
    root: str | None = None

    def __call__(self, split: str) -> list[Example]:
        """Reads "train" or "dev"."""
        return [example for where, example in self.whole if where == split]

    # Cached for both splits: reading takes seconds.
    @functools.cached_property
    def whole(self) -> list[tuple[str, Example]]:
        """Pairs (split, example); raises ValueError for fewer than two packages."""
        root = Path(self.root or sysconfig.get_paths()["purelib"])
        packages = _largest(root, self.num_packages)
        if len(packages) < 2:
            raise UserError(
                f"{root} has {len(packages)} packages with documentation; the embedded "
                "task needs at least 2. Give your own table: --task=classification."
            )
        seen: set[str] = set()
        kept = [row for package in packages for row in self._split(package, seen)]
        return [
            (where, Example(str(number), (text,), package))
            for number, (where, package, text) in enumerate(kept)
        ]

    def _split(self, package: Path, seen: set[str]) -> list[tuple[str, str, str]]:
        """Returns up to ``per_package`` tuples of split, package and text."""
        modules = [
            path
            for path in sorted(package.rglob("*.py"))
            if not _LEFT_OUT.intersection(path.relative_to(package).parts)
        ]
        random.Random(package.name).shuffle(modules)
        kept: list[tuple[str, str, str]] = []
        held_out = 0
        for path in modules:
            unique = {text.casefold(): text for text in self._module(path)}
            texts = [text for key, text in unique.items() if key not in seen]
            seen.update(unique)
            dev = held_out < self.dev_fraction * len(kept)
            held_out += len(texts) if dev else 0
            kept += [("dev" if dev else "train", package.name, t) for t in texts]
            if len(kept) >= self.per_package:
                break
        return kept[: self.per_package]

    def _module(self, path: Path) -> Iterator[str]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                yield from self.prose(text)


def _largest(root: Path, count: int) -> list[Path]:
    """Returns the packages with the most Python source, sorted by name."""
    sizes = {}
    for folder in root.iterdir():
        if (folder / "__init__.py").is_file() and folder.name not in _LEFT_OUT:
            sizes[folder] = sum(
                entry.stat().st_size
                for path, _, names in os.walk(folder)
                for entry in (Path(path, n) for n in names if n.endswith(".py"))
            )
    order = sorted(sizes, key=lambda folder: (-sizes[folder], folder.name))
    return sorted(order[:count])
