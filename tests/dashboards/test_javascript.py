"""The scripts of the pages and of the report: a linter, and unit tests with node."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.needs import skip_or_fail

pytestmark = pytest.mark.full

HERE = Path(__file__).parent / "javascript"
SOURCES = Path(__file__).parents[2] / "dashboards" / "src" / "rankscope" / "dashboards"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_javascript_tests_pass(require_program: Callable[[str], str]) -> None:
    completed = run([require_program("node"), "--test"], HERE)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "# fail 0" in completed.stdout
    assert "# pass 0" not in completed.stdout


def test_javascript_has_no_lint_errors(require_program: Callable[[str], str], tmp_path: Path) -> None:
    for name in ("package.json", "package-lock.json", "eslint.config.mjs"):
        shutil.copy(HERE / name, tmp_path)
    installed = run([require_program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"], tmp_path)
    if installed.returncode:
        skip_or_fail(f"eslint cannot be installed from the npm registry: {installed.stderr[-300:]}")
    for folder in ("assets", "report"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        for script in (SOURCES / folder).glob("*.js"):
            shutil.copy(script, tmp_path / "src" / folder)
    (tmp_path / "src" / "wrong.js").write_text("document.body.innerHTML = location.hash;\n")

    completed = run([require_program("node"), "node_modules/eslint/bin/eslint.js", "src"], tmp_path)

    assert "wrong.js" in completed.stdout, "the linter finds what is planted"
    assert completed.stdout.count("error  ") == 1, completed.stdout
