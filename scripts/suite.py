"""Time of the test suite by kind of test, and the results of repeated runs. Prints one JSON object.

    python scripts/suite.py [--target test|test-full] [--repeat 10] [--busy 2] [--timing FILE]

Runs ``make test`` or ``make test-full`` one or more times, with ``--busy`` beside busy loops. This module is also the pytest
plugin that measures. For each test it writes the seconds, the CPU seconds and the programs started; for each fixture, the set-up
time.
The tables show the last run. ``--timing`` keeps the JSON Lines behind them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MINUTES_BUDGET = {"test": 6.0, "test-full": 40.0}

PROGRAMS = (
    ("PyInstaller", ("pyinstaller", "PyInstaller", "package/build")),
    ("Slurm", ("slurmctld", "slurmd", "munged", "sbatch", "srun", "sinfo", "squeue", "scancel")),
    ("Ray", ("ray_nodes", "raylet", "gcs_server")),
    ("demo", ("rankscope demo", "make demo")),
    ("browser", ("chromium", "playwright")),
    ("torch job", ("torchrun", "torch.distributed", "/jobs/", "gloo_training", "slowing_training", "train.py")),
    ("Alertmanager", ("prometheus-alertmanager", "amtool")),
    ("promtool", ("promtool",)),
    ("Prometheus", ("prometheus",)),
    ("dashboard server", ("rankscope dashboard", "gunicorn")),
    ("exporter", ("rankscope exporter",)),
    ("alert process", ("rankscope alerts",)),
    ("command line", ("-m rankscope", "rankscope.cli", "bin/rankscope")),
    ("compiler", ("gcc",)),
    ("other Python", ("python",)),
)
"""Kinds of programs, with texts in their command lines. A test's kind is the first in this table of which it starts a program."""


class Meter:
    """Plugin of each process that runs tests: records the cost of each test and the programs that it starts."""

    def __init__(self) -> None:
        self._started: list[str] = []
        self._fixtures: list[dict[str, Any]] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            command = arguments[1]
            words = [command] if isinstance(command, str | bytes) else command
            line = " ".join(os.fsdecode(word) for word in words)
            self._started.append(next((kind for kind, marks in PROGRAMS if any(mark in line for mark in marks)), "other"))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            return (yield)
        finally:
            took = {"name": fixturedef.argname, "scope": fixturedef.scope, "seconds": round(time.perf_counter() - begin, 3)}
            self._fixtures.append(took)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[BEFORE] = (_cpu_s(), len(self._started), len(self._fixtures))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        cpu_s, started, fixtures = item.stash[BEFORE]
        report.suite = {
            "cpu_s": round(_cpu_s() - cpu_s, 3),
            "programs": self._started[started:],
            "hypothesis": item.get_closest_marker("hypothesis") is not None,
            "fixtures": [fixture for fixture in self._fixtures[fixtures:] if fixture["seconds"] > 0.05],
        }
        return report


BEFORE: pytest.StashKey[tuple[float, int, int]] = pytest.StashKey()


class ResultCollector:
    """Plugin of the process that prints the results: writes one JSON object per test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict[str, Any]] = defaultdict(lambda: {"outcome": "passed", "seconds": 0.0})

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self._tests[report.nodeid]
        test["seconds"] = round(test["seconds"] + report.duration, 4)
        if report.outcome != "passed":
            test["outcome"] = report.outcome
        test.update(getattr(report, "suite", {}))
        if report.when == "teardown":
            with self._path.open("a") as file:
                file.write(json.dumps({"test": report.nodeid, **self._tests.pop(report.nodeid)}) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite-timing", metavar="FILE", type=Path, help="write a JSON object per test to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--suite-timing")
    worker = hasattr(config, "workerinput")
    if path and not worker:
        config.pluginmanager.register(ResultCollector(path))
    if path and (worker or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Meter())


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def kind(test: dict[str, Any]) -> str:
    """Return the kind of a test: the first kind of program in ``PROGRAMS`` that it started."""
    started = set(test["programs"])
    return next((kind for kind, _ in PROGRAMS if kind in started), "Hypothesis" if test["hypothesis"] else "in process")


def table(tests: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], str]) -> dict[str, dict[str, float]]:
    """Return sums by ``key``, the most seconds first."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for test in tests:
        rows[key(test)].update(tests=1, seconds=test["seconds"], cpu_seconds=test["cpu_s"], processes=len(test["programs"]))
    ordered = sorted(rows.items(), key=lambda row: -row[1]["seconds"])
    return {name: {column: round(value, 1) for column, value in row.items()} for name, row in ordered}


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run ``loops`` processes with an endless loop."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(target: str, timing: Path) -> dict[str, Any]:
    """Run a target of the Makefile once. Returns its duration and its result."""
    timing.unlink(missing_ok=True)
    arguments = f"-p scripts.suite --suite-timing {timing} {os.environ.get('TEST_ARGS', '')}"
    begin = time.monotonic()
    done = subprocess.run(["make", target, f"TEST_ARGS={arguments}"], cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.monotonic() - begin
    # The last lines of pytest; the target test-full runs it twice.
    last = [line.strip("= ") for line in done.stdout.splitlines() if re.search(r"\d+ (passed|failed).* in ", line)]
    summary = "; ".join(last) or done.stderr[-500:]
    print(f"{target}: {took / 60:.2f} min, status {done.returncode}, {summary}", file=sys.stderr, flush=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if failed:
        print(*failed, sep="\n", file=sys.stderr, flush=True)
        Path(f"{timing}.failed.log").write_text(done.stdout)
    return {"minutes": round(took / 60, 2), "status": done.returncode, "summary": summary, "failed": failed}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.common.result import (
        budget,
        environment,
        finish,
    )  # beside this script; not on the path when this module is a pytest plugin

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=[*MINUTES_BUDGET], default="test")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside it")
    parser.add_argument("--timing", type=Path, default=Path(tempfile.gettempdir()) / "rankscope-suite.jsonl")
    options = parser.parse_args()
    with busy(options.busy):
        runs = [run(options.target, options.timing.resolve()) for _ in range(options.repeat)]
    tests = [json.loads(line) for line in options.timing.read_text().splitlines()]
    slowest = sorted(tests, key=lambda test: -test["seconds"])[:25]
    figures = {
        "target": f"make {options.target}",
        "busy_loops": options.busy,
        "runs": runs,
        "seconds_are": "of all workers together",
        "by_folder": table(tests, lambda test: "/".join(test["test"].split("/")[:2])),
        "by_kind": table(tests, kind),
        "slowest": [{"test": test["test"], "seconds": round(test["seconds"], 1), "kind": kind(test)} for test in slowest],
    }
    budgets = [budget("runs that failed", sum(row["status"] != 0 for row in runs), 0)]
    if not options.busy:
        budgets.append(budget("minutes of the slowest run", max(row["minutes"] for row in runs), MINUTES_BUDGET[options.target]))
    finish(figures, budgets, environment("pytest"))


if __name__ == "__main__":
    main()
