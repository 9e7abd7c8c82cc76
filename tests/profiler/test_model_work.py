"""Work where it enters the model: real jobs whose ranks' batches differ only after the loader."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.test_parallel import skip_what_torch_cannot

from rankscope.analysis.engine import analyze
from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parent / "jobs" / "batches.py"
GROWTH = 4
LOADED = 2 * 64 * 128
"""Elements of the two batches of a step, as loaded."""
GIVEN = LOADED + 2
"""Elements that the model is given on a rank without a fault: each call also takes a scale."""


@pytest.fixture(autouse=True)
def single_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread per rank, so that the ranks do not compete for the cores of a small machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def recorded(run_dir: Path, command: list[str]) -> RunReader:
    """Record a job."""
    assert launch(command, LaunchOptions(run_dir=run_dir, name="batches", window_steps=0, exporter_url=None)).status == 0
    return RunReader(run_dir)


def work(run: RunReader, rank: int) -> set[tuple[int | None, int | None]]:
    """Return the pairs of elements (loaded, given to the model) of all steps but the first.

    Of short steps, only one of 16 measures what the model was given.
    """
    steps = list(run.steps(0, rank))[1:]
    for start in range(0, len(steps) - 15, 16):
        assert any(step.model_elements is not None for step in steps[start : start + 16])
    return {(step.input_elements, step.model_elements) for step in steps if step.model_elements is not None}


@pytest.mark.parametrize(
    "layout",
    ["fsdp2+compile", *(pytest.param(each, marks=pytest.mark.full) for each in ("ddp", "fsdp2", "fsdp1", "ddp+compile"))],
)
def test_work_is_counted_where_it_enters_the_model_and_graphs_stay_the_same(
    torch_ranks: PreloadedTorch, tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    skip_what_torch_cannot(layout)
    run = recorded(tmp_path / "run", torch_ranks.command(2, JOB, layout, "enlarged", "8"))
    output = capfd.readouterr()
    assert "switched itself off" not in output.err
    # Accumulated batches add up, and evaluation does not count
    assert work(run, 0) == {(LOADED, GIVEN)}
    assert work(run, 1) == {(LOADED, GROWTH * LOADED + 2)}
    command = torch_ranks.command(1, JOB, layout, "none", "8")
    assert output.out == 2 * subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_batches_that_grow_after_the_loader_are_imbalance(torch_ranks: PreloadedTorch, tmp_path: Path, layout: str) -> None:
    skip_what_torch_cannot(layout)
    recorded(tmp_path / "run", torch_ranks.command(2, JOB, layout, "enlarged", "120"))
    result = analyze([tmp_path / "run"])
    verdict = result.verdict
    expected = ("straggler", 1, "imbalance", "enlarged_batches")
    assert (verdict.kind, verdict.rank, verdict.cause, verdict.explained_by) == expected, verdict.summary
    assert "after the loader" in verdict.summary
    assert "after the loader" in verdict.next[0]
    evidence = {row.name: row.value for row in result.findings[0].evidence}
    assert evidence["work_excess"] == pytest.approx(GROWTH - 1, abs=0.01)
    assert evidence["loaded_work_excess"] == 0


@pytest.mark.full
@pytest.mark.alone
def test_a_rank_that_is_slow_with_equal_work_is_not_imbalanced(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", torch_ranks.command(2, JOB, "ddp", "slower", "120"))
    assert work(run, 0) == work(run, 1) == {(LOADED, GIVEN)}
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == ("straggler", 1, "compute"), verdict.summary
