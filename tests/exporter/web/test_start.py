"""Start and end of the command: usage, exit statuses, --once, signals, systemd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Cli, one_line_error
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.web.conftest import Simulated

pytestmark = pytest.mark.slow  # each starts real processes


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_systemd_is_notified_and_signals_end_the_exporter_cleanly(
    start_exporter: StartExporter, tmp_path: Path, signal_number: int
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        exporter = start_exporter("--simulate", "1", env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        with socket.create_connection((exporter.host, exporter.port)):  # a silent client
            assert systemd.recv(100) == b"READY=1"
            assert exporter.stop(signal_number) == 0
        assert systemd.recv(100) == b"STOPPING=1"
    assert "Traceback" not in exporter.stderr


def test_port_in_use_is_a_one_line_error(simulated: Simulated, cli: Cli, tmp_path: Path) -> None:
    address = f"127.0.0.1:{simulated.exporter.port}"

    error = one_line_error(cli("exporter", "--simulate", "1", "--spool", tmp_path / "spool", "--listen", address))
    assert address in error
    assert "--listen" in error


def test_unusable_spool_or_address_exits_with_status_3(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert cli("exporter", "--once", "--simulate", "1", "--spool", file).returncode == 3

    for address in ("192.0.2.1:9838", "a..b:9838"):
        assert address in one_line_error(cli("exporter", "--simulate", "1", "--spool", tmp_path / "spool", "--listen", address))


def test_unreadable_spool_exits_with_status_3(tmp_path: Path, without_privilege: list[str]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)

    for spool in (locked, locked / "spool"):
        command = [*without_privilege, sys.executable, "-m", "rankscope", "exporter", "--once", "--simulate", "1"]
        completed = subprocess.run([*command, "--spool", spool], capture_output=True, text=True, check=False)

        assert f"{spool}: Permission denied" in one_line_error(completed)


@pytest.mark.parametrize("once", [(), ("--once",)])
def test_spool_below_a_missing_folder_is_an_error_and_not_created(cli: Cli, tmp_path: Path, once: tuple[str, ...]) -> None:
    listen = ("--listen", "127.0.0.1:0")
    completed = cli("exporter", "--simulate", "1", *listen, *once, "--spool", tmp_path / "nope" / "spool")

    assert f"{tmp_path / 'nope'}: No such file or directory" in one_line_error(completed)
    assert list(tmp_path.iterdir()) == []


def test_once_prints_one_page_and_creates_no_file(cli: Cli, tmp_path: Path) -> None:
    completed = cli("exporter", "--once", "--simulate", "3", "--spool", tmp_path / "spool")

    assert completed.returncode == 0
    assert completed.stderr == ""
    assert list(tmp_path.iterdir()) == []
    assert '\nrankscope_exporter_collector_success{collector="spool"} 1' in completed.stdout
    assert completed.stdout.startswith("# SIMULATED")
    assert completed.stdout.count("\ngpu_up{") == 3


def test_once_prints_xid_series_and_creates_no_state(cli_process: Cli, fake_nvml: FakeDriver, tmp_path: Path) -> None:
    folders = ("--spool", tmp_path / "spool", "--state-dir", tmp_path / "state")
    printed = cli_process("exporter", "--once", "--no-xid.kernel-log", *folders, env=fake_nvml.env).stdout

    assert printed.count('xid="79"} 0') == 2
    assert "xid_journal_durable" not in printed
    assert not (tmp_path / "state").exists()


def test_once_prints_the_dcgm_page_and_refuses_an_invalid_counters_file(cli: Cli, tmp_path: Path) -> None:
    command = ("exporter", "--simulate", "1", "--once", "--spool", tmp_path / "spool", "--compat", "dcgm")

    printed = cli(*command).stdout
    assert printed.index("\ngpu_up{") < printed.index("\nDCGM_FI_DEV_GPU_TEMP{") < printed.index("\nDCGM_FI_DEV_ENC_UTIL{")

    (tmp_path / "counters.csv").write_text("nonsense")
    refused = cli(*command, "--compat.dcgm-counters", tmp_path / "counters.csv")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "counters.csv: line 1: " in refused.stderr


def test_exit_that_requires_a_restart_is_logged(start_exporter: StartExporter, fake_nvml: FakeDriver) -> None:
    exporter = start_exporter(env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])
    pid = exporter.process.pid
    (nursery,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    os.kill(nursery, signal.SIGKILL)

    assert exporter.process.wait(120) == 6
    exporter.close()
    errors = [line for line in exporter.stderr.splitlines() if "level=error" in line]
    assert len(errors) == 1
    assert "status 6" in errors[0]


def _hiding(*modules: str) -> list[str]:
    hide = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); from rankscope.cli.main import main"
    return [sys.executable, "-c", f"{hide}; main()", "exporter"]


@pytest.mark.parametrize(
    ("missing", "arguments"), [("uvicorn", ("--simulate", "1", "--listen", "127.0.0.1:0")), ("pynvml", ("--once",))]
)
def test_missing_extra_is_a_one_line_error(missing: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [*_hiding(missing), *arguments, "--spool", str(tmp_path / "spool")]

    broken = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "pip install 'rankscope[exporter]'" in one_line_error(broken, 4)


def test_help_works_without_the_extra() -> None:
    helped = subprocess.run([*_hiding("uvicorn", "h11", "pynvml"), "--help"], capture_output=True, text=True, check=False)

    assert helped.returncode == 0
    assert "--simulate" in helped.stdout
