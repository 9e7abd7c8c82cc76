"""Effects of our ``sitecustomize`` on the Python processes of a job, and the processes it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import attached_environment, info_of, recorded_job

from rankscope.runs.reader import RunReader, is_run

pytestmark = pytest.mark.slow  # each starts real processes

JOB = Path(__file__).parent / "jobs" / "tiny_loop.py"


def attached(run_dir: Path, *command: str | Path, python_path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python as in a launched job."""
    environment = attached_environment(run_dir)
    environment["PYTHONPATH"] += python_path and os.pathsep + python_path
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False, timeout=240
    )


def test_shadowed_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.hidden = 'ran'")
    script = "import sitecustomize; print(hidden, sitecustomize.__file__)"
    completed = attached(tmp_path / "run", "-c", script, python_path=str(tmp_path))
    assert completed.stdout == f"ran {tmp_path / 'sitecustomize.py'}\n"


def test_script_without_torch_imports_no_recorder(tmp_path: Path) -> None:
    script = "import sys; print([name for name in sys.modules if name.startswith(('torch', 'rankscope', 'msgspec'))])"
    completed = attached(tmp_path / "run", "-c", script)
    assert (completed.stdout, completed.stderr) == ("[]\n", "")
    assert not (tmp_path / "run").exists()


def test_untraceable_loader_still_loads_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.machinery import ModuleSpec\n"
        "class Loader:\n    __slots__ = ()\n    def create_module(self, spec): pass\n"
        "    def exec_module(self, module): module.loaded = True\n"
        "class Finder:\n    def find_spec(self, name, *_): return ModuleSpec(name, Loader()) if name == 'torch' else None\n"
        "sys.meta_path.insert(1, Finder())"
    )
    completed = attached(tmp_path / "run", "-c", "import torch; print(torch.loaded)", python_path=str(tmp_path))
    assert completed.stdout == "True\n"
    assert completed.stderr.count("rankscope: not recording") == completed.stderr.count("\n") == 1


def test_finding_the_torch_spec_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('torch is there')")
    rank = tmp_path / "rankscope" / "profiler" / "rank" / "wrappers"
    rank.mkdir(parents=True)
    for package in (rank, *rank.parents[:3]):
        (package / "__init__.py").touch()
    (rank / "attach.py").write_text("def install(): print('attached')")
    script = f"from importlib.util import find_spec; print(*(bool(find_spec('torch')) for _ in '12')); import torch; {FINDERS}"
    completed = attached(tmp_path / "run", "-c", script, python_path=str(tmp_path))
    assert (completed.stdout, completed.stderr) == ("True True\ntorch is there\nattached\n0\n", "")


FINDERS = "import sys; print([type(finder).__name__ for finder in sys.meta_path].count('_WaitForTorch'))"


@pytest.mark.parametrize(
    ("file", "waits"),
    [("train.py", 1), ("torchrun", 0), ("accelerate", 0), ("deepspeed", 0), ("compile_worker/__main__.py", 0)],
)
def test_launchers_and_compile_workers_are_not_attached(tmp_path: Path, file: str, waits: int) -> None:
    script = tmp_path / file
    script.parent.mkdir(exist_ok=True)
    script.write_text(FINDERS)
    # A training script may well have "torchrun" among its arguments.
    assert attached(tmp_path / "run", script, "torchrun").stdout == f"{waits}\n"


@pytest.mark.usefixtures("require_torch")
def test_python_without_the_profiler_logs_one_line_and_trains(tmp_path: Path) -> None:
    (tmp_path / "rankscope").mkdir()
    (tmp_path / "rankscope" / "__init__.py").touch()  # shadows the real one: it has no profiler
    completed = attached(tmp_path / "run", JOB, "accumulate", python_path=str(tmp_path))
    assert completed.returncode == 0
    assert completed.stderr.count("rankscope: not recording") == 1
    assert not (tmp_path / "run").exists()


SESSION = "from rankscope.profiler.rank import session as s\ndef broken(*a): raise OSError\n"
BREAK = {
    "the ring cannot be made": f"{SESSION}s._shared_memory = broken",
    "the helper cannot start": f"{SESSION}s._start_helper = broken",
    "the identity is odd": "import sys; sys.modules['rankscope.profiler.rank.identity'] = None",
    "a variable is damaged": "import os; os.environ['RANKSCOPE_WINDOW_EVERY'] = 'often'",
}


@pytest.fixture(scope="module")
def alone(torch_ranks: PreloadedTorch) -> str:
    """Output of the script without a recorder."""
    return subprocess.run(torch_ranks.command(0, JOB, "plain"), capture_output=True, text=True, check=True).stdout


@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize("fault", BREAK)
def test_unstartable_recorder_logs_one_line_and_training_is_unchanged(
    torch_ranks: PreloadedTorch, alone: str, tmp_path: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    job = torch_ranks.command(0, JOB, "plain")
    (tmp_path / "sitecustomize.py").write_text(BREAK[fault])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        outcome = recorded_job(job, tmp_path / "run")
    # Then training is unchanged, and the reason is reported once
    output = capfd.readouterr()
    assert (outcome.status, output.out) == (0, alone)
    assert output.err.count("rankscope:") == 1
    assert output.err.count("\n") == 1
    assert not is_run(tmp_path / "run")


@pytest.mark.usefixtures("require_torch")
def test_recorder_failure_midway_is_logged_and_recorded_as_the_reason(
    torch_ranks: PreloadedTorch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import itertools\nfrom rankscope.profiler.rank.wrappers.optimizers import StepBoundary\n"
        "calls, over = itertools.count(), StepBoundary.after_optimizer\n"
        "def broken(*args):\n    if next(calls) > 5: raise RuntimeError('planted')\n"
        "    return over(*args)\nStepBoundary.after_optimizer = broken"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        outcome = recorded_job(torch_ranks.command(0, JOB, "plain"), tmp_path / "run")
    assert outcome.status == 0
    assert capfd.readouterr().err.count("switched itself off (RuntimeError: planted)") == 1
    run = RunReader(tmp_path / "run")
    info = info_of(run)
    assert (info.end_reason, info.disabled_reason) == ("disabled", "RuntimeError: planted")
    assert [row.step for row in run.steps(0, 0)] == list(range(6))


@pytest.mark.usefixtures("require_torch")
def test_dead_helper_costs_the_record_but_not_the_training(
    torch_ranks: PreloadedTorch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nif 'rankscope.profiler.helper' in sys.orig_argv: sys.exit(1)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        outcome = recorded_job(torch_ranks.command(0, JOB, "plain"), tmp_path / "run")
    assert outcome.status == 0
    assert not is_run(tmp_path / "run")
    # Reported by the recorder, or by the launcher where the short job was over before its helper had died.
    err = capfd.readouterr().err
    assert err.count("switched itself off (its helper process ended)") + err.count("was killed; their records") == 1


@pytest.mark.usefixtures("require_torch")
def test_one_line_in_the_script_records_without_a_launcher(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "profiler" / "examples" / "ddp_one_line.py"
    ended = subprocess.run(torch_ranks.command(2, example, tmp_path / "run"), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    # The helpers share the captured stderr, so they are done when that is closed.
    run = RunReader(tmp_path / "run")
    assert run.info.name == "ddp_one_line"
    for rank in (0, 1):
        records = list(run.steps(0, rank))
        assert [row.step for row in records] == list(range(32))
        assert {row.samples for row in records} == {8}
        assert all(row.blocked_us is not None and row.phases_us.data for row in records)
        assert [row.step for row in run.windows(0, rank)] == [10, 11, 12]
        info = info_of(run, rank)
        assert info.end_reason == "exit"
