"""What a project needs besides its code: its addresses, the length of the pages that contributors read, mutants that fit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = "OWNER/"


def test_the_unknown_public_home_is_a_placeholder_in_two_files() -> None:
    """Once the project has a home: replace OWNER in both, and assert here that it is nowhere."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(PLACEHOLDER in url for url in urls.values())
    tracked = subprocess.run(["git", "grep", "-lF", PLACEHOLDER], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert set(tracked.split()) <= {".github/CODEOWNERS", "pyproject.toml", "tests/cli/test_house.py"}


def test_contributors_read_few_lines() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 130


def test_every_mutant_has_its_line_and_its_tests() -> None:
    """A line that moved or was reworded needs its entry in scripts/mutants.toml changed, too; one that is gone, deleted."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["mutants"] = mutants = importlib.util.module_from_spec(spec)  # its dataclass looks its module up
    spec.loader.exec_module(mutants)
    assert [reason for mutant in mutants.MUTANTS if (reason := mutant.stale()) is not None] == []
    assert all(mutant.right != mutant.wrong for mutant in mutants.MUTANTS)
