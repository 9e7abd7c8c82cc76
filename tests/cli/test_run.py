"""`rankscope run` passes settings to its ranks and the job's exit status on, and reports the recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.command_line import Cli, one_line_error
from tests.step_files import append

from rankscope.analysis.result.stored import stored_verdict
from rankscope.cli.selection import share
from rankscope.cli.verbs import run as run_module
from rankscope.profiler.launch import LaunchResult
from rankscope.profiler.settings import EXPORTER_URL, STACKS_SECONDS, RecorderSettings, from_environment
from rankscope.runs.paths import rank_dir, rank_file
from rankscope.runs.reader import RunReader, is_run
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo, StepRecord
from rankscope.runs.small_files import create_attempt, create_run, write_record


@pytest.mark.parametrize("status", [0, 7])
def test_job_without_training_keeps_its_exit_status_and_leaves_no_files(cli: Cli, tmp_path: Path, status: int) -> None:
    completed = cli(
        "run", "--run-dir", tmp_path / "runs" / "x", "--", sys.executable, "-c", f"print('out'); raise SystemExit({status})"
    )
    assert (completed.returncode, completed.stdout) == (status, "out\n")
    assert "nothing was recorded" in completed.stderr
    assert (f"ended with status {status}" in completed.stderr) == (status != 0)
    assert not (tmp_path / "runs").exists()


def test_unknown_program_is_status_127_as_in_a_shell(cli: Cli, tmp_path: Path) -> None:
    completed = cli("run", "--run-dir", tmp_path / "x", "--", "no-such-program")
    assert completed.returncode == 127
    assert "no-such-program" in completed.stderr


def test_run_without_a_command_is_a_usage_error(cli: Cli) -> None:
    assert cli("run").returncode == 2


def test_mistyped_option_is_a_usage_error_with_a_suggestion(cli: Cli) -> None:
    completed = cli("run", "--wndow-every", "5", "--", "true")
    assert completed.returncode == 2
    assert "--window-every" in completed.stderr


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.01", 0.01), (" 0.5% ", 0.005), ("100%", 1.0)])
def test_budget_is_parsed_as_percentage_or_fraction(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-1%", "101%", "2", "nan", "1%%", "1% of it", "%", "inf"])
def test_malformed_budget_is_a_usage_error(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no share: say 1%"):
        share(text)


TRAINING = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_concurrent_jobs_of_one_name_are_separate_runs(tmp_path: Path) -> None:
    # given three jobs started at once, with a name that is no folder's
    command = [sys.executable, "-m", "rankscope", "run", "--name", "../a b/c", "--", sys.executable, "-c", TRAINING]
    jobs = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [job.communicate()[1] for job in jobs]
    # then each has a folder, below the default one, and a verdict
    runs = list((tmp_path / "rankscope-runs").iterdir())
    assert len([run for run in runs if is_run(run)]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["rankscope-runs"]
    assert all("1 rank of 1" in text for text in printed), printed


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_second_job_is_a_new_attempt_without_the_first_verdict(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    command = ("run", "--run-dir", tmp_path / "run", "--", sys.executable, tmp_path / "train.py")
    first = cli(*command)
    assert "1 rank of 1" in first.stderr
    assert "the recorder took" in first.stderr
    stored = stored_verdict(tmp_path / "run")
    assert stored is not None, "for lists of runs"
    assert (stored.source.ranks, stored.source.world_size) == (1, 1)
    (tmp_path / "train.py").write_text("pass")
    second = cli(*command)
    assert "attempt 1" in second.stderr
    assert "nothing was recorded" in second.stderr
    assert "1 rank of 1" not in second.stderr


@pytest.mark.parametrize("kind", ["a file", "somebody's folder", "below a file"])
def test_unusable_run_directory_fails_before_the_job_starts(cli: Cli, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").touch()
    path = {"a file": "file", "somebody's folder": "folder", "below a file": "file/run"}[kind]
    completed = cli("run", "--run-dir", tmp_path / path, "--", sys.executable, "-c", "print('started')")
    assert str(tmp_path / path) in one_line_error(completed)


def test_failed_analysis_does_not_change_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a recorded run whose analysis has a bug
    create_run(tmp_path, RunInfo(run_id="r", name="r", start_unix_ns=1))
    outcome = LaunchResult(status=5, run_dir=tmp_path, attempt=0, ranks=frozenset({(0, 0)}))
    monkeypatch.setattr(run_module, "launch", lambda *_: outcome)
    monkeypatch.setattr("rankscope.analysis.engine.analyze", lambda _: 1 / 0)
    # when the job ends
    status = run_module.run.main(["--run-dir", str(tmp_path), "--", "job"], standalone_mode=False)
    # then
    assert status == 5
    assert "there is no verdict: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_only_the_launcher_of_rank_0_prints_the_verdict(tmp_path: Path) -> None:
    # Given a launcher on each node, and a rank 1 that takes longer
    script = (
        "import os, time, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(8):\n"
        "    time.sleep(0.3 * int(os.environ['RANK']))\n"
        "    model(torch.rand(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    words = ["run", "--run-dir", str(tmp_path / "run"), "--no-hardware", "--", sys.executable, "-c", script]
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "rankscope", *words],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": "2",
                "RANKSCOPE_RUN_ID": "several",
                "RANKSCOPE_ATTEMPT": "0",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    # When both have ended
    first, second = (launcher.communicate(timeout=120)[1] for launcher in launchers)
    # Then one of them has printed a verdict, on all steps of both ranks
    assert second.strip() == f"rankscope: recorded in {tmp_path / 'run'}; the launcher of rank 0 prints the verdict."
    assert "2 ranks of 2" in first, first
    assert [len(list(RunReader(tmp_path / "run").steps(0, rank))) for rank in (0, 1)] == [7, 7]
    assert "not ended" not in first


def test_verdict_is_of_the_launched_attempt_despite_a_newer_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create_run(tmp_path, RunInfo(run_id="r", name="r", start_unix_ns=1))
    for attempt in (0, 1):
        create_attempt(tmp_path, AttemptInfo(attempt=attempt, start_unix_ns=1, world_size=1))
        rank = RankInfo(rank=0, world_size=1, host="h", pid=1, attempt=attempt, start_unix_ns=1, end_unix_ns=2, end_reason="exit")
        write_record(rank_file(tmp_path, attempt, 0), rank)
        records = [StepRecord(step=step, start_unix_ns=1, wall_us=1000.0) for step in range(20 + attempt)]
        append(rank_dir(tmp_path, attempt, 0), "steps", *records)
    outcome = LaunchResult(status=0, run_dir=tmp_path, attempt=0, ranks=frozenset({(0, 0)}))
    monkeypatch.setattr(run_module, "launch", lambda *_: outcome)
    assert run_module.run.main(["--run-dir", str(tmp_path), "--", "job"], standalone_mode=False) == 0
    assert "1 rank of 1, 20 steps" in capsys.readouterr().err
    assert stored_verdict(tmp_path) is None


VERBS_WITH_A_PATH = (
    ["analyze"],
    ["alerts", "watch"],
    pytest.param(["demo", "--once", "--run-dir"], marks=pytest.mark.full),
)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS_WITH_A_PATH, ids=lambda words: words[0])
def test_unreadable_folder_is_a_one_line_error_with_status_3(
    tmp_path: Path, verb: list[str], without_privilege: list[str]
) -> None:
    # given a closed folder, and a process to which permissions apply, also when root runs the tests
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    # when a verb is pointed into it
    completed = subprocess.run(
        [*without_privilege, sys.executable, "-m", "rankscope", *verb, str(closed / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    # then
    assert str(closed) in one_line_error(completed)


def test_two_sources_of_collective_durations_are_a_usage_error(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "plugin.so").touch()
    options = ["--nccl-inspector", tmp_path / "plugin.so", "--flight-recorder-times"]
    completed = cli("run", "--run-dir", tmp_path / "run", *options, "--", "true")
    assert completed.returncode == 2
    assert not (tmp_path / "run").exists()


SETUP = """
import torch
model = torch.nn.Linear(2, 1)
def loss():
    return model(torch.ones(4, 2)).sum()
