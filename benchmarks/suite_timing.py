"""Pytest plugin: where the time of a test run goes.

    PYTHONPATH=benchmarks python -m pytest -p suite_timing --suite-timing timing.jsonl …

writes one JSON object per test: wall-clock seconds of set-up, call and tear-down, CPU seconds of the worker and of the
children it reaped, the kinds of programs that the test or its fixtures started, and the set-up time of each fixture.
``benchmarks/suite.py`` runs the suite with it and makes tables.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# First match wins; matched against the command line of each process that a test starts.
PROGRAMS = (
    ("pyinstaller", ("pyinstaller", "PyInstaller")),
    ("slurm", ("slurmctld", "slurmd", "munged", "sbatch", "srun", "sinfo", "squeue", "scancel")),
    ("ray", ("ray/", "raylet", "gcs_server")),
    ("alertmanager", ("prometheus-alertmanager", "amtool")),
    ("promtool", ("promtool",)),
    ("prometheus", ("prometheus",)),
    ("browser", ("chromium", "playwright")),
    ("gcc", ("gcc",)),
    ("demo", ("rankscope demo", "make demo")),
    ("torch job", ("torchrun", "torch.distributed", "tests/profiler/jobs", "tests/analysis/gloo_training", "slowing_training")),
    ("exporter", ("rankscope exporter",)),
    ("dashboard server", ("rankscope dashboard", "gunicorn")),
    ("alert process", ("rankscope alerts",)),
    ("command line", ("-m rankscope", "rankscope.cli")),
    ("other python", ("python",)),
)


def program(command: str) -> str:
    """Kind of program that a command line starts."""
    return next((kind for kind, marks in PROGRAMS if any(mark in command for mark in marks)), "other")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite-timing", metavar="FILE", help="write a JSON line per test: seconds, processes, fixtures")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--suite-timing")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(Path(path)), "suite-timing-collector")
    if path and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Meter(), "suite-timing-meter")


def _cpu_s() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class Meter:
    """In each worker: notes what each phase of a test costs and starts."""

    def __init__(self) -> None:
        self.started: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            command = arguments[1]
            words = [command] if isinstance(command, str | bytes) else command
            self.started.append(program(" ".join(os.fsdecode(word) for word in words)))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        begin, before = time.perf_counter(), len(self.started)
        try:
            return (yield)
        finally:
            took = time.perf_counter() - begin
            if took > 0.05:
                fixture = {
                    "name": fixturedef.argname,
                    "scope": fixturedef.scope,
                    "s": round(took, 3),
                    "programs": self.started[before:],
                }
                request._pyfuncitem.user_properties.append(("fixture", fixture))  # noqa: SLF001

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        report = yield
        report.suite_timing = {
            "cpu_s": round(_cpu_s() - getattr(item, "_cpu_began", 0.0), 3),
            "programs": self.started[getattr(item, "_started_before", 0) :],
            "hypothesis": bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False)),
            "fixtures": [value for name, value in item.user_properties if name == "fixture"],
        }
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: Any) -> None:
        item._cpu_began, item._started_before = _cpu_s(), len(self.started)


class Collector:
    """In the controlling process: writes what workers report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}
        path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self.tests.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed"})
        test[f"{report.when}_s"] = round(report.duration, 4)
        if report.outcome != "passed":
            test["outcome"] = report.outcome
        test.update(getattr(report, "suite_timing", {}))
        test["worker"] = getattr(getattr(report, "node", None), "gateway", None) and report.node.gateway.id
        if report.when == "teardown":
            with self.path.open("a") as file:
                file.write(json.dumps(self.tests.pop(report.nodeid)) + "\n")
