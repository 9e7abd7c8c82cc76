"""What a project needs besides its code: addresses, short pages, mutants that fit the code, imports without circles."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = "OWNER/"


def test_public_repository_url_is_a_placeholder_in_known_files_only() -> None:
    """Once the project has a home: replace OWNER in both, and assert here that it is nowhere."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(PLACEHOLDER in url for url in urls.values())
    tracked = subprocess.run(["git", "grep", "-lF", PLACEHOLDER], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert set(tracked.split()) <= {".github/CODEOWNERS", "pyproject.toml", "tests/cli/test_project_files.py"}


def test_contributing_guide_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 130


def test_every_mutant_matches_its_source_line_and_tests() -> None:
    """A line that moved or was reworded needs its entry in scripts/mutants.toml changed, too; one that is gone, deleted."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["mutants"] = mutants = importlib.util.module_from_spec(spec)  # its dataclass looks its module up
    spec.loader.exec_module(mutants)
    assert [reason for mutant in mutants.MUTANTS if (reason := mutant.stale()) is not None] == []
    assert all(mutant.right != mutant.wrong for mutant in mutants.MUTANTS)


VAGUE_WORDS = {"nobody", "somebody", "anybody", "everybody", "whoever", "told", "tells", "says", "said"}


def test_test_names_are_short_and_name_ranks_clients_and_messages() -> None:
    command = ["git", "grep", "-hoE", r"def test_[a-z0-9_]+", "--", "tests/*.py"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.removeprefix("def ") for line in lines}
    assert len(names) > 3000
    assert [name for name in sorted(names) if len(name) > 70 or VAGUE_WORDS & set(name.split("_"))] == []


GENERATED = {"cli.md", "json-analysis.md", "json-records.md", "json-results.md", "measured.md"}
"""Pages that `make docs` writes as a whole: tables to search."""
TABLES = re.compile(r"<!-- \w+: generated .*?<!-- end of \w+ -->", re.DOTALL)


def test_documentation_pages_have_at_most_250_lines() -> None:
    pages = {page.name: TABLES.sub("", page.read_text()) for page in (ROOT / "docs").glob("*.md")}
    assert pages.keys() > GENERATED
    lines = {name: len(text.splitlines()) for name, text in pages.items() if name not in GENERATED}
    assert {name: count for name, count in lines.items() if count > 250} == {}


def test_documentation_pages_named_in_code_exist() -> None:
    command = ["git", "grep", "-hIoE", r"docs/[a-z0-9-]+\.md", "--", ":!CHANGELOG.md"]
    names = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    assert len(names) > 30
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def test_architecture_page_names_existing_files_and_classes() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Why these libraries")[0]
    names = sorted(set(re.findall(r"`([\w./*-]+)`", page)))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    tree = "".join(f"/{file}\n" for file in files)
    paths = [name for name in names if ("/" in name or name.endswith((".py", ".toml", ".yaml"))) and "FEATURE" not in name]
    assert len(paths) > 80
    assert [name for name in paths if not re.search("/" + re.escape(name).replace(r"\*", "[^/]*"), tree)] == []
    code = "".join((ROOT / file).read_text() for file in files if "/src/" in file and file.endswith(".py"))
    words = set(re.findall(r"\w+", code))
    assert [name for name in names if re.fullmatch(r"[A-Z]\w+", name) and name not in words] == []


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


def test_modules_have_no_circular_imports() -> None:
    assert refuse_circles(ROOT) > 500


@pytest.mark.parametrize(
    "of_types", ["from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n", "def late() -> None:\n    {}\n", "{}\n"]
)
def test_circular_import_through_types_or_a_function_is_detected(tmp_path: Path, of_types: str) -> None:
    folder = tmp_path / "part/src/rankscope/part"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("from rankscope.part import two\n")
    (folder / "two.py").write_text(of_types.format("from rankscope.part.one import thing"))
    with pytest.raises(CycleError):
        refuse_circles(tmp_path)
