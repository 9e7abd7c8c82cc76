"""The exporter's pages and manners, asked over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from rankscope.exporter.web.control import Control
from rankscope.exporter.web.http_connection import Request, Response
from rankscope.exporter.web.server import Endpoint, Server

pytestmark = pytest.mark.slow  # each starts real processes

HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"


def test_simulated_gpus_say_so_everywhere(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "2")

    page = exporter.get("/metrics").text
    assert page.startswith("# SIMULATED")
    assert exporter.values("gpu_info", simulated="true") == [1.0, 1.0]
    assert exporter.values("gpu_info", simulated="false") == []
    assert exporter.values("rankscope_exporter_simulated") == [1.0]
    assert "SIMULATED" in exporter.get("/").text
    assert "SIMULATED" in exporter.stderr
    assert "gpus=2 up=2" in exporter.stderr


def test_real_gpus_are_not_called_simulated(start_exporter: Callable[..., Any], fake_nvml: Any) -> None:
    exporter = start_exporter(env=fake_nvml.env)

    assert "simulat" not in exporter.get("/").text.lower()
    assert "simulat" not in exporter.stderr.lower()
    assert exporter.values("rankscope_exporter_simulated") == [0.0]
    assert not exporter.get("/metrics").text.startswith("# SIMULATED")


def test_formats_by_the_accept_header(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1")

    plain = exporter.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")

    openmetrics = exporter.get("/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(openmetrics.text)}  # type: ignore[no-untyped-call]
    assert families["gpu_energy_joules"].type == "counter"
    assert families["gpu_info"].samples[0].labels["simulated"] == "true"

    for nonsense in ("application/openmetrics-text;version=x.y", "text/plain;version=", ";;,=", "*/*"):
        assert exporter.get("/metrics", accept=nonsense).status == 200


def test_compression_only_for_those_who_ask(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1")

    packed = exporter.get("/metrics", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert b"gpu_up" in gzip.decompress(packed.body)
    assert "content-encoding" not in exporter.get("/metrics").headers


def test_head_other_methods_and_unknown_paths(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1")

    head = exporter.get("/metrics", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    assert exporter.get("/nothing").status == 404
    assert exporter.get("//metrics/../etc").status == 404
    post = exporter.get("/metrics", method="POST")
    assert (post.status, post.headers["allow"]) == (405, "GET, HEAD")
    landing = exporter.get("/")
    assert landing.headers["content-type"].startswith("text/html")
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert f'href="{path}"' in landing.text


def test_ready_says_which_collector_keeps_it_from_being_so(start_exporter: Callable[..., Any], tmp_path: Any) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    exporter = start_exporter("--simulate", "1")
    assert exporter.get("/-/ready").status == 200

    shutil.rmtree(spool)

    exporter.wait_until(lambda: exporter.get("/-/ready").status == 503)
    assert "spool: " in exporter.get("/-/ready").text
    assert exporter.get("/-/healthy").status == 200
    assert exporter.values("gpu_up") == [1.0]


def test_stalled_connections_do_not_block_scrapes(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1")
    with contextlib.ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(socket.create_connection((exporter.host, exporter.port), timeout=20))
            connection.sendall(HALF_A_REQUEST if number % 2 else b"")

        for _ in range(3):
            assert exporter.values("gpu_up") == [1.0]


SHORT_DEADLINES = (
    "import rankscope.exporter.web.http_connection as http; "
    "http.REQUEST_DEADLINE_S = http.RESPONSE_DEADLINE_S = 0.5; http.KEEP_ALIVE_S = 1"
)


@pytest.mark.parametrize("before", [b"", HEALTHY], ids=["first", "second"])
@pytest.mark.parametrize("sent", [b"", HALF_A_REQUEST], ids=["nothing", "half"])
def test_a_client_that_does_not_finish_its_request_is_cut_off(
    start_exporter: Callable[..., Any], before: bytes, sent: bytes
) -> None:
    exporter = start_exporter("--simulate", "1", prelude=SHORT_DEADLINES)
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        if before:
            connection.sendall(before)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(sent)

        # the end of the connection, by a reset or in order, and no time-out of ours
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass

    assert exporter.values("gpu_up") == [1.0]


def test_a_client_that_does_not_read_is_cut_off(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "64", prelude=SHORT_DEADLINES)
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        # given a client that asks and asks without reading a page
        with contextlib.suppress(ConnectionError):
            for _ in range(5000):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 10)

        # then the connection ends without any further reading of ours
        poll = select.poll()
        poll.register(connection, select.POLLHUP | select.POLLERR)
        assert poll.poll(20_000)

    assert len(exporter.values("gpu_up")) == 64


def test_nonsense_on_the_line_gets_a_400_and_harms_nobody(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1")
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")

    assert exporter.get("/-/healthy").status == 200


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(start_exporter: Callable[..., Any], signal_number: int) -> None:
    exporter = start_exporter("--simulate", "1")
    stalled = socket.create_connection((exporter.host, exporter.port))

    assert exporter.stop(signal_number) == 0
    assert "Traceback" not in exporter.stderr
    stalled.close()


def test_a_port_in_use_is_one_clear_line(
    start_exporter: Callable[..., Any], cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Any
) -> None:
    exporter = start_exporter("--simulate", "1")

    result = cli("exporter", "--simulate", "1", "--spool", tmp_path / "spool", "--listen", f"127.0.0.1:{exporter.port}")

    assert result.returncode == 3
    assert len(result.stderr.splitlines()) == 1
    assert f"127.0.0.1:{exporter.port}" in result.stderr
    assert "--web.listen-address" in result.stderr


def test_ipv6(start_exporter: Callable[..., Any]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")

    exporter = start_exporter("--simulate", "1", "--listen", "[::1]:0")

    assert exporter.host == "::1"
    assert exporter.values("gpu_up") == [1.0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listen", "nowhere"),
        ("--listen", "localhost:99999"),
        ("--interval", "0s"),
        ("--interval", "soon"),
        ("--simulate", "0"),
        ("--no-collector.gpu", "--no-collector.spool"),
        ("--no-collector.gpu", "--simulate", "1"),
    ],
)
def test_wrong_usage_is_status_2(cli: Callable[..., subprocess.CompletedProcess[str]], arguments: tuple[str, ...]) -> None:
    result = cli("exporter", *arguments, "--once")

    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_what_cannot_be_used_is_status_3(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Any) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert cli("exporter", "--once", "--simulate", "1", "--spool", file).returncode == 3

    for address in ("192.0.2.1:9838", "a..b:9838"):
        result = cli("exporter", "--simulate", "1", "--spool", tmp_path / "spool", "--listen", address)

        assert result.returncode == 3
        assert len(result.stderr.splitlines()) == 1
        assert address in result.stderr


def test_a_spool_one_may_not_look_into_is_status_3(tmp_path: Any, without_privilege: list[str]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)

    for spool in (locked, locked / "spool"):
        command = [*without_privilege, sys.executable, "-m", "rankscope", "exporter", "--once", "--simulate", "1"]
        result = subprocess.run([*command, "--spool", spool], capture_output=True, text=True, timeout=60, check=False)

        assert result.returncode == 3
        assert len(result.stderr.splitlines()) == 1
        assert f"{spool}: Permission denied" in result.stderr


@pytest.mark.parametrize("once", [(), ("--once",)])
def test_a_spool_below_a_folder_that_is_missing_is_status_3_and_made_by_nobody(
    cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Any, once: tuple[str, ...]
) -> None:
    listen = ("--listen", "127.0.0.1:0")
    result = cli("exporter", "--simulate", "1", *listen, *once, "--spool", tmp_path / "nope" / "spool")

    assert result.returncode == 3
    assert len(result.stderr.splitlines()) == 1
    assert f"{tmp_path / 'nope'}: No such file or directory" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_once_prints_one_page_and_makes_nothing(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Any) -> None:
    result = cli("exporter", "--once", "--simulate", "3", "--spool", tmp_path / "spool")

    assert result.returncode == 0
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []
    assert '\nrankscope_exporter_collector_success{collector="spool"} 1' in result.stdout
    assert result.stdout.startswith("# SIMULATED")
    assert result.stdout.count("\ngpu_up{") == 3


def test_once_knows_the_errors_of_gpus_and_keeps_nothing(
    cli: Callable[..., subprocess.CompletedProcess[str]], fake_nvml: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name, value in fake_nvml.env.items():
        monkeypatch.setenv(name, value)

    printed = cli(
        "exporter", "--once", "--no-xid.kernel-log", "--spool", tmp_path / "spool", "--state-dir", tmp_path / "state"
    ).stdout

    assert printed.count('xid="79"} 0') == 2
    assert "xid_journal_durable" not in printed
    assert not (tmp_path / "state").exists()


def test_once_prints_the_other_page_too_and_refuses_a_file_it_cannot_use(
    cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Any
) -> None:
    command = ("exporter", "--simulate", "1", "--once", "--spool", tmp_path / "spool", "--compat", "dcgm")

    printed = cli(*command).stdout
    assert printed.index("\ngpu_up{") < printed.index("\nDCGM_FI_DEV_GPU_TEMP{") < printed.index("\nDCGM_FI_DEV_ENC_UTIL{")
    # nothing of it lasts
    assert "xid_journal_durable" not in printed

    (tmp_path / "counters.csv").write_text("nonsense")
    refused = cli(*command, "--compat.dcgm-counters", tmp_path / "counters.csv")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "counters.csv:1: " in refused.stderr


def test_help_shows_examples_that_can_be_copied(cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    lines = [line.strip() for line in cli("exporter", "--help").stdout.splitlines()]

    assert any(line.startswith("rankscope exporter --simulate 4 --once  ") for line in lines)
    assert not any("\\b" in line for line in lines)


@pytest.mark.parametrize(
    ("missing", "arguments"), [("h11", ("--simulate", "1", "--listen", "127.0.0.1:0")), ("pynvml", ("--once",))]
)
def test_a_missing_extra_is_one_line_and_help_works_without_it(missing: str, arguments: tuple[str, ...], tmp_path: Any) -> None:
    hide = (
        f"import sys; sys.modules[{missing!r}] = None; from rankscope.exporter.commands import exporter; exporter(sys.argv[1:])"
    )

    broken = subprocess.run(
        [sys.executable, "-c", hide, *arguments, "--spool", tmp_path / "spool"], capture_output=True, text=True, check=False
    )
    helped = subprocess.run([sys.executable, "-c", hide, "--help"], capture_output=True, text=True, check=False)

    assert broken.returncode == 4
    assert len(broken.stderr.splitlines()) == 1
    assert "pip install 'rankscope[exporter]'" in broken.stderr
    assert helped.returncode == 0
    assert "--simulate" in helped.stdout


def test_collect_chooses_collectors_and_refuses_others(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1", "--no-collector.ecc")

    page = exporter.get("/metrics?collect[]=power&collect%5B%5D=fan").text
    assert "\ngpu_power_watts{" in page
    assert "\ngpu_temperature_celsius{" not in page
    for query, said in (("collect[]=powr", "no such collector: powr"), ("collect[]=ecc", "switched off: ecc")):
        answer = exporter.get(f"/metrics?{query}")
        assert (answer.status, said in answer.text, "power" in answer.text) == (400, True, True)
    assert exporter.get("/metrics?" + "&".join("collect[]=power" for _ in range(1000))).status == 400
    excluded = exporter.get("/metrics?exclude[]=power")
    assert (excluded.status, "collect[]" in excluded.text) == (400, True)
    # what is on the page about the spool is brought by its collector
    assert "rankscope_exporter_spool_files" in exporter.get("/metrics?collect[]=spool").text
    assert "rankscope_exporter_spool_files" not in page


def test_the_dcgm_page_beside_ours_and_on_an_address_of_its_own(
    start_exporter: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    port = free_port()
    exporter = start_exporter("--simulate", "2xH100", "--compat", "dcgm", "--compat.listen-address", f"127.0.0.1:{port}")

    assert exporter.get("/dcgm/metrics").text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2
    for query in ("collect[]=power", "exclude[]=power"):
        assert exporter.get(f"/dcgm/metrics?{query}").status == 400
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", f"/metrics?{query}")
            assert connection.getresponse().status == 400
    assert "DCGM_FI" not in exporter.get("/metrics").text
    exporter.port = port
    assert exporter.get("/metrics").text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2
    assert exporter.get("/-/healthy").status == 200
    assert exporter.get("/").status == 404


def ask(exporter: Any, sent: bytes) -> bytes:
    """All that comes back until the server closes."""
    answer = b""
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        connection.sendall(sent)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def test_http_as_it_is_spoken(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1")
    last = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    assert ask(exporter, b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nhealthy\n")
    assert ask(exporter, HEALTHY * 20 + last).count(b"\r\n\r\nhealthy\n") == 21
    assert ask(exporter, b"GET http://x/-/healthy?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    assert ask(exporter, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + last).count(b"# HELP") == 0
    # a body that is announced, chunked, waited for, or too large
    assert ask(exporter, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" + last).startswith(b"HTTP/1.1 405")
    expecting = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        connection.sendall(expecting)
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"body")
        assert connection.recv(100).startswith(b"HTTP/1.1 405")
    assert ask(exporter, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"x" * 20000).startswith(
        b"HTTP/1.1 413"
    )
    assert ask(exporter, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20000).startswith(b"HTTP/1.1 431")
    # who says no more may still listen
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        connection.sendall(HEALTHY)
        connection.shutdown(socket.SHUT_WR)
        assert connection.makefile("rb").read().endswith(b"healthy\n")


def test_a_body_that_never_comes_is_not_waited_for(start_exporter: Callable[..., Any]) -> None:
    exporter = start_exporter("--simulate", "1", prelude=SHORT_DEADLINES)
    with socket.create_connection((exporter.host, exporter.port), timeout=20) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nsome")

        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass

    assert exporter.get("/-/healthy").status == 200


def test_a_thousand_idle_connections_leave_scrapes_working_and_those_who_scrape_their_connection(
    start_exporter: Callable[..., Any],
) -> None:
    exporter = start_exporter("--simulate", "1")
    scraper = exporter.connect()
    scraper.request("GET", "/metrics")
    assert b"gpu_up" in scraper.getresponse().read()
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection((exporter.host, exporter.port), timeout=20))

        # on the same connection, which none of them has displaced, and on a new one
        scraper.request("GET", "/metrics")
        assert b"gpu_up" in scraper.getresponse().read()
        assert exporter.values("gpu_up") == [1.0]
    scraper.close()


def test_few_descriptors_are_shared_out(start_exporter: Callable[..., Any]) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))"
    exporter = start_exporter("--simulate", "1", prelude=limit)
    limits = Path(f"/proc/{exporter.process.pid}/limits").read_text()
    assert re.search(r"Max open files +128 +128", limits)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((exporter.host, exporter.port), timeout=20))

        assert exporter.values("gpu_up") == [1.0]
        sockets = [path for path in Path(f"/proc/{exporter.process.pid}/fd").iterdir() if "socket" in _target(path)]
        assert len(sockets) <= 64 + 6  # its own among them


def test_a_response_that_cannot_be_sent_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_request: Request) -> Response:
        return Response(200, b"", headers=(("x-blank", " first"),))

    async def main() -> bytes:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = Server([Endpoint(listening, answer)])
            server.start()
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(HEALTHY)
            said = b""
            with contextlib.suppress(ConnectionResetError):
                said = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            await server.stop()
        return said

    assert asyncio.run(main()) == b""
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_defect_is_logged_once_however_often_somebody_asks(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_request: Request) -> Response:
        raise RuntimeError("a defect")

    async def main() -> list[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = Server([Endpoint(listening, fail)])
            server.start()
            answers = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(HEALTHY)
                answers.append(await reader.readline())
                writer.close()
                await writer.wait_closed()
            await server.stop()
        return answers

    assert asyncio.run(main()) == [b"HTTP/1.1 500 Internal Server Error\r\n"] * 3
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_token_file_that_cannot_be_read_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    control = Control(None, lambda: None)
    control.token_file = tmp_path / "missing"
    request = Request("POST", "/-/release", "", {}, "192.0.2.1", tls=True)

    refusals = [asyncio.run(control.refusal(request)) for _ in range(3)]

    assert [refusal.status for refusal in refusals if refusal is not None] == [403] * 3
    assert len(caplog.records) == 1


def test_it_says_why_when_only_a_restart_helps(start_exporter: Callable[..., Any], fake_nvml: Any) -> None:
    exporter = start_exporter(env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 1.0])
    pid = exporter.process.pid
    (nursery,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    os.kill(nursery, signal.SIGKILL)

    assert exporter.process.wait(20) == 6
    exporter.close()
    errors = [line for line in exporter.stderr.splitlines() if "level=error" in line]
    assert len(errors) == 1
    assert "ends with status 6: the process that starts all others died" in errors[0]


@pytest.mark.slow
def test_what_nobody_could_ask_yet_is_not_ready(start_exporter: Callable[..., Any], fake_nvml: Any) -> None:
    fake_nvml.hang("nvmlDeviceGetUUID", gpu=1)
    exporter = start_exporter("--expected-gpus", "3", env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0])

    ready = exporter.get("/-/ready")

    assert ready.status == 503
    assert "gpu 00000000:1b:00.0: starting: its process is in nvmlDeviceGetUUID; it has not said yet who it is\n" in ready.text
    landing = exporter.get("/").text
    assert "00000000:1b:00.0" in landing
    exporter.wait_until(lambda: "The node shows 2 GPUs, but 3 are expected" in exporter.get("/").text)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def test_systemd_is_told_when_it_serves(start_exporter: Callable[..., Any], tmp_path: Any) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        exporter = start_exporter("--simulate", "1", env={"NOTIFY_SOCKET": str(tmp_path / "notify")})

        assert systemd.recv(100) == b"READY=1"
        assert exporter.stop(signal.SIGTERM) == 0
        assert systemd.recv(100) == b"STOPPING=1"


def test_a_signal_ends_it_while_the_driver_hangs(start_exporter: Callable[..., Any], fake_nvml: Any) -> None:
    fake_nvml.hang("nvmlDeviceGetPowerUsage", gpu=1)
    exporter = start_exporter(env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0, 0.0])

    assert exporter.stop(signal.SIGTERM) == 0


def test_the_landing_page_is_inert_and_tells_why_a_gpu_is_down(start_exporter: Callable[..., Any], fake_nvml: Any) -> None:
    fake_nvml.gpus[0]["name"] = "<script>alert(1)</script>"
    fake_nvml.lose(1)
    exporter = start_exporter("--host", '"><img src=x onerror=alert(1)>', env=fake_nvml.env)
    exporter.wait_until(lambda: exporter.values("gpu_up")[:1] == [1.0])

    landing = exporter.get("/")

    assert "<script" not in landing.text
    assert "<img" not in landing.text
    assert "default-src 'none'" in landing.headers["content-security-policy"]
    assert "&lt;script&gt;" in landing.text
    assert 'name="viewport"' in landing.text
