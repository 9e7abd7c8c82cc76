"""Page of the exporter: its parts that a run stores, from pages that the exporter's own tests verify, and broken servers."""

from __future__ import annotations

import base64
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rankscope.exporter.catalogue import BY_NAME
from rankscope.exporter.xids import XIDS
from rankscope.profiler.helper.sampling import exporter_page
from rankscope.profiler.helper.sampling.exporter_page import (
    _SAMPLED_METRICS,
    _WANTED,
    MAX_PAGE_BYTES,
    NO_GPU,
    PROGRAMS,
    ScrapeError,
    fetch,
    parse_target,
    read_page,
)
from rankscope.profiler.helper.sampling.hardware import AbsenceFilter
from rankscope.runs.records import HardwareSample

NODE = Path(__file__).parents[2] / "exporter" / "golden" / "node.txt"


H100, A100, DIVIDED, HUNG = (f"GPU-{index}0000000-aaaa-bbbb-cccc-000000000000" for index in range(4))


def test_every_sampled_metric_is_in_the_exporter_catalogue() -> None:
    assert set(BY_NAME) >= _WANTED
    for name, kept in _SAMPLED_METRICS.items():
        assert kept.label is None or kept.label[0] in BY_NAME[name].labels


def test_gpu_becomes_a_sample_in_base_units() -> None:
    samples = {sample.gpu_uuid: sample for sample in read_page(NODE.read_bytes(), 7)}
    assert samples[H100] == HardwareSample(
        unix_ns=7,
        gpu_uuid=H100,
        gpu_index=0,
        utilization_ratio=0.91,
        memory_used_bytes=59881419774,
        memory_total_bytes=80 * 2**30,
        temperature_celsius=66.0,
        temperature_margin_celsius=21.0,
        power_watts=597.764,
        power_limit_watts=700.0,
        sm_clock_hertz=1836e6,
        sm_clock_max_hertz=1980e6,
        throttle_reasons=[],
        ecc_uncorrected_errors=0,
        pcie_replays=0,
        nvlink_errors=0,
        pcie_link_width=16,
        pcie_link_generation=5,
        nvlinks_down=0,
    )


def test_missing_gpu_value_is_none_not_zero() -> None:
    samples = {sample.gpu_uuid: sample for sample in read_page(NODE.read_bytes(), 7)}
    assert (samples[A100].ecc_uncorrected_errors, samples[A100].xid_errors, samples[DIVIDED].throttle_reasons) == (None,) * 3
    page = (
        f'gpu_up{{uuid="{A100}"}} 1\ngpu_power_watts{{uuid="{A100}"}} NaN\ngpu_xid_errors_total{{uuid="{A100}",xid="79"}} NaN\n'
    )
    assert read_page(page.encode(), 1) == [HardwareSample(unix_ns=1, gpu_uuid=A100)]


def test_series_of_one_quantity_are_summed_and_reasons_listed() -> None:
    page = f"""
gpu_info{{uuid="{H100}",index="3",model="a \\"b\\", c\\\\",simulated="true"}} 1
gpu_xid_errors_total{{uuid="{H100}",xid="79"}} 2
gpu_xid_errors_total{{uuid="{H100}",xid="48"}} 1 1700000000000
gpu_xid_errors_total{{uuid="{H100}",xid="13"}} 4
gpu_xid_errors_total{{uuid="{H100}",xid="45"}} 8
gpu_xid_errors_total{{uuid="{H100}",xid="other"}} 1
gpu_ecc_errors_total{{uuid="{H100}",error="corrected",memory="dram"}} 90
gpu_ecc_errors_total{{uuid="{H100}",error="uncorrected",memory="dram"}} 4
gpu_ecc_errors_total{{uuid="{H100}",error="uncorrected",memory="sram"}} 1
gpu_clock_hertz{{uuid="{H100}",clock="memory"}} 2.6e9
gpu_throttle_active{{uuid="{H100}",reason="hw_thermal"}} 1
gpu_throttle_active{{uuid="{H100}",reason="sw_power_cap"}} 0
rank_state{{run_id="gpu_up{{",rank="0"}} 1
"""
    assert read_page(page.encode(), 1) == [
        HardwareSample(
            unix_ns=1,
            gpu_uuid=H100,
            gpu_index=3,
            simulated=True,
            xid_errors=16,
            xid_errors_of_programs=12,
            ecc_uncorrected_errors=5,
            throttle_reasons=["hw_thermal"],
        )
    ]


def test_application_xid_codes_match_the_exporter_table() -> None:
    assert {str(xid.code) for xid in XIDS.values() if xid.cause == "application"} == PROGRAMS


def test_mig_devices_have_their_own_rows_with_parent_uuid() -> None:
    devices = [sample for sample in read_page(NODE.read_bytes(), 7) if sample.parent_uuid is not None]
    assert [sample.parent_uuid for sample in devices] == [DIVIDED] * 3
    assert [sample.memory_used_bytes for sample in devices] == [10 * 2**30, 11 * 2**30, 12 * 2**30]


