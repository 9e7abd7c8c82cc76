"""Kinds of training loops in one process, also on several threads, each recorded with the launcher."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import info_of, recorded_job

from rankscope.profiler.work import MAX_METRICS
from rankscope.runs.reader import RunReader, is_run
from rankscope.runs.records import PHASES, StepRecord

JOB = Path(__file__).parent / "jobs" / "tiny_loop.py"


STEPS = 12


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


Record = Callable[..., int]


@pytest.fixture
def record(torch_ranks: PreloadedTorch, tmp_path: Path) -> Record:
    """Function ``record(kind)``, which records this kind of loop into ``tmp_path / "run"`` and returns the exit status."""

    def record(kind: str, *, windows: int = 0) -> int:
        options = {"window_first": 4, "window_every": 0, "window_steps": windows}
        return recorded_job(torch_ranks.command(0, JOB, kind), tmp_path / "run", **options).status

    return record


def recorded(run_dir: Path) -> list[StepRecord]:
    """Return the step records of the only rank."""
    return list(RunReader(run_dir).steps(0, 0))


def test_single_rank_has_zero_blocked_time(record: Record, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert record("plain", windows=2) == 0
    assert capfd.readouterr().err == ""
    records = recorded(tmp_path / "run")
    assert [row.step for row in records] == list(range(STEPS))
    assert {row.blocked_total_us for row in records} == {0.0}
    assert [row.step for row in records if "checkpoint" in row.tags] == [6]
    assert len(list(RunReader(tmp_path / "run").windows(0, 0))) == 2


def test_crash_is_recorded_and_the_exit_status_is_that_of_the_job(
    record: Record, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert record("crash") == 1
    info = info_of(tmp_path / "run")
    assert info.end_reason == "crash"
    assert len(recorded(tmp_path / "run")) == STEPS
    assert "the script's own error" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        # Without a data loader the begin of the first step is unknown: it has a number but no record.
        ("accumulate", range(1, STEPS)),
        ("scaler", range(1, STEPS)),
        ("compiled", range(1, STEPS)),
        ("gan", range(1, STEPS)),
        ("inside_backward", range(1, STEPS)),
        ("closures", range(1, STEPS)),
        ("lbfgs", range(1, STEPS)),
        # Only the next step of the new optimizer shows whether the old one still steps.
        ("swapped", range(1, STEPS - 1)),
        # As with data below, and one more: only the new optimizer's next step shows that the old one is over.
        ("replaced", range(1, STEPS - 3)),
    ],
)
def test_steps_match_the_step_numbers_of_the_script(
    record: Record, tmp_path: Path, kind: str, numbers: range, capfd: pytest.CaptureFixture[str]
) -> None:
    assert record(kind) == 0
    assert capfd.readouterr().out == ("1 graph\n" if kind == "compiled" else "")
    records = recorded(tmp_path / "run")
    assert [row.step for row in records] == list(numbers)
    assert all(row.phases_us.data is None for row in records), "there was no data loader"
    if kind == "scaler":
        assert [row.step for row in records if "optimizer_skipped" in row.tags] == [2, 5, 8, 11]


def test_recording_continues_when_a_failed_optimizer_is_replaced(record: Record, tmp_path: Path) -> None:
    assert record("replaced_with_data") == 0
    records = recorded(tmp_path / "run")
    # One record spans the step that raised, the first of the new optimizer, which may still be one of several, and its second.
    assert [row.step for row in records] == list(range(STEPS - 2))
    assert [row.step for row in records if row.samples == 3 * 4] == [STEPS // 2 - 1]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("profiled", "another profiler was started"), ("scheduled", "another profiler is on")],
)
def test_profiler_of_the_script_takes_precedence(
    record: Record, tmp_path: Path, kind: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # The script's profiler starts in the middle of a window, or is warming up when one is due.
    assert record(kind, windows=3) == 0
    output = capfd.readouterr()
    assert "own profile True" in output.out
    assert reason in output.err
    assert not list(RunReader(tmp_path / "run").windows(0, 0))
    assert len(recorded(tmp_path / "run")) == STEPS - 1


def test_job_without_training_leaves_no_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print('torch' in sys.modules, *sys.argv[1:]); sys.exit(7)")
    outcome = recorded_job([sys.executable, str(script), "--flag"], tmp_path / "deep" / "run")
    assert outcome.status == 7
    assert not is_run(outcome.run_dir)
    assert not (tmp_path / "deep").exists()
    output = capfd.readouterr()
    assert (output.out, output.err) == ("False --flag\n", "")


PAUSE_US = 90_000


def test_evaluations_and_checkpoints_are_counted_as_between_steps(record: Record, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    assert record("evaluates") == 0
    records = recorded(tmp_path / "run")
    assert [row.step for row in records] == list(range(STEPS))
    assert {row.samples for row in records} == {4}, "only what training worked on"
    assert {row.step: row.tags for row in records if set(row.tags) - {"gc"}} == {
        2: ["eval"],
        4: ["eval"],
        6: ["eval"],
        8: ["checkpoint"],
        10: ["checkpoint"],
    }
    for row in records:
        between = row.phases_us.between_steps or 0
        assert (between > PAUSE_US) == (row.step in (2, 4, 6)) or row.step == 8
        assert sum(row.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(row.wall_us, rel=1e-6)
    for row in records[2:7:2]:
        assert (row.phases_us.data or 0) + (row.phases_us.forward or 0) < (row.phases_us.between_steps or 0)
    assert any(row.resident_bytes for row in records), "memory is read at some steps"


def test_failed_training_that_continues_is_recorded_and_not_retained(
    record: Record, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert record("fails") == 0
    output = capfd.readouterr()
    assert (output.out, output.err) == ("left 0\n", "")
    records = recorded(tmp_path / "run")
    # A failed step is part of the next one, with its work. The last one that would end is the one whose optimizer raises.
    assert [row.samples for row in records] == [4] + [8] * (STEPS // 2 - 2)
    for row in records:
        assert sum(row.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(row.wall_us, rel=1e-6)
        assert row.phases_us.optimizer is not None


def test_sections_and_script_metrics_are_recorded(record: Record, tmp_path: Path) -> None:
    assert record("sections") == 0
    records = recorded(tmp_path / "run")
    assert [(row.samples, row.tokens) for row in records] == [(5, step) for step in range(STEPS)]
    assert [row.flops for row in records] == [None] + [1e9] * (STEPS - 1)
    reported = {row.step: row.metrics for row in records if row.metrics}
    assert len(reported.pop(1)) == MAX_METRICS
    assert reported == {step: {"loss": 2.5 - step} for step in range(0, STEPS, 3)}
    for row in records:
        assert row.sections_us.keys() >= {"h2d", "loss", "inner"}
        assert len(row.sections_us) == (10 if row.step == 1 else 3)
        assert len(set(row.tags) - {"gc"}) >= (7 if row.step == 1 else 0)
        assert row.sections_us["loss"] > row.sections_us["inner"] > 0
        assert row.phases_us.h2d is not None
        assert row.phases_us.h2d <= row.sections_us["h2d"]


@pytest.mark.full
def test_spawned_ranks_are_recorded_and_the_parent_script_is_not(tmp_path: Path) -> None:
    assert recorded_job([sys.executable, str(JOB), "spawned"], tmp_path / "run").status == 0
    run = RunReader(tmp_path / "run")
    assert run.ranks(0) == [0, 1]
    assert [len(list(run.steps(0, rank))) for rank in (0, 1)] == [STEPS, STEPS]


@pytest.mark.full
def test_attaching_imports_no_slow_module_and_prints_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nprint([name for name in sys.modules if name.startswith(('torch', 'numpy', 'safetensors'))])\n"
    )
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    with (tmp_path / "out").open("w") as out:
        job = [
            sys.executable,
            "-c",
            "import subprocess, sys; sys.exit(subprocess.call(sys.argv[2:], stdout=open(sys.argv[1], 'w')))",
        ]
        assert recorded_job([*job, out.name, sys.executable, str(script)], tmp_path / "run").status == 0
    attached = set(ast.literal_eval((tmp_path / "out").read_text()))
    more = attached - set(ast.literal_eval(alone.stdout))
    slow = (
        "torch.profiler",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch._dynamo",
        "torch._inductor",
        "numpy",
    )
    assert [name for name in more if name.startswith(slow)] == []
    assert len(more) < 150


TRAIN = """
import threading, time
import torch

