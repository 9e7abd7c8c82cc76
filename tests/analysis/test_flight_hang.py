"""Analysis of Flight Recorder dumps of a job that hangs: the verdict is that of `rankscope hang`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.analysis.flight_dumps import STEP_NS, Job, always

from rankscope.analysis.engine import analyze
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.report.terminal import render_text
from rankscope.base.errors import InputError

STEPS = 20
BEGUN_NS = 1_700_000_000_000_000_000 + 1_000_000_000 + STEPS * STEP_NS


def hanging(
    folder: Path,
    *,
    late: Sequence[int] = (2,),
    waited_s: float = 211.0,
    timed: bool = True,
    as_json: bool = False,
    dp: int = 4,
    tp: int = 1,
) -> Path:
    """Write the dumps of a job that trained evenly, until all ranks but the ``late`` ones entered one more collective."""
    job = Job(always(-1, 0.0), dp=dp, tp=tp, steps=STEPS)
    waiting = {rank: 0.0 for rank in range(job.world) if rank not in late}
    job.issue("0", "all_reduce", [1000], 1_000_000_000 + STEPS * STEP_NS, waiting, autograd=False)
    for rank in waiting:
        pending = {"state": "started", "retired": False, "time_discovered_completed_ns": None, "duration_ms": None}
        job.entries[rank][-1] |= pending
    if not timed:
        for entries in job.entries:
            for entry in entries:
                entry.pop("duration_ms")
    job.write(folder, as_json=as_json)
    for file in folder.iterdir():
        os.utime(file, ns=(BEGUN_NS + int(waited_s * 1e9),) * 2)
    return folder


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_verdict_on_dumps_of_a_hang_equals_the_hang_report(tmp_path: Path, timed: bool, as_json: bool) -> None:
    folder = hanging(tmp_path / "dumps", timed=timed, as_json=as_json)
    report, analysis = analyze_hang([folder]), analyze([folder])
    verdict, finding = analysis.verdict, analysis.findings[0]
    assert (report.kind, report.culprits) == ("hang", [2])
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.group) == ("hang", 2, [2], "default_pg")
    assert verdict.summary.startswith(report.summary)
    assert verdict.next == [f"See who waits in what: rankscope hang {folder}", *report.next]
    assert (finding.kind, finding.rank, finding.summary) == ("hang", 2, verdict.summary)
    assert {row.name: row.value for row in finding.evidence}["waited"] == pytest.approx(211)
    # and no line says that nothing is wrong
    text = render_text(analysis)
    assert text.startswith("HANG")
    assert "balanced" not in text.lower()
    assert "No rank" not in text


def test_short_waits_are_no_hang(tmp_path: Path) -> None:
    assert analyze([hanging(tmp_path / "dumps", waited_s=2.0)]).verdict.kind == "balanced"
    # and without durations there is nothing to judge by
    with pytest.raises(InputError, match="no collective has a duration"):
        analyze([hanging(tmp_path / "untimed", waited_s=2.0, timed=False)])


def test_hang_without_a_culprit_is_a_hang(tmp_path: Path) -> None:
    verdict = analyze([hanging(tmp_path / "dumps", late=())]).verdict
    assert (verdict.kind, verdict.rank, verdict.ranks) == ("hang", None, [])


@pytest.mark.parametrize("timed", [True, False])
def test_ranks_waiting_for_ranks_without_a_dump_are_not_balanced(tmp_path: Path, timed: bool) -> None:
    # Given a group of two ranks whose dumps are complete, and a group of eight in which they wait
    folder = hanging(tmp_path / "dumps", late=(), timed=timed, dp=4, tp=2)
    for rank in range(2, 8):
        (folder / f"dump_{rank}").unlink()
    verdict, report = analyze([folder]).verdict, analyze_hang([folder])
    assert report.kind == "insufficient_data"
    assert (verdict.kind, verdict.summary, verdict.next) == ("insufficient_data", report.summary, report.next)


def test_straggler_before_the_hang_remains_a_finding(tmp_path: Path) -> None:
    job = Job(always(1, 15.0), steps=STEPS)
    job.issue("0", "all_reduce", [1000], 1_000_000_000 + STEPS * STEP_NS, dict.fromkeys(range(3), 0.0), autograd=False)
    for rank in range(3):
        job.entries[rank][-1] |= {"state": "started", "retired": False, "time_discovered_completed_ns": None, "duration_ms": None}
    folder = job.write(tmp_path / "dumps")
    analysis = analyze([folder])
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("hang", [3])
    assert [(finding.kind, finding.rank) for finding in analysis.findings] == [("hang", 3), ("straggler", 1)]


def test_dumps_read_in_parallel_or_by_name_give_the_same_verdict(tmp_path: Path) -> None:
    folder = hanging(tmp_path / "some dumps")
    files = sorted(folder.iterdir())
    verdict = analyze([*files], engine=LocalEngine(2)).verdict
    assert (verdict.kind, verdict.ranks) == ("hang", [2])
    assert verdict.next[0].startswith("See who waits in what: rankscope hang '")
    assert str(files[3]) in verdict.next[0]


def test_unknown_dump_version_causes_one_warning(tmp_path: Path) -> None:
    job = Job(always(2, 15.0))
    document = job.document
    job.document = lambda rank: {**document(rank), "version": "2.99"}  # type: ignore[method-assign]
    analysis = analyze([job.write(tmp_path / "dumps")])
    assert analysis.verdict.ranks == [2]
    assert len(analysis.source.warnings) == 1
    assert "2.99" in analysis.source.warnings[0]
