"""Release of a GPU over the control socket, by the command and by plain HTTP."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.web.conftest import Simulated

pytestmark = pytest.mark.slow  # each starts real processes


def test_the_command_releases_and_resumes_a_gpu(
    start_exporter: StartExporter, fake_nvml: FakeDriver, cli: Cli, tmp_path: Path
) -> None:
    exporter = start_exporter(env=fake_nvml.env)
    control = tmp_path / "control.sock"
    uuid = str(fake_nvml.gpus[1]["uuid"])
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])

    released = cli("exporter", "release", uuid, "--ttl", "5m", "--socket", control)

    assert (released.returncode, released.stderr) == (0, "")
    assert exporter.values("gpu_down_info", uuid=uuid, reason="released") == [1.0]
    assert exporter.values("gpu_up") == [1.0, 0.0]
    assert f"{uuid}: released" in exporter.get("/-/ready").text

    assert cli("exporter", "resume", uuid, "--control.socket", control).returncode == 0
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])
    exporter.wait_until(lambda: "answers again" in exporter.stderr)
    lines = [line for line in exporter.stderr.splitlines() if uuid in line]
    assert [("level=info" in line, "released" in line) for line in lines] == [(True, True), (True, False), (True, False)]
    assert ["released" in lines[0], "resumed" in lines[1], "answers again" in lines[2]] == [True] * 3


def test_a_node_whose_gpus_are_all_released_has_no_failing_collector(
    start_exporter: StartExporter, fake_nvml: FakeDriver, cli: Cli, tmp_path: Path
) -> None:
    exporter = start_exporter(env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])

    for gpu in ("0", "1"):
        assert cli("exporter", "release", gpu, "--socket", tmp_path / "control.sock").returncode == 0

    assert exporter.values("gpu_down_info", reason="released") == [1.0, 1.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="power") == [1.0]


def test_invalid_release_requests_are_refused(simulated: Simulated, cli: Cli, tmp_path: Path) -> None:
    control = simulated.control
    assert stat.S_IMODE(control.stat().st_mode) == 0o600

    for arguments, item in [
        (("GPU-none",), "no such GPU"),
        (("0", "--ttl", "soon"), "ttl"),
        (("0", "--ttl", "25h"), "24h"),
        (("0", "--ttl", "0"), "ttl"),
    ]:
        completed = cli("exporter", "release", *arguments, "--socket", control)
        assert (completed.returncode, len(completed.stderr.splitlines())) == (3, 1)
        assert item in completed.stderr
    nobody = cli("exporter", "release", "0", "--socket", tmp_path / "nothing.sock")
    assert nobody.returncode == 3
    assert "is the exporter running" in nobody.stderr


def test_release_of_a_stuck_process_fails_with_status_1(cli: Cli, tmp_path: Path) -> None:
    # given a fleet whose process does not die
    program = f"""
import asyncio
from pathlib import Path
from rankscope.exporter.web.app import ExporterApp
from rankscope.exporter.web.control import listen_unix
from rankscope.exporter.pages.page import MetricsPage
from rankscope.base.http import application
from rankscope.base.http_server import ListenEndpoint, Server
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.web.access import WebAccess

class Stuck(SimulatedFleet):
    def release(self, gpu, *, ttl_s):
        raise TimeoutError("it sits in the driver")

async def main():
    app = ExporterApp(MetricsPage("node1", Stuck("1")), WebAccess(None))
    Server([ListenEndpoint(listen_unix(Path({str(tmp_path / "control.sock")!r})), application(app.local))]).start()
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as exporter:
        try:
            assert exporter.stdout is not None
            assert exporter.stdout.readline() == b"ready\n"
            completed = cli("exporter", "release", "0", "--socket", tmp_path / "control.sock")
        finally:
            exporter.kill()

    assert completed.returncode == 1
    assert "it sits in the driver" in completed.stderr


def test_control_socket_serves_http(simulated: Simulated) -> None:
    def post(path: str, method: str = "POST") -> tuple[int, dict[str, object]]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(simulated.control))
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = connection.makefile("rb").read()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    assert post("/-/release?gpu=0&ttl=10m") == (200, {"gpu": "0", "released": True, "ttl_s": 600.0})
    assert simulated.exporter.values("gpu_up") == [0.0, 1.0]
    assert [post(path)[0] for path in ("/-/release?gpu=9", "/-/release", "/-/release?gpu=0&ttl=soon")] == [404, 400, 400]
    assert post("/-/release?gpu=0", "GET")[0] == 405
    assert post("/-/resume?gpu=0")[0] == 200
    assert simulated.exporter.values("gpu_up") == [1.0, 1.0]


def test_release_is_unavailable_over_the_network(simulated: Simulated) -> None:
    assert simulated.exporter.get("/-/release?gpu=0", method="POST").status == 404
    assert simulated.exporter.values("gpu_up") == [1.0, 1.0]


def test_control_socket_path_with_a_regular_file_is_kept(cli: Cli, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("do not lose me")

    ended = cli("exporter", "--simulate", "1", "--listen", "127.0.0.1:0", "--spool", tmp_path, "--control.socket", precious)

    assert (ended.returncode, precious.read_text()) == (3, "do not lose me")
    assert len(ended.stderr.splitlines()) == 1
    assert f"{precious}: " in ended.stderr


def test_a_second_exporter_does_not_take_the_socket(simulated: Simulated, cli: Cli, tmp_path: Path) -> None:
    control = simulated.control

    second = cli("exporter", "--simulate", "1", "--listen", "127.0.0.1:0", "--spool", tmp_path, "--control.socket", control)

    assert second.returncode == 3
    assert "another exporter" in second.stderr
    assert cli("exporter", "resume", "0", "--socket", control).returncode == 0
