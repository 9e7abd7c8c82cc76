"""Causes that are planted in real jobs, also where work enters the model: the verdict names the rank and the cause."""

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


BATCHES_JOB = Path(__file__).parent / "jobs" / "batches.py"
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
def test_work_is_counted_where_it_enters_the_model_and_graphs_stay_whole(
    torch_ranks: PreloadedTorch, tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    skip_what_torch_cannot(layout)
    run = recorded(tmp_path / "run", torch_ranks.command(2, BATCHES_JOB, layout, "enlarged", "8"))
    output = capfd.readouterr()
    assert "switched itself off" not in output.err
    # Accumulated batches add up, and evaluation does not count
    assert work(run, 0) == {(LOADED, GIVEN)}
    assert work(run, 1) == {(LOADED, GROWTH * LOADED + 2)}
    command = torch_ranks.command(1, BATCHES_JOB, layout, "none", "8")
    assert output.out == 2 * subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_batches_that_grow_after_the_loader_are_imbalance(torch_ranks: PreloadedTorch, tmp_path: Path, layout: str) -> None:
    skip_what_torch_cannot(layout)
    recorded(tmp_path / "run", torch_ranks.command(2, BATCHES_JOB, layout, "enlarged", "120"))
    analysis = analyze([tmp_path / "run"])
    verdict = analysis.verdict
    expected = ("straggler", 1, "imbalance", "enlarged_batches")
    assert (verdict.kind, verdict.rank, verdict.cause, verdict.explained_by) == expected, verdict.summary
    assert "after the loader" in verdict.summary
    assert "after the loader" in verdict.next[0]
    evidence = {row.name: row.value for row in analysis.findings[0].evidence}
    assert evidence["work_excess"] == pytest.approx(GROWTH - 1, abs=0.01)
    assert evidence["loaded_work_excess"] == 0


@pytest.mark.full
@pytest.mark.alone
def test_a_rank_that_is_slow_with_equal_work_is_not_imbalanced(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", torch_ranks.command(2, BATCHES_JOB, "ddp", "slower", "120"))
    assert work(run, 0) == work(run, 1) == {(LOADED, GIVEN)}
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == ("straggler", 1, "compute"), verdict.summary


PLANTED_JOB = Path(__file__).parent / "jobs" / "planted.py"


@pytest.mark.full
@pytest.mark.alone
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
    assert launch(torch_ranks.command(2, PLANTED_JOB, planted, "150"), options).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank) == ("straggler", 0), verdict.summary
    cause, explained_by, phase = expected
    assert (verdict.cause, verdict.explained_by) == (cause, explained_by), verdict.summary
    assert phase in (None, verdict.phase), verdict.summary
    assert "same work" not in verdict.summary


@pytest.mark.full
@pytest.mark.alone
def test_an_evaluation_of_all_ranks_limits_the_step(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    options = LaunchOptions(run_dir=tmp_path / "run", name="evaluation", window_steps=0, exporter_url=None)
    assert launch(torch_ranks.command(2, PLANTED_JOB, "evaluation", "80"), options).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.cause) == ("host_bound", "evaluation"), verdict.summary
    evaluated = [step for step in RunReader(tmp_path / "run").steps(0, 0) if "eval" in step.tags]
    assert evaluated
    assert all(step.sections_us["eval"] > 200_000 for step in evaluated)


@pytest.mark.full
@pytest.mark.alone
def test_collections_at_other_times_on_each_rank_are_the_cause(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    options = LaunchOptions(run_dir=tmp_path / "run", name="gc", window_steps=0, exporter_url=None)
    assert launch(torch_ranks.command(4, PLANTED_JOB, "gc", "150"), options).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.pattern, verdict.cause) == ("rotating", "gc"), verdict.summary
