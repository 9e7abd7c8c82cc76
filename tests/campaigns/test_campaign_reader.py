"""Mutated real traces give an answer or one line, in bounded time and memory (`make campaign`; a few in every test run)."""

from __future__ import annotations

import json
import resource
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = Path(__file__).parent / "jobs" / "fuzzing.py"
CASES_PER_PROCESS = 2_000
PROCESSES = 20
MEMORY_BYTES = 1_500 * 1024**2
"""Address space limit of a process; mapped libraries take most of it."""
CPU_S = 3_000
SLOWEST_S = 20


def test_some_mutated_traces_yield_an_answer_or_a_one_line_error(example_traces: Path, tmp_path: Path) -> None:
    # given a few mutated traces, always the same
    job: dict[str, Any] = runpy.run_path(str(JOB))
    bases = job["load_bases"](example_traces, [f"variants/{name}/rank-0.json.gz" for name in ("today", "schema-2023")])
    # when each is analysed
    outcomes = [(seed, *job["run_case"](seed, bases, tmp_path)) for seed in range(40)]
    # then both kinds of outcome occur, and no other
    assert [result for result in outcomes if result[1] == "failure"] == []
    assert {outcome for _, outcome, _ in outcomes} == {"answer", "refused"}


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("process", range(PROCESSES))
def test_mutated_traces_yield_an_answer_or_a_one_line_error_within_limits(traces: Path, tmp_path: Path, process: int) -> None:
    # given many traces, in a process with limits of memory and CPU time
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    first = 1_000_000 * (process + 1)
    command = [sys.executable, JOB, traces, tmp_path, first, CASES_PER_PROCESS]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, preexec_fn=bound, check=False)
    # then the process finishes, no case failed, and none took long
    assert (done.returncode, done.stderr) == (0, "")
    *failures, counts = map(json.loads, done.stdout.splitlines())
    assert failures == []
    assert sum(counts["counts"].values()) == CASES_PER_PROCESS
    assert counts["counts"]["answer"] > CASES_PER_PROCESS / 10
    assert counts["slowest_s"] < SLOWEST_S, counts["slowest_seed"]
