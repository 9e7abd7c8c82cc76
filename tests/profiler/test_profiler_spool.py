"""The text file of a rank, read back by Prometheus' own parser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from rankscope.profiler.spool import SpoolFile, Totals, remove_own, render, samples
from rankscope.runs.metrics import RANK_METRICS
from rankscope.runs.records import PhaseTimes, RankInfo, RunInfo, StepBreakdown, StepRecord

RUN = RunInfo(run_id='odd "id"\\ of\na run', name="é", start_unix_ns=1)
RANK = RankInfo(rank=3, world_size=8, host="node", pid=1, start_unix_ns=1)
STEP = StepRecord(step=0, start_unix_ns=10**18, wall_us=2e6, phases_us=PhaseTimes(forward=1.5e6, backward=0.5e6))


def parsed(totals: Totals, run: RunInfo = RUN) -> dict[tuple[str, str], float]:
    """Sample name and its own label to value."""
    text = render(run.run_id, RANK.rank, samples(run, replace(RANK, recorder_cost_us=250_000.0, dropped_records=2), totals))
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["run_id"] == run.run_id
            assert sample.labels["rank"] == "3"
            found[sample.name, sample.labels.get("phase") or sample.labels.get("state") or ""] = sample.value
    return found


def test_every_sample_is_in_the_table_with_the_labels_of_its_row() -> None:
    totals = Totals()
    totals.add_step(
        StepRecord(
            step=0,
            start_unix_ns=10**18,
            wall_us=2e6,
            phases_us=PhaseTimes(data=1e6, forward=1e6),
            blocked_us=PhaseTimes(forward=1e5),
            cpu_us=1e6,
            samples=4,
            input_elements=40,
            profiled=True,
        )
    )
    totals.add_window(
        StepBreakdown(
            step=0,
            start_unix_ns=1,
            device_kind="cpu",
            window_us=10.0,
            compute_us=4.0,
            communication_us=3.0,
            overlap_us=1.0,
            exposed_communication_us=2.0,
            memcpy_us=0.0,
            exposed_memcpy_us=0.0,
            idle_us=4.0,
            events=1,
        )
    )
    rows = {row.name: set(row.labels) for row in RANK_METRICS}
    seen = set()
    for name, labels, _ in samples(RUN, replace(RANK, recorder_cost_us=0.0, disabled_reason="x"), totals):
        assert set(labels) == rows[name]
        seen.add(name)
    assert seen == rows.keys()


def test_sums_grow_step_by_step() -> None:
    totals = Totals()
    totals.add_step(STEP)
    totals.add_step(STEP)
    found = parsed(totals)
    assert found["rank_steps_total", ""] == 2
    assert found["rank_step_seconds_total", ""] == pytest.approx(4)
    assert found["rank_phase_seconds_total", "forward"] == pytest.approx(3)
    assert found["rank_last_step_timestamp_seconds", ""] == pytest.approx(1e9 + 2)
    assert found["rank_recorder_dropped_total", ""] == 2


def test_what_has_no_signal_is_absent_not_zero() -> None:
    totals = Totals()
    totals.add_step(STEP)
    names = {name for name, _ in parsed(totals)}
    assert "rank_blocked_seconds_total" not in names
    assert "rank_samples_total" not in names
    assert "rank_window_seconds_total" not in names
    assert ("rank_phase_seconds_total", "data") not in parsed(totals)


def test_the_file_is_replaced_whole_readable_by_all_and_removed(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path, "../a run/é", 3)
    spool.write("first 1\n")
    spool.write("second 2\n")
    assert [entry.name for entry in tmp_path.iterdir()] == [spool.path.name]
    assert spool.path.parent == tmp_path
    assert spool.path.name.endswith("-3.prom")
    assert spool.path.read_text() == "second 2\n"
    assert spool.path.stat().st_mode & 0o444 == 0o444
    spool.remove()
    assert not any(tmp_path.iterdir())


def test_a_link_planted_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "spool"
    folder.mkdir()
    spool = SpoolFile(folder, "run", 0)
    spool.path.symlink_to(victim)
    spool.write("rank_steps_total 1\n")
    assert victim.read_text() == "mine"
    assert not spool.path.is_symlink()


def test_only_files_of_this_user_are_cleared_away_when_a_job_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    (tmp_path / "mine.prom").touch()
    (tmp_path / "other.prom").touch()
    (tmp_path / "link.prom").symlink_to(victim)
    remove_own(tmp_path, ["mine.prom", "link.prom", "gone.prom"])
    assert {entry.name for entry in tmp_path.iterdir()} == {"victim", "other.prom", "link.prom"}
    monkeypatch.setattr(os, "getuid", lambda: victim.stat().st_uid + 1)
    remove_own(tmp_path, ["other.prom"])
    assert (tmp_path / "other.prom").exists()
