"""Runs over hours whose hosts' clocks drift apart, analysed from the files to the verdict."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.analysis.breakdowns import breakdown
from tests.analysis.planted_clocks import START, Job, Planted, windows
from tests.step_files import append

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.selection import Selection
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, PhaseTimes, RankInfo, RunInfo, StepRecord
from rankscope.runs.small_files import create_attempt, create_run, write_record

SECOND = 1e9
LATE = 2
"""Rank that is 30 ms late to every collective."""


def make_run(path: Path, clocks: list[Planted]) -> Path:
    """Write a run of four ranks on four hosts: eight windows of three steps, ten minutes apart, of collectives on CPU threads."""
    ends, steps = windows(8, 24, gap=600 * SECOND, within=4 * SECOND)
    lag = np.random.default_rng(1).exponential(1e6, (len(ends), 4))
    lag[:, LATE] += 30e6
    job = Job(clocks, ends, steps, jitter=20_000.0, lag=lag)
    create_run(path, RunInfo(run_id="run-1", name="hours", start_unix_ns=START))
    create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=START, world_size=4, backend="gloo"))
    matches = job.matches()
    for rank in range(4):
        folder = rank_dir(path, 0, rank)
        info = RankInfo(
            rank=rank, world_size=4, host=f"n{rank}", pid=1, device_kind="cpu", start_unix_ns=START, end_reason="exit"
        )
        write_record(folder / "rank.json", info)
        collectives = [match.records[rank] for match in matches]
        records, breakdowns = [], []
        for step in sorted({match.step for match in matches}):
            own = [collective for collective in collectives if collective.step == step]
            first, last = own[0].enqueue_unix_ns - 10**8, own[-1].end_unix_ns
            wall = (last - first) / 1000
            records.append(
                StepRecord(step=step, start_unix_ns=first, wall_us=wall, phases_us=PhaseTimes(backward=wall), profiled=True)
            )
            busy = sum(collective.end_unix_ns - collective.enqueue_unix_ns for collective in own) / 1000
            times = {"compute": wall - busy, "exposed": busy}
            breakdowns.append(breakdown(step, **times, start_unix_ns=first, device_kind="cpu", window_basis="steps"))
        append(folder, "steps", *records)
        append(folder, "windows", *breakdowns)
        append(folder, "collectives", *collectives)
    return path


AGREED = [Planted()] * 4
DRIFTING = [Planted(), Planted(4e6, 50), Planted(-9e6), Planted(2e6, -15)]


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Analysis]:
    folder = tmp_path_factory.mktemp("runs")
    return analyze([make_run(folder / "agreed", AGREED)]), analyze([make_run(folder / "drifting", DRIFTING)])


def test_drifting_clocks_do_not_change_the_verdict(analyses: tuple[Analysis, Analysis]) -> None:
    agreed, drifting = analyses
    assert (agreed.verdict.kind, agreed.verdict.rank) == ("straggler", LATE)
    assert (drifting.verdict.kind, drifting.verdict.ranks) == ("straggler", [LATE])
    assert drifting.verdict.pattern == agreed.verdict.pattern
    assert drifting.verdict.cause == agreed.verdict.cause
    assert drifting.verdict.slowdown == pytest.approx(agreed.verdict.slowdown, rel=0.01)
    for row, other in zip(agreed.imposed_wait, drifting.imposed_wait, strict=True):
        assert row.rank == other.rank
        assert row.imposed_us == pytest.approx(other.imposed_us, rel=0.01, abs=1000)


def test_offset_drift_and_residual_of_each_rank_are_published(analyses: tuple[Analysis, Analysis]) -> None:
    agreed, drifting = analyses
    assert [row.clock.drift_ppm for row in agreed.ranks if row.clock] == [None] * 4
    assert drifting.collectives.clock_residual_us is not None
    assert drifting.collectives.clock_residual_us < 200
    clocks = [row["clock"] for row in msgspec.to_builtins(drifting)["ranks"]]
    assert set(clocks[0]) == {"offset_us", "drift_ppm", "settings", "residual_us"}
    drifts = [clock["drift_ppm"] or 0.0 for clock in clocks]
    assert [drift - drifts[0] for drift in drifts] == pytest.approx([0, 50, 0, -15], abs=0.5)
    assert all(0 < clock["residual_us"] < 100 for clock in clocks)
    assert "clocks drift" not in render_text(agreed, detail=True)
    assert "clocks drift, that of rank 1 most, by 50 us per second: corrected" in " ".join(
        render_text(drifting, detail=True).split()
    )


def test_steps_between_two_windows_use_one_clock_in_perfetto(tmp_path: Path) -> None:
    # given a clock that is 30 ms further ahead in each window than in the one before, and a step halfway between two of them
    path = make_run(tmp_path / "run", DRIFTING)
    halfway = round(START + 3.5 * 600 * SECOND)
    for rank, clock in enumerate(DRIFTING):
        ahead = round(clock.ahead(np.array([3.5 * 600 * SECOND]))[0])
        step = StepRecord(step=3500, start_unix_ns=halfway + ahead, wall_us=1e6, phases_us=PhaseTimes(backward=1e6))
        append(rank_dir(path, 0, rank), "steps", step)
    # when that alone is exported
    data = bytearray()
    export = export_perfetto([path], data.extend, selection=Selection(StepRange(3500, 3501)), verdict=False)
    # then it begins on all ranks at once
    starts = [event["ts"] for event in msgspec.json.decode(data)["traceEvents"] if event.get("name") == "step 3500"]
    assert len(starts) == 4
    assert max(starts) - min(starts) < 100
    assert export.clock.fitted_to == "steps 0 to 7002"
    assert {1, 3} <= set(export.clock.changing)
    assert export.clock.residual_us is not None
    assert export.clock.residual_us < 200
    assert export.clock.drift_ppm[1] - export.clock.drift_ppm.get(0, 0.0) == pytest.approx(50, abs=0.5)
