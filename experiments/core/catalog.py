"""Figures and benchmarks by name: found as files, imported when they are used."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


class Catalog(Mapping[str, Any]):
    """Objects that modules of `experiments` define, by the modules' names, sorted.

    All figures take seconds to import; their names and summaries do not need that.

    Args:
      pattern: The modules' files, where `__init__.py` stands for a package.
      attribute: The name of the object that each of them defines.

    >>> figures = Catalog("figures/*/*/__init__.py", "FIGURE")
    >>> figures.summary("trajectories")
    'Trajectories of Adam and of its continuous-time model (Fig. 1).'
    >>> figures["trajectories"].paper
    'Fig. 1'
    """

    def __init__(self, pattern: str, attribute: str):
        self._attribute = attribute
        self._files = {
            file.parent.name if file.stem == "__init__" else file.stem: file
            for file in PACKAGE.glob(pattern)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, name: str) -> Any:
        path = self._files[name].relative_to(PACKAGE.parent).with_suffix("")
        module = ".".join(path.parts).removesuffix(".__init__")
        return getattr(importlib.import_module(module), self._attribute)

    def summary(self, name: str) -> str:
        """Return the first line of the docstring of a module."""
        docstring = ast.get_docstring(ast.parse(self._files[name].read_bytes())) or ""
        return docstring.partition("\n")[0]