"""
NO_TRAINING = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'], check=True)\n"
UNSEEN = {
    "an optimizer of its own": f"{NO_TRAINING}class Own:\n  def step(self): pass\nfor _ in range(3): loss().backward()",
    "inference": "for _ in range(3): loss()",
    "torch.func": "for _ in range(3): torch.func.grad(lambda w: (w * w).sum())(torch.ones(2))",
    "no step": "optimizer = torch.optim.SGD(model.parameters())\nloss().backward()",
}
REASONS = {
    "an optimizer of its own": "of another class", "inference": "inference", "torch.func": "torch.func", "no step": "SGD",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize(
    "job", [name if name == "an optimizer of its own" else pytest.param(name, marks=pytest.mark.full) for name in UNSEEN]
)
def test_job_without_recorded_steps_gets_the_reason_and_a_remedy(cli: Cli, tmp_path: Path, job: str) -> None:
    completed = cli("run", "--run-dir", tmp_path / "run", "--", sys.executable, "-c", SETUP + UNSEEN[job])
    assert completed.returncode == 0
    assert "nothing was recorded" in completed.stderr
    assert REASONS[job] in completed.stderr
    # A process that only starts another one, or loads data, is no reason.
    assert ("neither" in completed.stderr) == (job in ("inference", "torch.func"))
    assert "StepProfiler" in completed.stderr


FOLDS = """
import sys, time
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(40):
    model(torch.ones(4, 2)).sum().backward()
    time.sleep(float(sys.argv[1]))
    optimizer.step()
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
def test_slowest_of_several_programs_in_one_command_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "fold.py").write_text(FOLDS)
    fold = f"{sys.executable} {tmp_path / 'fold.py'}"
    completed = cli("run", "--run-dir", tmp_path / "run", "--", "bash", "-c", f"{fold} 0.1 && {fold} 0.005")
    assert completed.returncode == 0
    text = " ".join(completed.stderr.split())
    assert "the last of 2 attempts (number 1)" in text
    assert "attempt 0 was the slowest of 2" in text
    slow = cli("analyze", tmp_path / "run" / "attempts" / "000", "--format", "json")
    assert slow.returncode == 0
    assert "one of 2 attempts (number 0) is analysed" in json.loads(slow.stdout)["source"]["warnings"]


