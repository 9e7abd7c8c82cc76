"""Verdict on a run with Flight Recorder dumps: a hang, unless the run continued."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dumped_job import DumpedJob
from tests.step_files import add_rows, load, steps_file

import rankscope.analysis
from rankscope.analysis.engine import analyze
from rankscope.analysis.hang.hang_terminal import render_text
from rankscope.analysis.hang.ras.joining import analyze_job
from rankscope.runs.paths import flight_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.small_files import write_record

Synthetic = Callable[..., Any]
STEP_NS = 110_000_000


def hung(synthetic: Synthetic, *, wait_s: float, stops: dict[int, int], end: str | None = None) -> Path:
    """Write a run of 40 steps whose ranks, except ``stops``, then enter a collective; dumps are taken ``wait_s`` later."""
    run: Path = synthetic().write()
    begun = 10**18 + 40 * STEP_NS + 10**9
    dumps = DumpedJob.of_events({"0": range(4)}, ["0"] * 5, stops=stops, descriptions={"0": "default_pg"}).dumps()
    flight = flight_dir(run, 0)
    flight.mkdir()
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            entry["time_created_ns"], entry["time_discovered_completed_ns"] = begun, None
        path = flight / f"rank-{rank:05d}-1000000000000000000-aaaaaaaa-nccl.pickle"
        path.write_bytes(pickle.dumps(dump, 2))
        os.utime(path, ns=(begun + int(wait_s * 1e9),) * 2)
        info = RunReader(run).rank(0, rank)
        assert info is not None
        write_record(rank_dir(run, 0, rank) / "rank.json", msgspec.structs.replace(info, end_reason=end))
    return run


def test_silent_run_with_dumps_of_a_hang_is_a_hang(synthetic: Synthetic) -> None:
    # Given a run of the year 2001 whose ranks never recorded an end
    run = hung(synthetic, wait_s=60, stops={2: 3})
    analysis = analyze([run])
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.group) == ("hang", 2, [2], "default_pg")
    assert verdict.next[0].endswith(f": rankscope hang {run}"), "a command that can be copied"
    finding = analysis.findings[0]
    assert (finding.kind, finding.rank, finding.host) == ("hang", 2, "n1")
    assert {row.name: row.value for row in finding.evidence}["waited"] == pytest.approx(60)


@pytest.mark.parametrize("end", ["killed", "interrupted"])
def test_ranks_ended_by_watchdog_or_user_are_reported_as_a_hang(synthetic: Synthetic, end: str) -> None:
    verdict = analyze([hung(synthetic, wait_s=60, stops={2: 3}, end=end)]).verdict
    assert (verdict.kind, verdict.ranks) == ("hang", [2])
    assert ("error output" in verdict.next[-1]) == (end == "killed")


def test_verdict_names_the_last_script_line_of_the_culprit(synthetic: Synthetic) -> None:
    # Given dumps with stacks, whose innermost frames are of libraries, and a script in a folder of the name of this package
    recorder = Path(rankscope.analysis.__file__).parents[1] / "profiler/rank/wrappers/ddp.py"
    run = hung(synthetic, wait_s=60, stops={2: 3})
    for path in flight_dir(run, 0).iterdir():
        dump = pickle.loads(path.read_bytes())
        for entry in dump["entries"]:
            entry["frames"] = [
                {"filename": "/venv/lib/python3.11/site-packages/torch/_tensor.py", "line": 5, "name": "backward"},
                {"filename": str(recorder), "line": 6, "name": "hook"},
                {"filename": "/home/me/rankscope/train.py", "line": 42, "name": "main"},
            ]
        path.write_bytes(pickle.dumps(dump, 2))
    analysis = analyze([run])
    assert "train.py:42" in analysis.verdict.summary
    assert analysis.findings[0].summary == analysis.verdict.summary


@pytest.mark.parametrize(
    ("wait_s", "stops", "end"),
    [
        (60, {2: 3}, "exit"),  # it completed nevertheless
        (60, {}, None),  # the dumps show no hang
        (1, {2: 3}, None),  # nor does a wait of one second
    ],
)
def test_verdict_without_a_hang_is_unchanged(synthetic: Synthetic, wait_s: float, stops: dict[int, int], end: str | None) -> None:
    assert analyze([hung(synthetic, wait_s=wait_s, stops=stops, end=end)]).verdict.kind == "balanced"


def test_run_with_steps_after_its_dumps_does_not_hang(synthetic: Synthetic) -> None:
    run = hung(synthetic, wait_s=60, stops={2: 3})
    later = load(steps_file(run, 0))[-1:]
    later["step"] += 1
    later["start_unix_ns"] += 120 * 10**9
    add_rows(steps_file(run, 0), later)
    assert analyze([run]).verdict.kind == "balanced"
    # and `rankscope hang` agrees
    report = analyze_job([run])
    assert (report.kind, report.culprits, report.evidence, report.next) == ("no_hang", [], [], [])
    assert "the job went on" in report.summary
    assert any("by the dumps alone: Rank 2" in warning for warning in report.warnings)


def test_report_shows_the_age_of_the_dumps(synthetic: Synthetic) -> None:
    run = hung(synthetic, wait_s=60, stops={2: 3})
    report = analyze_job([run])
    assert report.dumped_unix_ns is not None
    assert "taken 2001-09-" in render_text(report)
    fresh = msgspec.structs.replace(report, dumped_unix_ns=time.time_ns() - 45 * 10**9)
    assert re.search(r"dumps of 4 of 4 ranks, taken .*, 4[5-9] s ago", render_text(fresh))


def test_unreadable_dumps_do_not_change_the_verdict(synthetic: Synthetic) -> None:
    run = hung(synthetic, wait_s=60, stops={2: 3})
    for path in flight_dir(run, 0).iterdir():
        path.write_bytes(b"\x80\x02cos\nsystem\n(tR.")
    assert analyze([run]).verdict.kind == "balanced"
