"""Check that ``make test`` notices wrong lines: picked by hand, each put into a copy of the code. Prints one JSON object.

    python scripts/mutants.py [--only TEXT]

For each line of mutants.toml, only the tests named beside it run, until the first one fails. They have the same markers as in
``make test``. A wrong line that no test notices is a budget that is not met.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.common.result import budget, environment, finish

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("exporter/src", "profiler/src", "dashboards/src", "alerts/src", "cli/src")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong line: a text that occurs once in a module, and its replacement."""

    module: str
    right: str
    wrong: str
    tests: str
    """Folders, files and ``FILE::TEST`` below tests/ that must notice the wrong line, separated by spaces."""

    @property
    def path(self) -> Path:
        """Path of the module, relative to the root of the repository."""
        package = self.module.split("/")[0]
        return (
            Path({"runs": "profiler", "analysis": "profiler", "base": "cli"}.get(package, package))
            / "src/rankscope"
            / f"{self.module}.py"
        )

    def stale(self) -> str | None:
        """Return why the entry no longer fits the code: of its line, or of its tests; ``None`` if it does."""
        if not (ROOT / self.path).is_file():
            return f"{self.path}: no such module"
        if (count := (ROOT / self.path).read_text().count(self.right)) != 1:
            return f"{self.path} has {count} times {self.right!r}"
        for word in self.tests.split():
            file, _, test = word.partition("::")
            path = ROOT / "tests" / file
            if not path.exists() or (test and f"def {test}(" not in path.read_text()):
                return f"{self.path}: no test {word}"
        return None


MUTANTS = [Mutant(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose module has this text in its name")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.module]
    if stale := [reason for mutant in chosen if (reason := mutant.stale()) is not None]:
        sys.exit("\n".join(stale))
    with tempfile.TemporaryDirectory(prefix="rankscope-mutants-") as folder:
        Path(folder).chmod(0o755)  # some tests run the code as other users
        copy = Path(folder) / "copy"
        _copy(copy)
        healthy = _tests(copy, sorted({word for mutant in chosen for word in mutant.tests.split()}), "-n", "2")
        assert healthy.returncode == 0, healthy.stdout[-3000:]
        tried = [_tried(copy, mutant, number) for number, mutant in enumerate(chosen, 1)]
    budgets = [
        budget("wrong lines that were tried", len(tried), 1 if options.only else 150, at_least=True),
        budget("wrong lines that no test noticed", sum(row["noticed_by"] is None for row in tried), 0),
    ]
    finish({"mutants": tried}, budgets, environment("pytest"))


def _copy(to: Path) -> None:
    """Copy the files that git tracks, with changes that are not committed, and link the reference data beside them."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    if (ROOT.parent / "shared").is_dir():
        (to.parent / "shared").symlink_to(ROOT.parent / "shared")


def _tried(copy: Path, mutant: Mutant, number: int) -> dict[str, Any]:
    file = copy / mutant.path
    text = file.read_text()
    file.write_text(text.replace(mutant.right, mutant.wrong))
    # Python takes compiled code of another wrong line that has this time, in seconds, and this size.
    os.utime(file, (number, number))
    try:
        done = _tests(copy, mutant.tests.split(), "-x")
    finally:
        file.write_text(text)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    noticed_by = failed[0] if failed else None
    print(f"{mutant.module}: {mutant.wrong!r}: {noticed_by}", file=sys.stderr, flush=True)
    return {"module": mutant.module, "right": mutant.right, "wrong": mutant.wrong, "noticed_by": noticed_by}


def _tests(copy: Path, words: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests over the copy's code, which comes before the installed one on the path."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(str(copy / source) for source in SOURCES)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-q", *arguments, "-m", "not full and not campaign and not gpu"]
    command += ["-p", "no:cacheprovider", *(f"tests/{word}" for word in words)]
    return subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
