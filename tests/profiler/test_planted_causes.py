"""Causes that are planted in real jobs, also where work enters the model or in collectives: the verdict names them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import recorded_job
from tests.profiler.test_parallel import skip_what_torch_cannot

from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.analysis.engine import analyze
from rankscope.analysis.online import OnlineAnalysis
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


BATCHES_JOB = Path(__file__).parent / "jobs" / "batches.py"


GROWTH = 4


LOADED = 2 * 64 * 128


"""Elements of the two batches of a step, as loaded."""


ENTERING = LOADED + 2


"""Elements that the model is given on a rank without a fault: each call also takes a scale."""


@pytest.fixture(autouse=True)
def single_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread per rank, so that the ranks do not compete for the cores of a small machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def recorded(run_dir: Path, command: list[str]) -> RunReader:
    """Record a job."""
    assert recorded_job(command, run_dir).status == 0
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
def test_work_is_counted_at_the_model_input_and_graphs_stay_whole(
    torch_ranks: PreloadedTorch, tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    skip_what_torch_cannot(layout)
    run = recorded(tmp_path / "run", torch_ranks.command(2, BATCHES_JOB, layout, "enlarged", "8"))
    output = capfd.readouterr()
    assert "switched itself off" not in output.err
    # Accumulated batches add up, and evaluation does not count
    assert work(run, 0) == {(LOADED, ENTERING)}
    assert work(run, 1) == {(LOADED, GROWTH * LOADED + 2)}
    command = torch_ranks.command(1, BATCHES_JOB, layout, "none", "8")
    assert output.out == 2 * subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_batches_enlarged_after_the_loader_are_classified_as_imbalance(
    torch_ranks: PreloadedTorch, tmp_path: Path, layout: str
) -> None:
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
def test_slow_rank_with_equal_work_is_not_classified_as_imbalance(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", torch_ranks.command(2, BATCHES_JOB, "ddp", "slower", "120"))
    assert work(run, 0) == work(run, 1) == {(LOADED, ENTERING)}
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
def test_planted_cause_of_rank_0_is_found(
    torch_ranks: PreloadedTorch, tmp_path: Path, planted: str, expected: tuple[str, str | None, str | None]
) -> None:
    windows = {"window_first": 20, "window_every": 40, "window_steps": 2}
    assert recorded_job(torch_ranks.command(2, PLANTED_JOB, planted, "150"), tmp_path / "run", **windows).status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank) == ("straggler", 0), verdict.summary
    cause, explained_by, phase = expected
    assert (verdict.cause, verdict.explained_by) == (cause, explained_by), verdict.summary
    assert phase in (None, verdict.phase), verdict.summary
    assert "same work" not in verdict.summary


@pytest.mark.full
@pytest.mark.alone
def test_evaluation_on_all_ranks_is_host_bound_with_cause_evaluation(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    assert recorded_job(torch_ranks.command(2, PLANTED_JOB, "evaluation", "80"), tmp_path / "run").status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.cause) == ("host_bound", "evaluation"), verdict.summary
    evaluated = [step for step in RunReader(tmp_path / "run").steps(0, 0) if "eval" in step.tags]
    assert evaluated
    assert all(step.sections_us["eval"] > 200_000 for step in evaluated)


@pytest.mark.full
@pytest.mark.alone
def test_unsynchronised_garbage_collections_are_a_rotating_gc_straggler(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    assert recorded_job(torch_ranks.command(4, PLANTED_JOB, "gc", "150"), tmp_path / "run").status == 0
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.pattern, verdict.cause) == ("rotating", "gc"), verdict.summary


NCCL_JOB = Path(__file__).parent / "jobs" / "simulated_nccl.py"


RANKS = 3


def recorded_by_command(run: Path, kind: str, *options: str, steps: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run), "--window-steps", "0", "--no-hardware"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return subprocess.run(
        [*command, "--no-stacks", *options, "--", *torchrun, str(NCCL_JOB), kind, str(steps)],
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
def test_collective_durations_identify_the_straggler_of_a_recorded_job(
    tmp_path: Path, kind: str, source: str, steps: int
) -> None:
    run, plugin = tmp_path / "run", tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    # given a job that is recorded with a source of durations, and whose own times no step record knows
    options = ["--nccl-inspector", str(plugin)] if kind == "inspector" else ["--flight-recorder-times"]
    completed = recorded_by_command(run, kind, *options, steps=steps)
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


def test_missing_plugin_file_aborts_the_launch(tmp_path: Path) -> None:
    completed = recorded_by_command(tmp_path / "run", "inspector", "--nccl-inspector", str(tmp_path / "none.so"), steps=3)
    assert completed.returncode == 3
    assert "none.so" in completed.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_plugin_without_output_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "plugin.so").touch()
    completed = recorded_by_command(tmp_path / "run", "nothing", "--nccl-inspector", str(tmp_path / "plugin.so"), steps=10)
    assert completed.returncode == 0, completed.stderr
    # by the helper of one rank, and by the analysis
    assert completed.stderr.count("no log of NCCL Inspector") == 1, completed.stderr
    assert any("no log of NCCL Inspector" in warning for warning in analyze([tmp_path / "run"]).source.warnings)