@pytest.mark.parametrize(
    "line",
    [b'gpu_up{uuid="a} 1', b'gpu_up{uuid="a"} one', b"gpu_up{uuid=a} 1", b'gpu_up{uuid="a"}', b'gpu_up{uuid="\xff"} 1'],
)
def test_damaged_page_is_rejected_as_a_whole(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_page(b'gpu_up{uuid="b"} 1\n' + line + b"\n", 1)


def test_missing_gpu_is_recorded_once_and_values_always() -> None:
    first, other = (HardwareSample(unix_ns=1, gpu_uuid=uuid, power_watts=1.0) for uuid in (H100, A100))
    history = AbsenceFilter(None)

    assert [row.missing for row in history.absent("refused", 1)] == ["refused"]
    assert history.absent("timed out", 2) == [], "it is as absent as before"
    assert history.rows_of([first, other], 3) == history.rows_of([first, other], 4) == [first, other]
    gone = history.rows_of([first], 5)
    assert (gone[0], gone[1].gpu_uuid) == (first, A100)
    assert gone[1].missing
    assert history.rows_of([first], 6) == [first]
    assert history.rows_of([first, other], 7) == [first, other]
    assert [row.gpu_uuid for row in history.rows_of([first], 8) if row.missing] == [A100], "gone a second time"
    assert [row.missing for row in history.absent("refused", 9)] == ["refused"]


def test_unresponsive_gpu_is_recorded_once_per_reason() -> None:
    hung, lost = (HardwareSample(unix_ns=1, gpu_uuid=HUNG, missing=reason) for reason in ("hung", "lost"))
    history = AbsenceFilter(None)
    assert [history.rows_of([row], 1) for row in (hung, hung, lost, lost)] == [[hung], [], [lost], []]


def test_exporter_without_gpus_is_recorded_as_missing_once() -> None:
    history = AbsenceFilter(None)
    assert history.rows_of([], 1) == [HardwareSample(unix_ns=1, missing=NO_GPU)]
    assert history.rows_of([], 2) == []


def test_own_gpu_is_missing_when_absent_from_the_exporter_page() -> None:
    seen = HardwareSample(unix_ns=1, gpu_uuid="MIG-1-2-3")
    assert [row.gpu_uuid for row in AbsenceFilter(H100).rows_of([seen], 1) if row.missing] == [H100]
    assert AbsenceFilter("GPU-1-2-3").rows_of([seen], 1) == [seen], "CUDA gives a MIG device's uuid without saying that it is one"


Answer = Callable[[Any], None]


Serve = Callable[[Answer], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Function ``serve(answer)``, which answers GET with ``answer(handler)`` and returns the address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):
                    answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def page(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Return an answer with that body."""

    def answer(handler: Any) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_page_is_fetched_without_the_environment_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetch(parse_target(serve(page(b"gpu_up 1\n")))) == b"gpu_up 1\n"


def test_user_and_password_are_sent_but_never_shown(serve: Serve) -> None:
    seen: list[tuple[str, str]] = []

    def answer(handler: Any) -> None:
        seen.append((handler.headers["Authorization"], handler.path))
        page(b"", 401)(handler)

    target = parse_target(serve(answer).replace("http://", "http://me:se%20cret@") + "/m?a=1")
    with pytest.raises(ScrapeError, match="401") as refusal:
        fetch(target)
    assert seen == [("Basic " + base64.b64encode(b"me:se cret").decode(), "/m?a=1")]
    assert "cret" not in f"{target} {target.shown} {refusal.value}"
    assert target.shown.endswith("/m?a=1")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page(b"", 302, {"Location": "http://127.0.0.1:1/"}), "status 302"),
        (page(b"x" * (MAX_PAGE_BYTES + 1)), "more than"),
        (page(b"half", 200, {"Content-Length": "8"}), "cut off"),
        (lambda handler: handler.wfile.write(b"220 smtp ready\r\n"), "smtp"),
    ],
    ids=["redirect", "too large", "cut off", "another service"],
)
def test_invalid_response_raises_an_error_with_the_reason(serve: Serve, answer: Answer, reason: str) -> None:
    with pytest.raises(ScrapeError, match=reason):
        fetch(parse_target(serve(answer)))


def test_refused_connection_raises_scrape_error(refusing_port: int) -> None:
    with pytest.raises(ScrapeError, match="refused"):
        fetch(parse_target(f"http://127.0.0.1:{refusing_port}/metrics"))


@pytest.mark.parametrize("first", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.0 200 OK\r\n\r\n"], ids=["head", "body"])
def test_slowly_dripping_page_times_out(serve: Serve, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr(exporter_page, "DEADLINE_SECONDS", 0.3)

    def drip(handler: Any) -> None:
        handler.wfile.write(first)
        while True:
            handler.wfile.write(b"X-A: b\r\n")
            time.sleep(0.02)

    with pytest.raises(ScrapeError, match="too long"):
        fetch(parse_target(serve(drip)))


def test_unresponsive_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_page, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ScrapeError, match=r"timed out|too long"):
        fetch(parse_target(f"http://127.0.0.1:{silent.getsockname()[1]}"))


@pytest.mark.parametrize(
    "url",
    ["", "host:9838", "ftp://a/", "http://", "http://a:x:secret@h:port/", "http://h/a b", "http://h/\r\nHost: b", "http://[::1"],
)
def test_invalid_address_is_refused_without_quoting_the_secret(url: str) -> None:
    with pytest.raises(ValueError, match="address") as refusal:
        parse_target(url)
    assert "secret" not in str(refusal.value)


def test_address_without_a_path_defaults_to_metrics() -> None:
    assert (parse_target("https://h").path, parse_target("http://h:1/x").path) == ("/metrics", "/x")
    assert parse_target("https://[::1]:9/").port == 9
