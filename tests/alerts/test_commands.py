"""The command line of alerts: its output, its deliveries and its exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from tests.command_line import Cli, one_line_error
from tests.waiting import wait_until
from tests.watched_job import AT_ONCE, WatchProcess

from rankscope.alerts.store.folders import watcher_state
from rankscope.alerts.watch.ledger import read_entries


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def watch(cli: Cli, state: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Function that runs ``alerts watch`` with the test's own state folder: ``watch(run, *options)``."""

    def run(path: Path, *options: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        completed: subprocess.CompletedProcess[str] = cli("alerts", "watch", path, "--state", state, *options, env=env)
        assert "Traceback" not in completed.stderr
        return completed

    return run


@pytest.fixture
def unprivileged_watch(without_privilege: list[str], state: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same as a user to whom permissions apply."""

    def run(path: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*without_privilege, sys.executable, "-m", "rankscope", "alerts", "watch", path, "--state", state, *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def events(output: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in output.splitlines()]


@pytest.mark.parametrize("verb", [["export", "rules"], ["show"]], ids=" ".join)
@pytest.mark.parametrize(
    ("addresses", "warned"),
    [
        ([], ["--dashboard-url", "--runbook-url"]),
        (["--dashboard-url", "http://localhost:8050", "--runbook-url", "/wiki"], ["--dashboard-url", "--runbook-url"]),
        (["--dashboard-url", "http://[::1]:8050", "--runbook-url", "https://wiki.example/x"], ["--dashboard-url"]),
        (["--dashboard-url", "https://d.example", "--runbook-url", "http://10.0.0.1/x"], []),
    ],
)
def test_local_only_links_cause_a_warning(
    cli: Cli, tmp_path: Path, verb: list[str], addresses: list[str], warned: list[str]
) -> None:
    completed = cli("alerts", "rules", *(str(tmp_path / word) if word == "rules" else word for word in verb), *addresses)
    assert completed.returncode == 0
    warnings = [line for line in completed.stderr.splitlines() if "warning" in line]
    assert len(warnings) == len(warned)
    assert all(option in line for option, line in zip(warned, warnings, strict=True))


def test_a_bad_runbook_address_is_a_usage_error(cli: Cli) -> None:
    assert cli("alerts", "rules", "show", "--runbook-url", "x y").returncode == 2
    for option in ("--runbook-url", "--dashboard-url"):
        completed = cli("alerts", "rules", "export", "nowhere", option, "https://user:geheim@x/")
        assert (completed.returncode, "geheim" in completed.stderr) == (2, False)


def test_help_needs_no_extra_and_watch_names_the_missing_extra(cli_process: Cli, tmp_path: Path, make_run: Any) -> None:
    # Given an installation without httpx
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "httpx.py").write_text('raise ModuleNotFoundError("No module named \'httpx\'", name="httpx")\n')
    env = {"PYTHONPATH": str(tmp_path / "without")}
    assert cli_process("alerts", "watch", "--help", env=env).returncode == 0
    assert cli_process("alerts", "rules", "show", env=env).returncode == 0
    completed = cli_process("alerts", "watch", make_run().path, "--once", env=env)
    assert completed.returncode == 4
    assert "pip install 'rankscope[alerts]'" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def test_once_finds_the_straggler_of_a_finished_run_and_delivers_it(watch: Any, make_run: Any, sink: Any, state: Path) -> None:
    run = make_run(slow=2, ended=True)
    options = ("--once", "--webhook", sink.url + "/secret", "--dashboard-url", "http://127.0.0.1:8050", "--format", "json")
    completed = watch(run.path, *options)
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    verdict, firing = events(completed.stdout)
    assert (verdict["event"], verdict["kind"]) == ("verdict", "straggler")
    assert (firing["event"], firing["labels"]["rank"], firing["annotations"]["phase"]) == ("firing", "2", "data")
    [payload] = sink.accepted
    [alert] = payload["alerts"]
    assert alert["labels"] == {
        "alertname": "TrainingStraggler",
        "severity": "warning",
        "run_id": "llama-1",
        "run": "llama",
        "rank": "2",
        "host": "node1",
    }
    assert alert["annotations"]["cause"] == "input"
    assert alert["annotations"]["dashboard_url"] == "http://127.0.0.1:8050/run/llama-1?rank=2"
    assert b"/secret" not in b"".join(path.read_bytes() for path in state.iterdir())
    # The second watch delivers nothing: the alert is known.
    assert watch(run.path, *options).returncode == 0
    assert len(sink.accepted) == 1


def test_once_reports_a_step_regression(watch: Any, make_run: Any) -> None:
    run = make_run(slow=None)
    run.grow(100)
    run.slow = 2
    run.grow(100)
    completed = watch(run.path, "--once", "--format", "json")
    assert completed.returncode == 0, completed.stderr
    fired = {event["labels"]["alertname"]: event for event in events(completed.stdout) if event["event"] == "firing"}
    assert fired["TrainingStepRegression"]["summary"].endswith(f"since step {run.steps - 100}.")


def test_run_is_identified_by_the_resolved_path(watch: Any, make_run: Any, sink: Any, state: Path) -> None:
    run = make_run(slow=2, ended=True)
    other = run.path.with_name("link")
    other.symlink_to(run.path)
    for path in (os.path.relpath(run.path), run.path, other):
        assert watch(path, "--once", "--webhook", sink.url).returncode == 0
    assert len(sink.accepted) == 1
    [entry] = read_entries(state)
    assert entry.run == str(run.path)


def test_ended_run_that_cannot_be_analysed_exits_with_status_1(
    cli_process: Cli, state: Path, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(slow=2, ended=True)
    # given a file server that fails whenever the analysis reads
    (tmp_path / "failing").mkdir()
    (tmp_path / "failing" / "sitecustomize.py").write_text(
        "from rankscope.analysis import engine\n"
        "from rankscope.base.errors import InputError\n"
        "def analyze(paths, **_):\n"
        "    raise InputError(paths[0], 'Stale file handle')\n"
        "engine.analyze = analyze\n"
    )
    env = {"PYTHONPATH": str(tmp_path / "failing")}
    completed = cli_process("alerts", "watch", run.path, "--state", state, "--interval", "10ms", env=env)
    assert completed.returncode == 1
    assert len(completed.stderr.splitlines()) == 2  # the first line names the watched folder
    assert "Stale file handle" in completed.stderr


@pytest.mark.slow
def test_unreadable_folder_is_a_one_line_error(make_run: Any, unprivileged_watch: Any) -> None:
    run = make_run()
    run.path.parent.chmod(0)
    try:
        for path in (run.path, run.path.parent):
            completed = unprivileged_watch(path)
            line = one_line_error(completed)
            assert f"{path}: Permission denied" in line
    finally:
        run.path.parent.chmod(0o755)


@pytest.mark.slow
def test_private_folder_does_not_hide_other_runs(make_run: Any, unprivileged_watch: Any) -> None:
    run, private = make_run("llama", slow=2), make_run("private")
    run.end()
    private.path.chmod(0)
    try:
        completed = unprivileged_watch(run.path.parent, "--once")
    finally:
        private.path.chmod(0o755)
    assert completed.returncode == 0, completed.stderr
    assert "FIRING" in completed.stdout


def test_refusing_webhook_is_named_without_the_secret(watch: Any, make_run: Any, sink: Any) -> None:
    run = make_run(slow=2, ended=True)
    sink.answers = [422]
    completed = watch(run.path, "--once", env={"RANKSCOPE_ALERTS_WEBHOOK": f"{sink.url}/secret"})
    assert completed.returncode == 1
    assert "refused with 422" in completed.stderr
    assert re.search(rf"not delivered to webhook-[0-9a-f]{{16}} {re.escape(sink.url)}/…", completed.stderr)
    assert "secret" not in completed.stderr + completed.stdout
    assert "tried again" not in completed.stderr


@pytest.fixture
def unwritable(request: pytest.FixtureRequest) -> Iterator[IO[bytes]]:
    """A file that cannot be written: a full disk, or a pipe whose reader has exited."""
    if request.param == "full disk":
        number = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, number = os.pipe()
        os.close(reading)
    with os.fdopen(number, "wb", buffering=0) as file:
        yield file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unwritable", "also_errors"),
    [
        ("full disk", False),
        ("closed pipe", True),
        pytest.param("full disk", True, marks=pytest.mark.full),
        pytest.param("closed pipe", False, marks=pytest.mark.full),
    ],
    indirect=["unwritable"],
)
def test_alerts_are_delivered_also_when_nothing_can_be_printed(
    make_run: Any, sink: Any, state: Path, unwritable: IO[bytes], *, also_errors: bool
) -> None:
    run = make_run(slow=2, ended=True)
    command = [sys.executable, "-m", "rankscope", "alerts", "watch", run.path, "--once", "--state", state, "--webhook", sink.url]
    errors = unwritable if also_errors else subprocess.PIPE
    completed = subprocess.run(command, stdout=unwritable, stderr=errors, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert len(sink.accepted) == 1
    if not also_errors:
        [line] = completed.stderr.splitlines()
        assert "standard output" in line


@pytest.mark.slow
def test_closed_stdout_without_receivers_ends_the_watcher(make_run: Any, state: Path) -> None:
    run = make_run(slow=2, ended=True)
    command = [sys.executable, "-m", "rankscope", "alerts", "watch", run.path, "--once", "--state", state]
    reading, writing = os.pipe()
    os.close(reading)
    completed = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (completed.returncode, completed.stderr) == (141, "")


def test_state_path_that_is_no_folder_is_refused_and_kept(watch: Any, make_run: Any, tmp_path: Path) -> None:
    run, file = make_run().path, tmp_path / "file"
    file.write_text("my novel")
    completed = watch(run, "--once", "--state", file)
    assert (completed.returncode, str(file) in completed.stderr) == (2, True)
    # nor is a folder with a FIFO in place of the store
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "alerts.sqlite")
    completed = watch(run, "--once", "--state", tmp_path / "folder")
    [line] = completed.stderr.splitlines()
    assert f"{tmp_path / 'folder' / 'alerts.sqlite'}: " in line
    assert (file.read_text(), (tmp_path / "folder" / "alerts.sqlite").is_fifo()) == ("my novel", True)


def test_damaged_store_is_reported_and_alerts_are_delivered(watch: Any, make_run: Any, sink: Any, state: Path) -> None:
    run = make_run(slow=2, ended=True)
    state.mkdir()
    (state / "alerts.sqlite").write_bytes(bytes(100_000))
    completed = watch(run.path, "--once", "--webhook", sink.url)
    assert completed.returncode == 0
    assert len(sink.accepted) == 1
    [line] = completed.stderr.splitlines()
    assert all(fact in line for fact in (str(state), "alerts.sqlite.bad"))
    assert (state / "alerts.sqlite.bad").exists()


@pytest.mark.slow
def test_unwritable_state_folder_is_reported_and_alerts_are_delivered(
    make_run: Any, sink: Any, tmp_path: Path, unprivileged_watch: Any
) -> None:
    run = make_run(slow=2, ended=True)
    (tmp_path / "read-only").mkdir(mode=0o555)
    completed = unprivileged_watch(run.path, "--once", "--state", tmp_path / "read-only" / "state", "--webhook", sink.url)
    assert completed.returncode == 0, completed.stderr
    assert len(sink.accepted) == 1
    [line] = [line for line in completed.stderr.splitlines() if "findings.jsonl" not in line]
    assert all(fact in line for fact in (f"{tmp_path}/read-only/state", "Permission denied"))


def test_findings_are_printed_without_receivers(watch: Any, make_run: Any) -> None:
    run = make_run(slow=1, ended=True)
    completed = watch(run.path, "--once")
    assert completed.returncode == 0
    [line] = [line for line in completed.stdout.splitlines() if "FIRING" in line]
    assert all(fact in line for fact in ("TrainingStraggler", "run llama", "rank 1", "host node0", "input", "data"))


@pytest.mark.parametrize("what", ["missing", "file", "empty folder", "broken"])
def test_path_that_cannot_be_watched_is_a_one_line_error(watch: Any, tmp_path: Path, what: str) -> None:
    path = tmp_path / "run"
    if what == "file":
        path.write_text("")
    elif what != "missing":
        path.mkdir()
    if what == "broken":
        (path / "run.json").write_text("{")
    completed = watch(path, "--once")
    assert str(path) in one_line_error(completed)


@pytest.mark.parametrize(
    "options",
    [
        ["--webhook", "ftp://x/hook"],
        ["--dashboard-url", "https://user:hook@x/"],
        ["--runbook-url", "https://user:hook@x/"],
        ["--webhook", "hooks.example/hook"],
        ["--alertmanager", "http://"],
        ["--interval", "0"],
        ["--interval", "soon"],
        ["--interval", "5 s"],
        ["--fire-after", "0"],
    ],
)
def test_wrong_options_are_usage_errors(watch: Any, tmp_path: Path, options: list[str]) -> None:
    completed = watch(tmp_path, *options)
    assert completed.returncode == 2
    assert "hook" not in completed.stderr.replace("--webhook", "")


def test_each_watched_folder_has_one_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = watcher_state(tmp_path / "a"), watcher_state(tmp_path / "b")
    assert first != second
    assert first.parent == tmp_path / "rankscope"
    monkeypatch.chdir(tmp_path)
    assert watcher_state(Path("a")) == first


def grown(run: Any) -> bool:
    """Add steps to a run, because new steps confirm a straggler."""
    run.grow(2)
    return True


@pytest.mark.slow
def test_a_live_run_is_followed_to_its_end(make_run: Any, sink: Any, state: Path) -> None:
    run = make_run(slow=2)
    with WatchProcess(run.path, "--interval", "100ms", "--fire-after", "2", "--state", state, "--webhook", sink.url) as watch:
        wait_until(lambda: grown(run) and sink.accepted, process=watch.process)
        run.end()
        assert watch.process.wait(120) == 0
    assert watch.warnings() == []
    assert [payload["status"] for payload in sink.accepted] == ["firing", "resolved"]
    assert [event["event"] for event in watch.events] == ["firing", "verdict", "resolved"]
    assert read_entries(state) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_signal_during_a_delivery_ends_the_watcher_cleanly(
    make_run: Any, sink: Any, state: Path, watch: Any, number: signal.Signals
) -> None:
    run = make_run(slow=2)
    sink.delay_s = 5
    with WatchProcess(run.path, *AT_ONCE, "--state", state, "--webhook", sink.url) as first:
        wait_until(lambda: grown(run) and sink.requests)
        first.process.send_signal(number)
        assert first.process.wait(120) == 0
    assert first.warnings() == []
    # and the delivery that was in progress is not repeated by the next watcher
    sink.delay_s = 0
    run.end()
    completed = watch(run.path, *AT_ONCE, "--webhook", sink.url)
    assert completed.returncode == 0, completed.stderr
    assert [payload["status"] for payload in sink.accepted] == ["firing", "resolved"]


@pytest.mark.slow
def test_folder_of_runs_is_followed_until_sigterm(make_run: Any, sink: Any, state: Path) -> None:
    make_run("over", slow=1).end()
    runs = make_run("quiet", slow=None).path.parent
    with WatchProcess(runs, *AT_ONCE, "--listen", "127.0.0.1:0", "--state", state, "--webhook", sink.url) as watch:
        late = make_run("late", slow=3)  # appears while the watcher runs
        wait_until(lambda: grown(late) and sink.accepted)
        late.end()
        wait_until(lambda: len(sink.accepted) == 2)
        assert watch.process.poll() is None
        watch.process.terminate()
        assert watch.process.wait(120) == 0
    watching, metrics = watch.errors().splitlines()
    assert f"watching {runs}, " in watching
    assert "metrics at http://127.0.0.1:" in metrics
    assert {alert["labels"]["run"] for payload in sink.accepted for alert in payload["alerts"]} == {"late"}
