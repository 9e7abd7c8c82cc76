"""The main use case: real training with a planted fault, through every part, with the fault found or left alone."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.command_line import Cli
from tests.processes import is_running
from tests.waiting import wait_until

from rankscope.cli.demo.faults import EXPECTATIONS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch"), pytest.mark.timeout(600)]

PARTS = ["exporter", "receiver", "training", "recording", "verdict", "metrics", "dashboard", "alert"]


@pytest.mark.full
@pytest.mark.alone  # beside other tests a rank really waits for a processor, which is another cause
@pytest.mark.parametrize("fault", ["input:2", "host:1", "backward:3", "imbalance:0", "none"])
def test_each_planted_fault_is_found_shown_and_alerted(cli_process: Cli, tmp_path: Path, fault: str) -> None:
    done = cli_process("demo", "--once", "--fault", fault, "--run-dir", tmp_path / "run", "--format", "json", timeout=540)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert [part["name"] for part in report["parts"]] == PARTS, done.stderr
    assert [part for part in report["parts"] if not part["ok"]] == [], done.stderr
    assert report["ok"] is True
    assert done.returncode == 0
    kind, _, rank = fault.partition(":")
    if kind == "none":
        # The part "verdict" is ok: nothing is slow, or all ranks wait in turn for a CPU, as four do on two cores.
        assert report["verdict"]["rank"] is None
    else:
        assert (report["verdict"]["kind"], report["verdict"]["rank"]) == ("straggler", int(rank))
    # and the list of runs has the verdict, too
    (listed,) = json.loads(cli_process("runs", tmp_path, "--format", "json").stdout)
    assert listed["kind"] == report["verdict"]["kind"]


def test_demo_refuses_an_unknown_fault_or_an_existing_folder(cli_process: Cli, tmp_path: Path) -> None:
    wrong = cli_process("demo", "--once", "--fault", "gremlins:2")
    assert wrong.returncode == 2
    assert "input:R" in wrong.stderr
    taken = cli_process("demo", "--once", "--run-dir", tmp_path)
    assert taken.returncode == 3
    assert str(tmp_path) in taken.stderr


def test_demo_that_cannot_record_reports_every_part(cli_process: Cli, tmp_path: Path) -> None:
    # Given a file in the place of the parent folder
    (tmp_path / "file").touch()
    environment = {"TMPDIR": str(tmp_path)}  # a demo that fails keeps its logs there
    demo = cli_process("demo", "--once", "--format", "json", "--run-dir", tmp_path / "file" / "run", env=environment)
    assert demo.returncode == 1
    parts = {part["name"]: part["ok"] for part in json.loads(demo.stdout)["parts"]}
    assert list(parts) == PARTS
    assert [name for name, ok in parts.items() if ok] == ["exporter", "receiver"]


@pytest.fixture
def live_demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The demo as `make demo` starts it, once it has printed its addresses."""
    with socket.socket() as taken, (tmp_path / "stderr").open("w") as stderr:
        # A port in use is skipped.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8050))
            taken.listen()
        except OSError:
            pass  # another process uses the port: just as good
        process = subprocess.Popen(
            [sys.executable, "-m", "rankscope", "demo", "--run-dir", str(tmp_path / "run"), "--format", "json"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if line == "}\n":
                    break
            result = json.loads(text)
            assert result["ok"], (tmp_path / "stderr").read_text()
            yield process, result["urls"]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    pids: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - pids
        pids |= frontier
    return pids


@pytest.mark.full
def test_browser_shows_the_straggler_and_ctrl_c_stops_every_process(
    browser: Browser, live_demo: tuple[subprocess.Popen[str], dict[str, str]]
) -> None:
    process, urls = live_demo
    assert ":8050/" not in urls["dashboard"]
    children = descendants(process.pid)
    assert len(children) >= 3
    # when a user opens the page
    with browser.new_context(viewport={"width": 1440, "height": 900}) as session:
        page = session.new_page()
        errors: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(urls["dashboard"])
        page.get_by_text("Rank 2").first.wait_for(timeout=60_000)
        page.wait_for_load_state("networkidle")
        body = page.inner_text("body").lower()
    # then it names rank 2 and its cause, marks the hardware as simulated, and sent no request to any other server
    assert "rank 2" in body
    assert "input" in body
    assert "simulated" in body
    assert errors == []
    base = urls["dashboard"].split("/run/")[0]
    assert [url for url in requests if not url.startswith((base, "data:", "blob:"))] == []
    # and Ctrl-C ends it with status 0 and leaves nothing running
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    wait_until(lambda: not any(map(is_running, children)), details=lambda: list(filter(is_running, children)))


@pytest.mark.full
def test_servers_of_a_killed_demo_exit(tmp_path: Path) -> None:
    # given a demo whose servers run and whose ranks train
    with subprocess.Popen(
        [sys.executable, "-m", "rankscope", "demo", "--once", "--run-dir", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        try:
            while "recording:" not in (line := process.stderr.readline()):
                assert line
            children = descendants(process.pid)
        finally:
            # when it is killed and cannot end them itself
            process.kill()
    assert len(children) >= 5
    # then they end
    wait_until(lambda: not any(map(is_running, children)), details=lambda: list(filter(is_running, children)))


@pytest.mark.parametrize("fault", ["gremlins:2", "input:", "input:-1", "none:x", ""])
def test_training_script_rejects_unknown_faults(fault: str) -> None:
    from rankscope.cli.demo import train

    assert train.planted("input:2") == ("input", 2)
    assert train.planted("none") == ("none", -1)
    with pytest.raises(argparse.ArgumentTypeError, match="expected input, host"):
        train.planted(fault)


def test_demo_command_accepts_every_fault_of_the_script() -> None:
    from rankscope.cli.demo import train

    assert set(EXPECTATIONS) == set(train.FAULTS)
