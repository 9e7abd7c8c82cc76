"""No modules import each other in a circle, also not for types or inside functions: a reader can begin somewhere."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"^[ ]*(?:import (rankscope[\w.]+)|from (rankscope[\w.]*) import (\([^)]*\)|.*))", re.MULTILINE)
"""Import statements of the house; reading the syntax of all modules takes ten times as long."""


def modules_of(root: Path) -> dict[str, Path]:
    modules = {}
    for source in root.glob("*/src"):
        for path in source.glob("rankscope/**/*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imported_by(path: Path, modules: dict[str, Path]) -> set[str]:
    names = set[str]()
    for plain, package, content in IMPORT.findall(path.read_text()):
        names |= {plain, package, *(f"{package}.{name}" for name in re.findall(r"\w+", content))}
    return names & set(modules)


def refuse_circles(root: Path) -> int:
    modules = modules_of(root)
    TopologicalSorter({name: imported_by(path, modules) for name, path in modules.items()}).prepare()
    return len(modules)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert refuse_circles(ROOT) > 500


@pytest.mark.parametrize(
    "of_types", ["from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n", "def late() -> None:\n    {}\n", "{}\n"]
)
def test_a_circle_through_types_or_a_function_is_noticed(tmp_path: Path, of_types: str) -> None:
    folder = tmp_path / "part/src/rankscope/part"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("from rankscope.part import two\n")
    (folder / "two.py").write_text(of_types.format("from rankscope.part.one import thing"))
    with pytest.raises(CycleError):
        refuse_circles(tmp_path)
