"""Offline example task: classifies docstring paragraphs by their package."""

import ast
import dataclasses
import functools
import random
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from electra_tf.errors import UserError
from electra_tf.tasks.base import Example

_LEFT_OUT = {"__pycache__", "test", "tests", "testing", "_vendor"}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class PackageParagraphs:
    """Reads docstring paragraphs of installed packages, or of packages in ``root``.

    The classes are the ``num_packages`` largest packages, with at most ``per_package``
    paragraphs each, a fifth of them in "dev". The splits share neither modules nor
    paragraphs. ``prose`` splits a docstring into paragraphs.
    """

    prose: Callable[[str], list[str]]
    num_packages: int = 8
    per_package: int = 700
    root: str | None = None

    def __call__(self, split: str) -> list[Example]:
        return [example for where, example in self._examples if where == split]

    @functools.cached_property
    def _examples(self) -> list[tuple[str, Example]]:
        root = Path(self.root or sysconfig.get_paths()["purelib"])
        folders = [path.parent for path in root.glob("*/__init__.py")]
        modules = {f: _modules(f) for f in folders if f.name not in _LEFT_OUT}
        sizes = {f: sum(x.stat().st_size for x in modules[f]) for f in modules}
        largest = sorted(modules, key=lambda folder: (-sizes[folder], folder.name))
        packages = sorted(largest[: self.num_packages])
        if len(packages) < 2:
            raise UserError(
                f"{root} has {len(packages)} documented packages; at least 2 are "
                "needed: use --task=classification with your own table."
            )
        examples: list[tuple[str, Example]] = []
        seen: set[str] = set()
        for package in packages:
            random.Random(package.name).shuffle(modules[package])
            count = {"train": 0, "dev": 0}
            for path in modules[package]:
                split = "dev" if 5 * count["dev"] < sum(count.values()) else "train"
                unique = {text.casefold(): text for text in self._texts(path)}
                texts = [text for key, text in unique.items() if key not in seen]
                seen.update(unique)
                for text in texts[: self.per_package - sum(count.values())]:
                    example = Example(str(len(examples)), (text,), package.name)
                    examples.append((split, example))
                    count[split] += 1
        return examples

    def _texts(self, path: Path) -> Iterator[str]:
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                yield from self.prose(text)


def _modules(package: Path) -> list[Path]:
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if not _LEFT_OUT.intersection(path.relative_to(package).parts)
    ]
