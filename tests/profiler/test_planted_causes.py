"""Causes that are planted in real jobs: the verdict names the rank and the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

from rankscope.analysis.engine import analyze
from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.alone, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parent / "jobs" / "planted.py"


@pytest.fixture(autouse=True)
def single_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread per rank, so that the ranks do not compete for the cores of a small machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ("sleep", ("host", None, "forward")),
        ("sleep_between", ("host", None, "forward")),  # without a data loader, forward begins where the step does
        ("block", ("imbalance", "more_calls", None)),
        ("profiler", ("host", "profiler", None)),
        ("cprofile", ("host", "profiler", "forward")),
        ("dispatch", ("input", "no_workers", "data")),
    ],
)
def test_the_planted_cause_of_rank_0_is_found(
    torch_ranks: PreloadedTorch, tmp_path: Path, planted: str, expected: tuple[str, str | None, str | None]
) -> None:
    options = LaunchOptions(
        run_dir=tmp_path / "run", name=planted, window_first=20, window_every=40, window_steps=2, exporter_url=None
    )
    assert launch(torch_ranks.command(2, JOB, planted, "150"), options).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank) == ("straggler", 0), verdict.summary
    cause, explained_by, phase = expected
    assert (verdict.cause, verdict.explained_by) == (cause, explained_by), verdict.summary
    assert phase in (None, verdict.phase), verdict.summary
    assert "same work" not in verdict.summary


def test_an_evaluation_of_all_ranks_limits_the_step(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    options = LaunchOptions(run_dir=tmp_path / "run", name="evaluation", window_steps=0, exporter_url=None)
    assert launch(torch_ranks.command(2, JOB, "evaluation", "80"), options).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.cause) == ("host_bound", "evaluation"), verdict.summary
    evaluated = [step for step in RunReader(tmp_path / "run").steps(0, 0) if "eval" in step.tags]
    assert evaluated
    assert all(step.sections_us["eval"] > 200_000 for step in evaluated)


def test_collections_at_other_times_on_each_rank_are_the_cause(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    options = LaunchOptions(run_dir=tmp_path / "run", name="gc", window_steps=0, exporter_url=None)
    assert launch(torch_ranks.command(4, JOB, "gc", "150"), options).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.pattern, verdict.cause) == ("rotating", "gc"), verdict.summary
