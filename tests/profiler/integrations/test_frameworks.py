"""Lightning, Hugging Face, Accelerate and DeepSpeed, each with real training of an untrained model."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import info_of

from rankscope.runs.reader import RunReader
from rankscope.runs.records import StepRecord

ROOT = Path(__file__).parents[3]
JOBS = Path(__file__).parents[1] / "jobs"
EXAMPLES = ROOT / "profiler" / "examples"
PAGE = (ROOT / "docs" / "integrations.md").read_text()
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RANKS = (0, 1)


def run(folder: Path, *command: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` as a user with this environment active."""
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "default",
    }
    completed = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert completed.returncode == status, completed.stdout + completed.stderr
    return completed


def command_for(framework: str) -> list[str]:
    """Return the command on the page."""
    return shlex.split(next(line for line in PAGE.splitlines() if line.startswith(f"rankscope run --run-dir runs/{framework} ")))


def example_of(section: str) -> str:
    """Return the code in a section of the page."""
    match = re.search(rf"^## {section}\n.*?^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert match is not None
    return match[1]


def printed_steps(output: str) -> list[int]:
    """Return the step counts that the job printed, which its framework counted."""
    return [int(count) for count in re.findall(r"(\d+) steps", output)]


def recorded(run_dir: Path, rank: int = 0) -> list[StepRecord]:
    """Return the records of a rank, after checking that it recorded its end and no trouble."""
    reader = RunReader(run_dir)
    info = info_of(reader, rank)
    assert (info.end_reason, info.disabled_reason) == ("exit", None)
    assert info.world_size == len(reader.ranks(0))
    return list(reader.steps(0, rank))


def tagged(records: list[StepRecord], tag: str) -> list[int]:
    """Return the steps with a tag."""
    return [row.step for row in records if tag in row.tags]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize(("framework", "evaluated"), [("lightning", [2, 4, 7, 9]), ("huggingface", [4, 8]), ("accelerate", [5])])
def test_unchanged_script_records_the_steps_of_the_framework(tmp_path: Path, framework: str, evaluated: list[int]) -> None:
    # given a script for two ranks with two batches to a step, an odd batch at the end of each epoch, and evaluations
    shutil.copy(JOBS / f"train_{framework}.py", tmp_path / "train.py")
    # when it is started with the command on the page
    completed = run(tmp_path, *command_for(framework))
    # then all steps of both ranks are there, and nothing else
    assert printed_steps(completed.stdout) == [10, 10]
    assert "switched itself off" not in completed.stderr
    for rank in RANKS:
        records = recorded(tmp_path / "runs" / framework, rank)
        assert [row.step for row in records] == list(range(10))
        assert all(row.blocked_us is not None for row in records)
        # and samples of evaluations are not counted: a rank trains on 36 samples an epoch
        assert sum(row.samples or 0 for row in records) == 72
        assert tagged(records, "eval") == evaluated


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_lightning_example_records_into_the_launcher_run_directory(tmp_path: Path) -> None:
    completed = run(
        tmp_path, "rankscope", "run", "--run-dir", "here", "--", "python", EXAMPLES / "lightning_callback.py", "ignored"
    )
    assert printed_steps(completed.stdout) == [10, 10]
    assert not (tmp_path / "ignored").exists()
    for rank in RANKS:
        records = recorded(tmp_path / "here", rank)
        assert [row.step for row in records] == list(range(10))
        assert {row.samples for row in records} == {16}
        assert tagged(records, "eval") == [4, 8]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_lightning_fits_of_one_process_are_separate_runs(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example_of("Lightning"))
    completed = run(tmp_path, "python", JOBS / "fits_lightning.py", "example.py")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["first", *(f"first-{n}" for n in range(2, 7))]
    # The page's example: five batches, the last one smaller.
    records = recorded(tmp_path / "runs" / "first")
    assert [row.samples for row in records] == [4, 4, 4, 4, 2]
    assert all(row.phases_us.forward and row.phases_us.backward for row in records)
    # Two batches to a step and the rest at the end; a validation after every two batches.
    records = recorded(tmp_path / "runs" / "first-2")
    assert [(row.samples, row.tokens, row.flops) for row in records] == [(8, 80, 2000), (8, 80, 2000), (2, 20, 1000)]
    assert tagged(records, "eval") == [1, 2]
    # The fit that failed in its fourth batch.
    reader = RunReader(tmp_path / "runs" / "first-3")
    info = info_of(reader)
    assert (info.end_reason, len(list(reader.steps(0, 0)))) == ("crash", 3)
    assert "the module's own error" in completed.stdout
    # The fit whose callback failed before the first step completes nevertheless, and the failure is reported once.
    assert printed_steps(completed.stdout) == [3, 5, 10]
    assert completed.stderr.count("switched itself off (AttributeError: 'list' object has no attribute 'no_such_thing')") == 1
    # Two optimizers on each of five batches: ten steps to Lightning, five cycles.
    assert [row.samples for row in recorded(tmp_path / "runs" / "first-4")] == [4, 4, 4, 4, 2]
    # Logged after every second batch: recorded in the step after it, as the number that the script's own logger wrote.
    (table,) = (tmp_path / "logs").rglob("metrics.csv")
    with table.open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    metrics = [row.metrics for row in recorded(tmp_path / "runs" / "first-5")]
    assert metrics == [{}, {}, {"loss": losses[0], "batch": 1.0}, {}, {"loss": losses[1], "batch": 3.0}]
    # The progress bar and the folder of checkpoints are those of the script's own logger, which is the only one afterwards.
    assert re.search(r"\nlogged True \{'v_num': '?1234'?\} logs/\S+/version_1234/checkpoints/\S+\.ckpt\n", completed.stdout)
    # Without a logger Lightning makes no numbers of its metrics, and nor does the callback.
    assert [row.metrics for row in recorded(tmp_path / "runs" / "first-6")] == [{}] * 5


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_hugging_face_example_records_samples_tokens_and_flops_per_step(tmp_path: Path) -> None:
    completed = run(tmp_path, *TORCHRUN, EXAMPLES / "huggingface_callback.py", "runs/first")
    assert printed_steps(completed.stdout) == [20 // 2, 20 // 2]
    for rank in RANKS:
        records = recorded(tmp_path / "runs" / "first", rank)
        assert [row.step for row in records] == list(range(10))
        assert {(row.samples, row.tokens) for row in records} == {(8, 8 * 16)}
        # 6 operations per token and parameter; the library counts the parameters
        assert all(row.flops and row.flops % (6 * 8 * 16) == 0 for row in records)
        assert tagged(records, "eval") == [4, 8]
        assert tagged(records, "checkpoint") == [6]
        assert [row.step for row in RunReader(tmp_path / "runs" / "first").windows(0, rank)] == [5, 6, 7]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_hugging_face_trainings_of_one_process_are_separate_runs(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example_of("Hugging Face"))
    completed = run(tmp_path, "python", JOBS / "fits_huggingface.py", "example.py")
    assert "the script's own error" in completed.stdout
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["first", "first-2", "first-3"]
    # The page's example: nine batches in each of two epochs.
    rows = recorded(tmp_path / "runs" / "first")
    assert [row.samples for row in rows] == [8, 8, 8, 8, 4] * 2
    assert [row.step for row in rows if {"loss", "learning_rate", "grad_norm"} <= row.metrics.keys()] == [2, 4, 6, 8]
    # The failed training, which the next one records as crashed
    info = info_of(tmp_path / "runs" / "first-2")
    assert info.end_reason == "crash"
    assert len(list(RunReader(tmp_path / "runs" / "first-2").steps(0, 0))) == 2
    assert [len(recorded(tmp_path / "runs" / "first-3"))] == printed_steps(completed.stdout)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_accelerate_example_ends_a_step_where_gradients_synchronise(tmp_path: Path) -> None:
    completed = run(tmp_path, "python", EXAMPLES / "accelerate_loop.py", "runs/first")
    assert printed_steps(completed.stdout) == [20]
    assert [row.samples for row in recorded(tmp_path / "runs" / "first")] == [16] * 20
    # The page's example is a part of that script.
    _, loop = example_of("Accelerate").split("\n", 1)
    assert textwrap.indent(loop, "    ") in (EXAMPLES / "accelerate_loop.py").read_text()


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_deepspeed_engine_steps_are_recorded_with_one_line_or_attached(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: pip install deepspeed (an sdist; on CPUs it wants a C++ compiler and ninja)")
    commands: dict[str, list[str | Path]] = {
        "one-line": [*TORCHRUN, EXAMPLES / "deepspeed_loop.py", "one-line"],
        "attached": ["rankscope", "run", "--run-dir", "attached", "--", *TORCHRUN, JOBS / "train_deepspeed.py"],
    }
    for run_dir, command in commands.items():
        assert printed_steps(run(tmp_path, *command).stdout) == [10, 10]
        for rank in RANKS:
            records = recorded(tmp_path / run_dir, rank)
            assert [row.step for row in records] == list(range(10))
            assert {row.samples for row in records} == {16 if run_dir == "one-line" else 8}


IMPORTS = """
import sys
from rankscope.profiler.step import StepProfiler
from rankscope.profiler.integrations.fit_session import FitSession

frameworks = ["lightning", "lightning.pytorch", "pytorch_lightning", "transformers", "accelerate", "deepspeed"]
print([name for name in frameworks if name in sys.modules])
sys.modules.update(dict.fromkeys(frameworks))  # now none of them can be imported
for module in ("lightning", "huggingface"):
    try:
        __import__(f"rankscope.profiler.integrations.{module}")
    except ImportError as error:
        print(error)
for arguments in ((None, {}), ("runs/first", {"window": 3})):
    try:
        FitSession(*arguments)
    except (TypeError, ValueError) as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_recorder_imports_no_framework_and_missing_frameworks_are_named(torch_ranks: PreloadedTorch) -> None:
    completed = subprocess.run(torch_ranks.command(0, "-c", IMPORTS), capture_output=True, text=True, check=True)
    loaded, lightning, transformers, folder, argument = completed.stdout.splitlines()
    assert loaded == "[]"
    assert "pip install lightning" in lightning
    assert "pip install transformers" in transformers
    assert "run_dir" in folder
    assert "'window'" in argument


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_example_without_its_folder_argument_shows_the_usage(torch_ranks: PreloadedTorch) -> None:
    completed = subprocess.run(torch_ranks.command(0, EXAMPLES / "ddp_one_line.py"), capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "ddp_one_line.py runs/one-line" in completed.stderr
    assert "Traceback" not in completed.stderr