JOB = """
from rankscope.profiler.settings import from_environment
settings = from_environment()
print(settings.exporter_url, settings.otlp_every, settings.stacks_seconds)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "address"),
    [
        ([], f"{EXPORTER_URL} None {STACKS_SECONDS}"),
        (["--exporter-url", "https://me:pw@node7:443/m", "--otlp-every", "50"], f"https://me:pw@node7:443/m 50 {STACKS_SECONDS}"),
        (["--exporter-url", ""], f"None None {STACKS_SECONDS}"),
        (["--no-hardware", "--exporter-url", "http://h/", "--no-stacks"], "None None None"),
    ],
)
def test_exporter_address_reaches_the_ranks_environment(cli: Cli, tmp_path: Path, options: list[str], address: str) -> None:
    completed = cli("run", "--run-dir", tmp_path / "run", "--no-verdict", *options, "--", sys.executable, "-c", JOB)
    assert (completed.returncode, completed.stdout.strip()) == (0, address)
    assert "pw" not in completed.stderr


@pytest.mark.slow
def test_invalid_exporter_url_is_a_usage_error_without_the_password(cli: Cli, tmp_path: Path) -> None:
    completed = cli("run", "--run-dir", tmp_path / "run", "--exporter-url", "ftp://me:pw@h/", "--", "true")
    assert completed.returncode == 2
    assert "http://" in completed.stderr
    assert "pw" not in completed.stderr


def test_missing_exporter_url_survives_the_environment_round_trip() -> None:
    settings = RecorderSettings(
        run_dir="/r", run_id="r", name="", start_unix_ns=1, exporter_url=None, otlp_every=3, stacks_seconds=None
    )
    assert from_environment(settings.environment()) == settings
