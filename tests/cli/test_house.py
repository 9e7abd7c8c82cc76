"""What a project needs besides its code: its addresses, and the length of the pages that contributors read."""

from __future__ import annotations

import subprocess
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
