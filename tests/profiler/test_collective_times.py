"""Durations of collectives in a recorded job: a real one, whose ranks leave what those of a simulated NCCL job leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.analysis.engine import analyze
from rankscope.analysis.online import OnlineAnalysis
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.runs.reader import RunReader

JOB = Path(__file__).parent / "jobs" / "plays_nccl.py"
RANKS = 3

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


def recorded(run: Path, kind: str, *options: str, steps: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--window-steps", "0", "--no-hardware"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return subprocess.run(
        [*command, "--no-stacks", *options, "--", *torchrun, str(JOB), kind, str(steps)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "source", "steps"),
    [("inspector", "nccl_inspector", 60), ("flight", "flight_recorder", 140)],
)
def test_a_recorded_job_names_the_rank_by_durations_of_collectives(tmp_path: Path, kind: str, source: str, steps: int) -> None:
    run, plugin = tmp_path / "run", tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    # given a job that is recorded with a source of durations, and whose own times no step record knows
    options = ["--nccl-inspector", str(plugin)] if kind == "inspector" else ["--flight-recorder-times"]
    completed = recorded(run, kind, *options, steps=steps)
    assert completed.returncode == 0, completed.stderr
    reader = RunReader(run)
    assert all(record.own_us is None for record in reader.steps(0, 0))
    # then the verdict at its end, the analysis, a live one and the page name the rank
    assert "STRAGGLER" in completed.stderr, completed.stderr
    assert "Rank 1" in completed.stderr
    analysis = analyze([run])
    for item in (analysis, OnlineAnalysis(run).update(), RunData(source_ := DiskRuns(run), source_.runs()[0]).analysis):
        assert (item.verdict.kind, item.verdict.ranks, item.verdict.evidence_source) == ("straggler", [1], source)
    # and so does the watcher
    (alert, *_) = candidates(analysis)
    assert (alert.name, alert.alert.labels["rank"]) == ("TrainingStraggler", "1")
    # and the steps are those of the run
    assert any(f"{RANKS} of {RANKS} ranks" in warning and "inferred" not in warning for warning in analysis.source.warnings)
    numbers = {record.step for record in reader.steps(0, 0)}
    assert analysis.verdict.steps is not None
    assert set(range(*analysis.verdict.steps)) <= numbers
    assert len(range(*analysis.verdict.steps)) >= 20
    # and nothing but records is left of the source
    assert not (run / "inspector-logs").exists()
    assert "no durations" not in completed.stderr


def test_a_plugin_that_does_not_exist_ends_the_launch(tmp_path: Path) -> None:
    completed = recorded(tmp_path / "run", "inspector", "--nccl-inspector", str(tmp_path / "none.so"), steps=3)
    assert completed.returncode == 3
    assert "none.so" in completed.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_plugin_that_writes_nothing_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "plugin.so").touch()
    completed = recorded(tmp_path / "run", "nothing", "--nccl-inspector", str(tmp_path / "plugin.so"), steps=10)
    assert completed.returncode == 0, completed.stderr
    # by the helper of one rank, and by the analysis
    assert completed.stderr.count("no log of NCCL Inspector") == 1, completed.stderr
    assert any("no log of NCCL Inspector" in warning for warning in analyze([tmp_path / "run"]).source.warnings)
