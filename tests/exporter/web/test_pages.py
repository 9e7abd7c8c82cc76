"""Content and formats of the exporter's pages, its readiness, and HTTP as clients speak it."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from tests.exporter.conftest import IMPATIENT, WITHOUT_FIRST_SAMPLE, RunningExporter, StartExporter
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.web.conftest import Simulated

pytestmark = pytest.mark.slow  # each starts real processes


def test_simulated_gpus_are_marked_on_every_output(simulated: Simulated) -> None:
    exporter = simulated.exporter

    page = exporter.get("/metrics").text
    assert page.startswith("# SIMULATED")
    assert exporter.values("gpu_info", simulated="true") == [1.0, 1.0]
    assert exporter.values("gpu_info", simulated="false") == []
    assert exporter.values("rankscope_exporter_simulated") == [1.0]
    assert "SIMULATED" in exporter.get("/").text
    assert "SIMULATED" in exporter.stderr
    assert "gpus=2 up=2" in exporter.stderr


def test_landing_page_escapes_names(start_exporter: StartExporter, fake_nvml: FakeDriver) -> None:
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
    # real GPUs are never called simulated
    assert "simulat" not in (landing.text + exporter.stderr).lower()
    assert exporter.values("rankscope_exporter_simulated") == [0.0]
    assert not exporter.get("/metrics").text.startswith("# SIMULATED")


def test_accept_header_selects_the_format(simulated: Simulated) -> None:
    exporter = simulated.exporter

    plain = exporter.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")

    openmetrics = exporter.get("/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(openmetrics.text)}  # type: ignore[no-untyped-call]
    assert families["gpu_energy_joules"].type == "counter"
    assert families["gpu_info"].samples[0].labels["simulated"] == "true"

    for nonsense in ("application/openmetrics-text;version=x.y", "text/plain;version=", ";;,=", "*/*"):
        assert exporter.get("/metrics", accept=nonsense).status == 200


def test_page_is_compressed_on_request(simulated: Simulated) -> None:
    packed = simulated.exporter.get("/metrics", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert b"gpu_up" in gzip.decompress(packed.body)
    assert "content-encoding" not in simulated.exporter.get("/metrics").headers


def test_head_other_methods_and_unknown_paths_get_http_status(simulated: Simulated) -> None:
    exporter = simulated.exporter

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


def test_collect_parameter_selects_collectors_and_refuses_unknown(simulated: Simulated) -> None:
    exporter = simulated.exporter

    page = exporter.get("/metrics?collect[]=power&collect%5B%5D=fan").text
    assert "\ngpu_power_watts{" in page
    assert "\ngpu_temperature_celsius{" not in page
    for query, why in (("collect[]=powr", "no such collector: powr"), ("collect[]=p2p", "switched off: p2p")):
        answer = exporter.get(f"/metrics?{query}")
        assert (answer.status, why in answer.text, "power" in answer.text) == (400, True, True)
    assert exporter.get("/metrics?" + "&".join("collect[]=power" for _ in range(1000))).status == 400
    for unknown in ("exclude[]=power", "collect=power", "Collect[]=", "a%0Ab=1"):
        refused = exporter.get(f"/metrics?{unknown}")
        assert (refused.status, "collect[]" in refused.text, refused.text.count("\n")) == (400, True, 1)
    # metrics about the spool come from its collector
    assert "rankscope_exporter_spool_files" in exporter.get("/metrics?collect[]=spool").text
    assert "rankscope_exporter_spool_files" not in page


def test_dcgm_page_is_served_on_a_path_and_a_separate_address(simulated: Simulated) -> None:
    exporter = simulated.exporter
    exporter.wait_until(lambda: "DCGM-compatible page" in exporter.stderr)
    port = re.search(r"the DCGM-compatible page is on http://127\.0\.0\.1:(\d+)/metrics", exporter.stderr)
    assert port is not None

    def get(path: str) -> tuple[int, str]:
        answer = exporter.get(path, port=int(port[1]))
        return answer.status, answer.text

    assert exporter.get("/dcgm/metrics").text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2
    for query in ("collect[]=power", "exclude[]=power", "x"):
        assert exporter.get(f"/dcgm/metrics?{query}").status == 400
        assert get(f"/metrics?{query}")[0] == 400
    assert "DCGM_FI" not in exporter.get("/metrics").text
    assert get("/metrics")[1].count("\nDCGM_FI_DEV_GPU_TEMP{") == 2
    assert [get(path)[0] for path in ("/-/healthy", "/")] == [200, 404]


def test_ready_names_the_collector_that_fails(start_exporter: StartExporter, tmp_path: Path) -> None:
    exporter = start_exporter("--simulate", "1")
    assert exporter.get("/-/ready").status == 200

    shutil.rmtree(tmp_path / "spool")

    exporter.wait_until(lambda: exporter.get("/-/ready").status == 503)
    assert "spool: " in exporter.get("/-/ready").text
    assert exporter.get("/-/healthy").status == 200
    assert exporter.values("gpu_up") == [1.0]


def test_gpu_hung_at_start_is_not_ready_and_delays_no_exit(start_exporter: StartExporter, fake_nvml: FakeDriver) -> None:
    fake_nvml.hang("nvmlDeviceGetUUID", gpu=1)
    exporter = start_exporter("--expected-gpus", "3", env=fake_nvml.env, prelude=f"{IMPATIENT}; {WITHOUT_FIRST_SAMPLE}")
    exporter.wait_until(lambda: exporter.values("gpu_up") == [1.0])

    ready = exporter.get("/-/ready")

    assert ready.status == 503
    (line,) = (line for line in ready.text.splitlines() if "00000000:1b:00.0" in line)
    assert "nvmlDeviceGetUUID" in line
    assert "00000000:1b:00.0" in exporter.get("/").text
    exporter.wait_until(lambda: "2 GPUs, but 3 are expected" in exporter.get("/").text)
    assert exporter.stop(signal.SIGTERM) == 0


def test_exporter_listens_on_ipv6(start_exporter: StartExporter) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")

    exporter = start_exporter("--simulate", "1", "--listen", "[::1]:0")

    assert exporter.host == "::1"
    assert exporter.values("gpu_up") == [1.0]


def connect(exporter: RunningExporter) -> socket.socket:
    return socket.create_connection((exporter.host, exporter.port), timeout=120)


def ask(exporter: RunningExporter, sent: bytes) -> bytes:
    """Send bytes and return everything received until the server closes."""
    answer = b""
    with connect(exporter) as connection:
        connection.sendall(sent)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def test_request_variants_of_http_clients_are_handled(simulated: Simulated) -> None:
    exporter = simulated.exporter
    last = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    assert ask(exporter, b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nhealthy\n")
    healthy = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
    assert ask(exporter, healthy * 20 + last).count(b"\r\n\r\nhealthy\n") == 21
    assert ask(exporter, b"GET http://x/-/healthy?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    assert ask(exporter, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + last).count(b"# HELP") == 0
    # a body with a length, chunked, with Expect: 100-continue, or too large
    assert ask(exporter, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody" + last).startswith(b"HTTP/1.1 405")
    expecting = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with connect(exporter) as connection:
        connection.sendall(expecting)
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"body")
        assert connection.recv(100).startswith(b"HTTP/1.1 405")
    assert ask(exporter, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" + b"x" * 20000).startswith(
        b"HTTP/1.1 413"
    )
    assert ask(exporter, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20000).startswith(b"HTTP/1.1 431")
    # a client that closed its sending side still gets the answer
    with connect(exporter) as connection:
        connection.sendall(healthy)
        connection.shutdown(socket.SHUT_WR)
        assert connection.makefile("rb").read().endswith(b"healthy\n")


@pytest.mark.full
def test_connections_are_bounded_by_the_descriptor_limit(start_exporter: StartExporter) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))"
    exporter = start_exporter("--simulate", "1", prelude=limit)
    limits = Path(f"/proc/{exporter.process.pid}/limits").read_text()
    assert re.search(r"Max open files +128 +128", limits)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(exporter))

        assert exporter.values("gpu_up") == [1.0]
        sockets = [path for path in Path(f"/proc/{exporter.process.pid}/fd").iterdir() if "socket" in _target(path)]
        assert len(sockets) <= 64 + 6  # including the exporter's own sockets


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
