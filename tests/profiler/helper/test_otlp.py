"""Traces sent by a rank's helper to a collector, over HTTP and gRPC, and the behaviour without a collector."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import add_TraceServiceServicer_to_server
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from tests.otlp_http import receiving_grpc
from tests.profiler.handovers import context_of, handover_of
from tests.profiler.otlp_collector import Collector, collecting
from tests.waiting import DEADLINE_S, wait_until

from rankscope.profiler.helper.publishing.otlp import MAX_WAITING, OtlpTraces
from rankscope.profiler.helper.publishing.otlp_sdk import _FirstStepWarning, _ReportingExporter
from rankscope.profiler.helper.publishing.spans import trace_id
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import PhaseTimes, RunInfo, StepRecord

START = 1_700_000_000_000_000_000


def step(number: int) -> StepRecord:
    """Return a step of 3 ms that began ``number`` seconds after the run."""
    return StepRecord(
        step=number,
        start_unix_ns=START + number * 10**9,
        wall_us=3000.0,
        phases_us=PhaseTimes(forward=1000.0, backward=2000.0),
        blocked_us=PhaseTimes(forward=0.0, backward=500.0),
    )


def intervals(number: int) -> list[PhaseInterval]:
    """Return the times of two micro-batches in that step."""
    at = START + number * 10**9
    return [
        PhaseInterval("forward", at, at + 400_000, 0),
        PhaseInterval("backward", at + 400_000, at + 1_400_000, 0),
        PhaseInterval("forward", at + 1_400_000, at + 2_000_000, 0),
        PhaseInterval("backward", at + 2_000_000, at + 3_000_000, 500_000),
    ]


class Rank:
    """OTLP task of a rank's helper."""

    def __init__(self, rank: int = 0, *, every: int | None = 2) -> None:
        self.reported: list[str] = []
        self.begun = True
        nowhere, run = Path("/nowhere"), RunInfo(run_id="run-1", name="bert", start_unix_ns=1)
        handover = handover_of(
            nowhere, run_id="proposed", settings={"otlp_every": every}, rank=rank, local_rank=rank, world_size=2
        )
        self.task = OtlpTraces(context_of(handover, nowhere, self.reported.append, run=lambda: run, begun=lambda: self.begun))

    def do(self, *numbers: int) -> None:
        """Pass these steps to the task."""
        for number in numbers:
            self.task.step(step(number), intervals(number))
        self.task.tick()


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The SDK's logger, restored afterwards: the helper owns its process, this test does not."""
    sdk = logging.getLogger("opentelemetry")
    handlers = list(sdk.handlers)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    yield
    sdk.handlers, sdk.propagate = handlers, True


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Collector that answers; the end of a rank waits until it has everything, however busy the machine is."""
    monkeypatch.setattr("rankscope.profiler.helper.publishing.otlp.FLUSH_SECONDS", DEADLINE_S)
    with collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{running.port}")
        yield running


def test_every_nth_step_of_all_ranks_is_one_trace(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ml")
    ranks = [Rank(0), Rank(1)]
    for rank in ranks:
        rank.do(*range(5))
        rank.task.end(vanished=False)

    spans = collector.spans()
    headers = collector.requests[0][0]
    assert (headers["path"], headers["x-tenant"], headers["content-encoding"]) == ("/v1/traces", "ml", "gzip")
    assert len(spans) == 2 * 3 * 5
    assert len({span.span_id for span in spans}) == len(spans)
    for number in (0, 2, 4):
        trace = [span for span in spans if span.trace_id == f"{trace_id('run-1', 0, number):032x}"]
        parents = {span.resource["rankscope.rank"]: span for span in trace if span.name == "step"}
        assert set(parents) == {0, 1}
        for span in trace:
            parent = parents[span.resource["rankscope.rank"]]
            assert span.resource["service.name"] == "bert"
            assert span.parent_id == ("" if span is parent else parent.span_id)
        assert {parent.start_unix_ns for parent in parents.values()} == {START + number * 10**9}
        assert {parent.attributes["rankscope.step"] for parent in parents.values()} == {number}
        bounds = Counter(
            (span.name, span.start_unix_ns, span.end_unix_ns, span.attributes["rankscope.blocked_us"]) for span in trace
        )
        children = [(str(phase), start, end, blocked_ns / 1000) for phase, start, end, blocked_ns in intervals(number)]
        expected = [*children, ("step", START + number * 10**9, START + number * 10**9 + 3_000_000, 500.0)]
        assert bounds == dict.fromkeys(expected, 2)
    assert [rank.reported for rank in ranks] == [[], []]


def test_standard_otel_variables_set_the_service_name_and_sampling(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=their-host,team=ml")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    for number in (0, 1):
        rank = Rank(number, every=1)
        rank.do(*range(40))
        rank.task.end(vanished=False)

    chosen = [{span.trace_id for span in collector.spans() if span.resource["rankscope.rank"] == rank} for rank in (0, 1)]
    assert chosen[0] == chosen[1]
    assert 0 < len(chosen[0]) < 40
    resource = collector.spans()[0].resource
    by_key = {"service.name": "theirs", "host.name": "their-host", "team": "ml", "rankscope.run_id": "run-1"}
    assert by_key.items() <= resource.items()


def test_spans_are_exported_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []

    def export(request: Any, _context: Any) -> ExportTraceServiceResponse:
        received.append(request)
        return ExportTraceServiceResponse()

    with receiving_grpc(add_TraceServiceServicer_to_server, export, monkeypatch):
        rank = Rank()
        rank.do(2)
        rank.task.end(vanished=False)
    assert rank.reported == []
    spans = received[0].resource_spans[0].scope_spans[0].spans
    assert [span.name for span in spans] == ["forward", "backward"] * 2 + ["step"]


def test_absent_collector_is_reported_once_and_receives_later_steps(monkeypatch: pytest.MonkeyPatch, refusing_port: int) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{refusing_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # time for a second attempt
    rank = Rank()
    rank.do(0)
    wait_until(lambda: bool(rank.reported))
    assert "no collector accepts the traces over OTLP" in rank.reported[0]
    assert "refused" in rank.reported[0]
    rank.do(2)
    with collecting(refusing_port) as collector:
        rank.do(4)
        collector.wait(lambda spans: any(span.attributes.get("rankscope.step") == 4 for span in spans))
        wait_until(lambda: len(rank.reported) == 2)
        rank.task.end(vanished=False)
    assert "accepts the traces over OTLP again" in rank.reported[1]


def test_only_changes_of_collector_availability_are_reported() -> None:
    class Fickle(SpanExporter):
        answers = iter(["FAILURE", "FAILURE", "SUCCESS", "SUCCESS", "FAILURE", "FAILURE"])

        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult[next(self.answers)]

    collected: list[str] = []
    exporter = _ReportingExporter(Fickle(), _FirstStepWarning(), collected.append)
    for _ in range(6):
        exporter.export([])
    assert [line.split(":")[0] for line in collected] == [
        "no collector accepts the traces over OTLP",
        "the collector accepts the traces over OTLP again",
        "no collector accepts the traces over OTLP",
    ]


@pytest.mark.slow
def test_shutdown_does_not_wait_for_an_unresponsive_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.profiler.helper.publishing.otlp.FLUSH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        rank = Rank()
        rank.do(0)
        with silent.accept()[0]:
            rank.task.end(vanished=True)
            assert "not accepted over OTLP within 0.5 s" in rank.reported[0]
            assert any(thread.name == "otlp" for thread in threading.enumerate()), "left behind: it is a daemon"
    wait_until(lambda: not any(thread.name == "otlp" for thread in threading.enumerate()))


def test_spans_wait_for_the_run_id_in_a_bounded_queue(collector: Collector) -> None:
    rank = Rank(every=1)
    rank.begun = False
    rank.do(*range(MAX_WAITING + 50))
    assert rank.task._sender is None
    assert rank.task._waiting.qsize() == MAX_WAITING
    rank.begun = True
    rank.task.end(vanished=False)
    numbers = [span.attributes["rankscope.step"] for span in collector.spans() if span.name == "step"]
    # The oldest were dropped to make room, one of them for the end unless a place was free by then
    assert numbers[-(MAX_WAITING - 1) :] == list(range(51, MAX_WAITING + 50))
    assert numbers[0] in (50, 51)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json: rankscope supports"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "pigeon"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=pigeon: rankscope supports"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "OTEL_BSP_"),
    ],
)
def test_invalid_otel_variable_is_reported_once_per_host(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rank, neighbour = Rank(0), Rank(1)
    for each in (rank, neighbour):
        each.do(0)
        each.task.end(vanished=False)
    assert neighbour.reported == [], "once on a host is enough"
    assert len(rank.reported) == 1
    assert rank.reported[0].startswith(f"no traces over OTLP: {reason}")


@pytest.mark.parametrize(("missing", "protocol", "extra"), [("http", "http/protobuf", "otlp"), ("grpc", "grpc", "otlp-grpc")])
def test_missing_otlp_exporter_logs_one_line_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, missing: str, protocol: str, extra: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{missing}.trace_exporter", None)
    rank = Rank()
    rank.do(0)
    rank.task.end(vanished=False)
    assert len(rank.reported) == 1
    assert rank.reported[0].endswith(f"pip install 'rankscope[{extra}]'")


def test_missing_otel_sdk_logs_one_line_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rankscope.profiler.helper.publishing.otlp_sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    rank = Rank()
    rank.do(0)
    rank.task.end(vanished=False)
    (text,) = rank.reported
    assert "opentelemetry.sdk.resources" in text
    assert "pip install 'rankscope[otlp]'" in text


def test_traces_are_off_by_default_and_when_the_sdk_is_disabled(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    off = Rank(every=None)
    off.do(0, 1, 2)
    off.task.end(vanished=False)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    disabled = Rank()
    disabled.do(0, 2)
    disabled.task.end(vanished=False)
    assert (off.reported, disabled.reported, collector.requests) == ([], [], [])