torch.set_num_threads(1)

def train(steps, hold=-1):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(steps):
        model(torch.rand(2, 4)).sum().backward()
        if number == hold:
            held.set()
            others_done.wait()
        optimizer.step()

held, others_done = threading.Event(), threading.Event()
"""


def test_concurrent_training_threads_make_one_recording(tmp_path: Path) -> None:
    script = (
        f"{TRAIN}\ntorch.optim.SGD([torch.zeros(1)])\n"  # imports what an optimizer needs
        "threads = [threading.Thread(target=train, args=(300,)) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    assert recorded_job([sys.executable, "-c", script], tmp_path / "run").status == 0
    run = RunReader(tmp_path / "run")
    assert run.attempts() == [0]
    info = info_of(run)
    assert (info.end_reason, info.disabled_reason) == ("exit", None)


def test_training_on_another_thread_does_not_disturb_a_profiled_step(tmp_path: Path) -> None:
    # Given a thread that stands still in a profiled step while another one trains
    script = (
        f"{TRAIN}\nfirst = threading.Thread(target=train, args=(20, 6))\n"
        "first.start()\nheld.wait()\n"
        "second = threading.Thread(target=train, args=(60,))\n"
        "second.start()\nsecond.join()\nothers_done.set()\nfirst.join()\n"
    )
    # Then the window is that of the first thread, and so are all steps
    windows = {"window_first": 5, "window_every": 0, "window_steps": 3}
    assert recorded_job([sys.executable, "-c", script], tmp_path / "run", **windows).status == 0
    run = RunReader(tmp_path / "run")
    info = info_of(run)
    assert (info.end_reason, info.windows, info.missed_windows) == ("exit", 1, 0)
    assert [step.step for step in run.steps(0, 0)] == list(range(1, 20))


@pytest.mark.full
def test_thread_ending_in_a_profiled_step_loses_only_that_window(tmp_path: Path) -> None:
    # Given a thread that ends in a window, and another one that goes on
    script = (
        f"{TRAIN}\nfor steps in (7, 20):\n"
        "    thread = threading.Thread(target=train, args=(steps,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    # Then that window is lost, and the next one is recorded
    windows = {"window_first": 5, "window_every": 15, "window_steps": 3}
    assert recorded_job([sys.executable, "-c", script], tmp_path / "run", **windows).status == 0
    info = info_of(tmp_path / "run")
    assert (info.end_reason, info.windows, info.missed_windows) == ("exit", 1, 1)
