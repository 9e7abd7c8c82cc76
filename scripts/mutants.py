"""Check that ``make test`` notices wrong lines: picked by hand, each put into a copy of the code. Prints one JSON object.

    python scripts/mutants.py [--only TEXT]

For each line of mutants.toml, the tests named beside it run until the first one fails. They are the same tests with the same
markers as in ``make test``. A wrong line that no test notices is a budget that is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from budget import budget

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("exporter/src", "profiler/src", "dashboards/src", "alerts/src", "cli/src")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong line: a text that occurs once in a module, and its replacement."""

    module: str
    right: str
    wrong: str
    tests: str
    """Folders and files below tests/ that must notice the wrong line, separated by spaces."""

    @property
    def path(self) -> Path:
        """Path of the module, relative to the root of the repository."""
        package = self.module.split("/")[0]
        return (
            Path({"runs": "profiler", "analysis": "profiler", "base": "cli"}.get(package, package))
            / "src/rankscope"
            / f"{self.module}.py"
        )


MUTANTS = [Mutant(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose module has this text in its name")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.module]
    with tempfile.TemporaryDirectory(prefix="rankscope-mutants-") as folder:
        Path(folder).chmod(0o755)  # some tests run the code as other users
        copy = Path(folder) / "copy"
        _copy(copy)
        healthy = _tests(copy, sorted({word for mutant in chosen for word in mutant.tests.split()}), stop=False)
        assert healthy.returncode == 0, healthy.stdout[-3000:]
        found = [_tried(copy, mutant) for mutant in chosen]
    budgets = [
        budget("wrong lines that were tried", len(found), 30, at_least=True),
        budget("wrong lines that no test noticed", sum(one["noticed_by"] is None for one in found), 0),
    ]
    environment = {"python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"figures": {"mutants": found}, "budgets": budgets, "environment": environment}, indent=1))
    sys.exit(0 if all(one["ok"] for one in budgets) else 1)


def _copy(to: Path) -> None:
    """Copy the files that git tracks, with changes that are not committed, and link the reference data beside them."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    if (ROOT.parent / "shared").is_dir():
        (to.parent / "shared").symlink_to(ROOT.parent / "shared")


def _tried(copy: Path, mutant: Mutant) -> dict[str, Any]:
    file = copy / mutant.path
    text = file.read_text()
    assert text.count(mutant.right) == 1, f"{mutant.path} has {text.count(mutant.right)} times {mutant.right!r}"
    file.write_text(text.replace(mutant.right, mutant.wrong))
    try:
        done = _tests(copy, mutant.tests.split(), stop=True)
    finally:
        file.write_text(text)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    noticed_by = failed[0] if failed else None
    print(f"{mutant.module}: {mutant.wrong!r}: {noticed_by}", file=sys.stderr, flush=True)
    return {"module": mutant.module, "right": mutant.right, "wrong": mutant.wrong, "noticed_by": noticed_by}


def _tests(copy: Path, where: list[str], *, stop: bool) -> subprocess.CompletedProcess[str]:
    """Run tests over the copy's code, which comes before the installed one on the path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(copy / source) for source in SOURCES)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    command += ["-m", "not full and not campaign and not gpu", "-p", "no:cacheprovider", *(["-x"] if stop else [])]
    command += [f"tests/{one}" for one in where]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
