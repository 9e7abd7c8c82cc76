"""Launcher: commands that it refuses, settings and signals that it passes on, and its results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rankscope.base.errors import InputError
from rankscope.profiler.launch import LaunchOptions, _wait_for_helpers, launch
from rankscope.profiler.scratch import hold
from rankscope.profiler.settings import SITE_FOLDER, from_environment
from rankscope.runs.records import AttemptInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run

pytestmark = pytest.mark.slow  # each starts real processes


PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def test_unwritable_run_directory_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    marker = tmp_path / "marker"
    for run_dir in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run"), tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match=f"^{run_dir}: cannot record here: "):
            launch(["touch", str(marker)], LaunchOptions(run_dir=run_dir, name="x"))
    assert not marker.exists()


def test_run_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="is not empty and is no run"):
        launch(["true"], LaunchOptions(run_dir=tmp_path, name="x"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_leftovers_of_a_removed_run_do_not_block_the_next_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attempts" / "001" / "ranks" / "00000").mkdir(parents=True)
    outcome = launch([sys.executable, "-c", PRINT_ENVIRONMENT], LaunchOptions(run_dir=tmp_path, name="x"))
    # Its ranks must not meet the old ones.
    settings = from_environment(json.loads(capfd.readouterr().out))
    assert settings is not None
    assert (outcome.status, outcome.attempt, settings.attempt) == (0, 2, 2)


def test_run_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    create_run(tmp_path, RunInfo(schema="rankscope.run/3", run_id="x", name="x", start_unix_ns=1))
    with pytest.raises(InputError, match="upgrade rankscope"):
        launch(["true"], LaunchOptions(run_dir=tmp_path, name="x"))


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 5"], 5),
        (["sh", "-c", "kill -9 $$"], 128 + signal.SIGKILL),
        (["no-such-command-here"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_status_matches_the_shell_convention(
    tmp_path: Path, command: list[str], status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = launch(command, LaunchOptions(run_dir=tmp_path / "run", name="x"))
    assert (outcome.status, outcome.ranks) == (status, frozenset())
    assert not (tmp_path / "run").exists(), "nothing was recorded"
    err = capfd.readouterr().err
    assert ("command not found" in err) == (status == 127)
    assert err.count("\n") == (status in (126, 127))


def test_settings_are_passed_through_the_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", "/mine")
        patch.setenv("RANKSCOPE_WINDOW_FIRST", "999")  # of an outer job
        patch.delenv("KINETO_LOG_LEVEL", raising=False)
        options = LaunchOptions(
            run_dir=tmp_path / "run", name="an experiment", window_every=7, simulated=True, price_per_gpu_hour=2.5, currency="EUR"
        )
        launch([sys.executable, "-c", PRINT_ENVIRONMENT], options)
    environment = json.loads(capfd.readouterr().out)
    assert environment["PYTHONPATH"] == f"{SITE_FOLDER}{os.pathsep}/mine"
    assert environment["KINETO_LOG_LEVEL"] == "6"
    settings = from_environment(environment)
    assert settings is not None
    assert settings.run_dir == str(tmp_path / "run")
    assert (settings.name, settings.window_first, settings.window_every) == ("an experiment", 20, 7)
    assert (settings.simulated, settings.price_per_gpu_hour, settings.currency) == (True, 2.5, "EUR")


def test_secrets_of_the_command_line_are_not_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", PRINT_ENVIRONMENT, "--hf-token", "s3cret", "--lr=1"]
    launch(command, LaunchOptions(run_dir=tmp_path / "run", name="x"))
    launcher = json.loads(capfd.readouterr().out)["RANKSCOPE_LAUNCHER"]
    assert "s3cret" not in launcher
    assert launcher.endswith("--hf-token '***' --lr=1")


def test_settings_are_none_without_a_run_directory() -> None:
    assert from_environment({"RANKSCOPE_NAME": "x"}) is None


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT, signal.SIGRTMIN]
)
def test_signal_to_the_launcher_reaches_the_job_and_the_launcher_waits(tmp_path: Path, number: signal.Signals) -> None:
    # Slurm's --signal=USR1@90 reaches every process of the job
    job = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    script = (
        "import signal, sys; from pathlib import Path; from rankscope.profiler.launch import *\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)\n"  # whoever runs the tests may ignore it, as nohup does
        f"sys.exit(launch([sys.executable, '-c', {job!r}], LaunchOptions(run_dir=Path(sys.argv[1]), name='x')).status)"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "run"], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        try:
            launcher.send_signal(number)
            assert launcher.wait(60) == 7
        finally:
            launcher.kill()


def test_signal_that_ends_the_job_is_reported_as_the_exit_status(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from rankscope.profiler.launch import *\n"
        "job = ['sh', '-c', 'echo up; exec sleep 60']\n"
        "print(launch(job, LaunchOptions(run_dir=Path(sys.argv[1]), name='x')).status)"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "run"], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        time.sleep(0.2)
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.stdout.readline() == f"{128 + signal.SIGUSR1}\n"


EARLY = """
import os, signal, subprocess, sys
from pathlib import Path
from rankscope.profiler.launch import LaunchOptions, launch
start = subprocess.Popen
def interrupted(*args, **kwargs):
    child = start(*args, **kwargs)
    if args[0][0] != "sleep": return child
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    return child
subprocess.Popen = interrupted
print(launch(["sleep", "30"], LaunchOptions(run_dir=Path(sys.argv[1]), name="x")).status)
"""


def test_signal_at_the_start_of_the_job_reaches_the_job(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EARLY, tmp_path / "run"], stdout=subprocess.PIPE, text=True, check=False, timeout=60
    )
    job, *status = map(int, ended.stdout.split())
    try:
        assert not Path(f"/proc/{job}").exists()
    finally:
        with suppress(ProcessLookupError):
            os.kill(job, signal.SIGKILL)
    assert status == [128 + signal.SIGTERM]


@pytest.mark.parametrize("call", ["exists", "is_dir", "iterdir"])
def test_inaccessible_run_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (tmp_path / "run").mkdir()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(InputError, match="cannot record here: Permission denied"):
        launch(["true"], LaunchOptions(run_dir=tmp_path / "run", name="x"))


def test_run_directory_with_a_non_utf_8_name_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    for options in (LaunchOptions(run_dir=odd, name="x"), LaunchOptions(run_dir=tmp_path / "run", spool_dir=str(odd), name="x")):
        with pytest.raises(InputError, match="is not UTF-8"):
            launch(["true"], options)
    assert not any(tmp_path.iterdir())


def test_only_gpu_memory_snapshots_of_this_job_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "rank-00000-1.pickle").touch()
    os.utime(folder / "rank-00000-1.pickle", (1, 1))
    outcome = launch(["touch", str(folder / "rank-00002-7.pickle")], LaunchOptions(run_dir=tmp_path, name="x"))
    assert outcome.memory_snapshots == (folder / "rank-00002-7.pickle",)


def test_full_local_memory_aborts_the_launch_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device", "/dev/shm/x")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(InputError, match=r"^/dev/shm/x: cannot make a folder in local memory: No space"):
        launch(["true"], LaunchOptions(run_dir=tmp_path / "deep" / "run", name="x"))
    assert not any(tmp_path.iterdir())


def test_launcher_does_not_wait_for_a_killed_helper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given the folder of a rank whose helper was killed while holding it, and one whose helper is at work
    for name in ("killed", "alive"):
        (tmp_path / name).mkdir()
    os.close(hold(tmp_path / "killed"))
    alive = hold(tmp_path / "alive")
    waiting = threading.Thread(target=_wait_for_helpers, args=[tmp_path])
    # When the live one is done, the launcher continues
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    shutil.rmtree(tmp_path / "alive")
    os.close(alive)
    waiting.join(60)
    assert not waiting.is_alive()
    assert "the helper of 1 rank(s) was killed" in capsys.readouterr().err


def test_ctrl_c_reaches_the_job_once_even_with_redirected_input(tmp_path: Path) -> None:
    # Given a launcher in the foreground of a terminal, reading from somewhere else
    job = (
        "import select, signal\n"
        "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
        "print('up', flush=True)\n"
        # a signal just before a blocking call would be handled when that ends, so no call blocks for long
        "while not select.select([0], [], [], 0.05)[0]: pass"
    )
    script = (
        "import os, sys; from pathlib import Path; from rankscope.profiler.launch import *\n"
        "os.open(sys.argv[2], os.O_RDWR)\n"  # the first terminal of a new session becomes its own
        f"launch([sys.executable, '-c', {job!r}], LaunchOptions(run_dir=Path(sys.argv[1]), name='x'))"
    )
    keyboard, terminal = os.openpty()
    command = [sys.executable, "-c", script, str(tmp_path / "run"), os.ttyname(terminal)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as launcher:  # type: ignore[call-overload]
        assert launcher.stdout.readline() == "up\n"
        # When Ctrl-C is pressed
        os.write(keyboard, b"\x03")
        # Then the job receives the signal once
        assert launcher.stdout.readline() == "interrupted\n"
        time.sleep(0.2)
        output, _ = launcher.communicate(timeout=60)
    os.close(keyboard)
    os.close(terminal)
    assert output == ""


@pytest.mark.parametrize(
    ("name", "launcher", "refused"),
    [("b", "sh -c true", False), ("a", "sh -c 'exit\n1'", True), ("a", None, False), ("b", None, True)],
    ids=["same command", "another command", "same name", "another name"],
)
def test_run_of_another_job_is_continued_only_on_explicit_request(
    tmp_path: Path, name: str, launcher: str | None, refused: bool
) -> None:
    # Given a run with one attempt
    create_run(tmp_path, RunInfo(run_id="r", name=name, start_unix_ns=1, launcher=launcher))
    create_attempt(tmp_path, AttemptInfo(attempt=0, start_unix_ns=1, world_size=1))
    options = LaunchOptions(run_dir=tmp_path, name="a")
    # Then a job may use it if it is the same job, or if the user chose the run explicitly
    if refused:
        with pytest.raises(
            InputError, match=r"holds a run of another job \(.*\): take another --run-dir, or set RANKSCOPE_ATTEMPT"
        ):
            launch(["sh", "-c", "true"], options)
    for item in ("RANKSCOPE_RUN_ID", "RANKSCOPE_ATTEMPT") if refused else ("UNRELATED",):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(item, "1")
            assert launch(["sh", "-c", "true"], options).attempt == 1


def test_settings_from_environment_variables_reach_the_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    by_key = {"COORDINATES": "dp=3,tp=0", "PLAN_AHEAD_SECONDS": "1.5", "PLAN_AHEAD_STEPS": "7"}
    options = LaunchOptions(run_dir=tmp_path / "run", name="x")
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in by_key.items():
            patch.setenv(f"RANKSCOPE_{variable}", text)
        launch([sys.executable, "-c", PRINT_ENVIRONMENT], options)
    settings = from_environment(json.loads(capfd.readouterr().out))
    assert settings is not None
    assert (settings.coordinates, settings.plan_ahead_seconds, settings.plan_ahead_steps) == ("dp=3,tp=0", 1.5, 7)


@pytest.mark.parametrize("text", ["soon", "-1", "2.5"])
def test_invalid_environment_variable_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RANKSCOPE_PLAN_AHEAD_STEPS", text)
    with pytest.raises(InputError, match=f"^RANKSCOPE_PLAN_AHEAD_STEPS={text}: "):
        launch(["true"], LaunchOptions(run_dir=tmp_path / "run", name="x"))
    assert not (tmp_path / "run").exists()


def environment_of(options: LaunchOptions, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    launch([sys.executable, "-c", PRINT_ENVIRONMENT], options)
    result: dict[str, str] = json.loads(capfd.readouterr().out)
    return result


def test_nccl_inspector_is_configured_and_user_settings_take_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    options = LaunchOptions(run_dir=tmp_path / "run", name="x", nccl_inspector=plugin)
    usual = environment_of(options, capfd)
    assert {name.removeprefix("NCCL_"): value for name, value in usual.items() if name.startswith("NCCL_")} == {
        "PROFILER_PLUGIN": str(plugin),
        "INSPECTOR_ENABLE": "1",
        "INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
        "INSPECTOR_DUMP_VERBOSE": "1",
        "INSPECTOR_DUMP_MIN_SIZE_BYTES": "0",
        "INSPECTOR_DUMP_DIR": str(tmp_path / "run" / "inspector-logs"),
    }
    assert not (tmp_path / "run").exists(), "nothing was recorded"
    monkeypatch.setenv("NCCL_INSPECTOR_DUMP_DIR", "/mine")
    assert environment_of(options, capfd)["NCCL_INSPECTOR_DUMP_DIR"] == "/mine"


def test_flight_recorder_times_option_enables_nccl_timing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = LaunchOptions(run_dir=tmp_path / "run", name="x", flight_recorder_times=True)
    assert environment_of(options, capfd)["TORCH_NCCL_ENABLE_TIMING"] == "1"


def test_inspector_logs_of_a_job_without_steps_do_not_block_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "inspector-logs").mkdir()
    (tmp_path / "inspector-logs" / "h-pid1.log").touch()
    assert launch(["true"], LaunchOptions(run_dir=tmp_path, name="x")).status == 0


COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, _frame: got.append(number) or os.write(1, b"%d\\n" % number))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print(*got)))
print("up", flush=True)
while True:
    time.sleep(0.02)  # not pause: a signal just before it would wait for the next one
"""


LAUNCH = """
import sys
from pathlib import Path
from rankscope.profiler.launch import *
sys.exit(launch(sys.argv[2:], LaunchOptions(run_dir=Path(sys.argv[1]), name="x")).status)
"""


NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("leaves", [False, True], ids=["in the group", "in a group of its own"])
def test_job_receives_a_process_group_signal_once(tmp_path: Path, *, leaves: bool, together: bool) -> None:
    job = [*(["setsid", "--wait"] if leaves else []), sys.executable, "-c", COUNTS]
    command = [sys.executable, "-c", LAUNCH, str(tmp_path / "run"), *job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        assert launcher.stdout is not None
        try:
            assert launcher.stdout.readline() == "up\n"
            for number in NUMBERS:
                os.killpg(launcher.pid, number)
                if not together:
                    assert launcher.stdout.readline() == f"{int(number)}\n"
            if together:
                assert {int(launcher.stdout.readline()) for _ in NUMBERS} == set(NUMBERS)
            os.kill(launcher.pid, signal.SIGUSR2)  # only to the launcher, which forwards it
            assert sorted(map(int, launcher.stdout.readline().split())) == sorted(NUMBERS)
            assert launcher.wait(60) == 0
        finally:
            launcher.kill()
