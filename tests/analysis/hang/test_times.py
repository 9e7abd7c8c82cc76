"""What the times of dumps show, and what they do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.dumped_job import PENDING, DumpedJob
from tests.flight_dump_files import SECOND, START_NS, write

from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.hang_result import HangReport

DAY = 86_400.0


def running_job(*, pending: int = 1, ahead_s: float = 0.0, behind: int = 0) -> dict[int, dict[str, Any]]:
    """Return dumps of a job of four ranks, the last of whose collectives are pending; rank 2 is some collectives behind.

    ``ahead_s``: time by which the hosts are ahead of the devices.
    """
    dumps = DumpedJob.of_events({"0": range(4)}, ["0"] * 60, ahead=60).dumps()
    for rank, dump in dumps.items():
        dump["entries"] = dump["entries"][: 60 - (behind if rank == 2 else 0)]
        for entry in dump["entries"]:
            entry["time_discovered_completed_ns"] += int(ahead_s * SECOND)
        for entry in dump["entries"][-pending:]:
            entry.update(PENDING)
        for status in dump["pg_status"].values():
            status["last_enqueued_collective"] = len(dump["entries"])
    return dumps


def hung_job(timeout_ms: int = 600_000) -> dict[int, dict[str, Any]]:
    """Return dumps of a job whose rank 2 does not arrive at the tenth collective."""
    dumps = DumpedJob.of_events({"0": range(4)}, ["0"] * 10, stops={2: 9}).dumps()
    for dump in dumps.values():
        for entry in dump["entries"]:
            entry["timeout_ms"] = timeout_ms
    return dumps


def report(folder: Path, dumps: dict[int, dict[str, Any]], after_s: float) -> HangReport:
    """Return the report on files written so long after the last operation."""
    last = max(entry["time_created_ns"] for dump in dumps.values() for entry in dump["entries"])
    return analyze_hang([write(folder, dumps, waited_s=(last - START_NS) / SECOND + after_s)])


@pytest.mark.parametrize("after_s", [-20.0, -0.2, 0.05, 3.0])
@pytest.mark.parametrize(("pending", "behind"), [(1, 0), (1, 1), (3, 4)])
def test_clock_differences_do_not_look_like_a_hang(tmp_path: Path, after_s: float, pending: int, behind: int) -> None:
    assert report(tmp_path, running_job(pending=pending, behind=behind), after_s).kind == "no_hang"


@pytest.mark.parametrize("after_s", [6.0, 30.0, 1200.0, 2 * DAY])
def test_files_with_unreliable_times_make_no_culprit_certain(tmp_path: Path, after_s: float) -> None:
    hang_report = report(tmp_path, running_job(pending=3, behind=4), after_s)
    assert not any(culprit.certain for culprit in hang_report.evidence)
    assert not any("without that GPU" in line for line in hang_report.next)
    is_copied = after_s > 600
    assert ("time of the dumps is not known" in hang_report.summary) == is_copied
    assert any("less than a minute" in warning for warning in hang_report.warnings) != is_copied


def test_rank_that_completes_operations_until_its_dump_does_not_hang(tmp_path: Path) -> None:
    # Given hosts that enqueued half a minute of work ahead
    assert report(tmp_path, running_job(pending=20, ahead_s=30.0), 30.1).kind == "no_hang"
    assert report(tmp_path, running_job(pending=20), 100.0).kind == "hang"


def test_work_completed_in_another_group_counts_as_progress(tmp_path: Path) -> None:
    dumps = DumpedJob.of_events({"0": range(4), "1": range(4)}, ["1", *["0"] * 50]).dumps()
    for rank, dump in dumps.items():
        first = dump["entries"][0]
        first |= PENDING
        if rank == 3:
            dump["entries"].remove(first)
            dump["pg_status"] = {key: status for key, status in dump["pg_status"].items() if key == "0"}
        first["time_created_ns"] -= 40 * SECOND
    assert report(tmp_path, dumps, 0.1).kind == "no_hang"
    assert report(tmp_path, dumps, 100.0).culprits == [3]


def test_operation_beyond_its_timeout_is_a_hang_after_any_wait(tmp_path: Path) -> None:
    hang_report = report(tmp_path, hung_job(timeout_ms=3000), 3.3)
    assert (hang_report.kind, hang_report.culprits, hang_report.evidence[0].certain) == ("hang", [2], True)
    assert report(tmp_path, hung_job(timeout_ms=30_000), 3.3).kind == "no_hang"


def test_hang_is_certain_with_reliable_times(tmp_path: Path) -> None:
    hang_report = report(tmp_path, hung_job(), 211.0)
    assert (hang_report.culprits, hang_report.evidence[0].certain) == ([2], True)
    assert "not known" not in hang_report.summary


def test_late_rank_is_named_although_the_clock_of_its_host_is_behind(tmp_path: Path) -> None:
    dumps = hung_job()
    for entry in dumps[2]["entries"]:
        entry["time_created_ns"] -= 1800 * SECOND
        entry["time_discovered_completed_ns"] -= 1800 * SECOND
    folder = write(tmp_path, dumps, waited_s=211.0)
    taken = START_NS - (1800 - 211) * SECOND
    os.utime(folder / "dump_2", ns=(taken, taken))
    assert analyze_hang([folder]).culprits == [2]


@pytest.mark.parametrize("after_s", [6.0, 2 * DAY])
def test_mismatch_is_certain_at_any_time(tmp_path: Path, after_s: float) -> None:
    dumps = DumpedJob.of_events({"0": range(4)}, ["0"] * 10).dumps()
    for rank, dump in dumps.items():
        dump["entries"][-1].update(PENDING, **({"input_sizes": [[9]], "output_sizes": [[9]]} if rank == 2 else {}))
    hang_report = report(tmp_path, dumps, after_s)
    assert (hang_report.cause, [culprit.certain for culprit in hang_report.evidence]) == ("mismatch", [True])
    assert "not known" not in hang_report.summary
    assert hang_report.warnings == []
