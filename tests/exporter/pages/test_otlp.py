"""Messages that an OpenTelemetry collector receives, decoded with the official protobufs, over HTTP and gRPC."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import add_MetricsServiceServicer_to_server
from tests.exporter.pages.golden_node import A100, DIVIDED, H100, HUNG, loop, node, page_of, sample_of, spooled_histogram
from tests.otlp_http import receiving, receiving_grpc
from tests.waiting import wait_until

from rankscope.base.errors import InputError, MissingError
from rankscope.exporter.pages.otlp import OtlpPush
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.source import FleetState, Series
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey, SpoolFamily

Attributes = frozenset[tuple[str, str]]
Sent = tuple[dict[str, str], ExportMetricsServiceRequest]


@dataclass
class Received:
    """Messages in the order of their arrival."""

    messages: list[tuple[dict[str, str], ExportMetricsServiceRequest]] = field(default_factory=list)
    port: int = 0

    def wait(self, count: int) -> list[ExportMetricsServiceRequest]:
        wait_until(lambda: len(self.messages) >= count, details=lambda: f"{len(self.messages)} messages came")
        return [message for _, message in self.messages]


@contextmanager
def receiving_metrics(port: int = 0) -> Iterator[Received]:
    """Yield the messages received by a collector over HTTP."""
    received = Received()

    def receive(headers: dict[str, str], message: ExportMetricsServiceRequest) -> None:
        received.messages.append((headers, message))

    with receiving(ExportMetricsServiceRequest, ExportMetricsServiceResponse(), receive, port) as received.port:
        yield received


@pytest.fixture
def http_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with receiving_metrics() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{received.port}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
        yield received


@pytest.fixture
def pushing() -> Iterator[Callable[[MetricsPage], OtlpPush]]:
    """Function ``pushing(page)`` that sends a page by OTLP until the test ends."""
    started: list[OtlpPush] = []

    def start(page: MetricsPage) -> OtlpPush:
        push = OtlpPush(page)
        push.start()
        started.append(push)
        return push

    yield start
    for push in started:
        push.stop()


def _attributes(pairs: Any) -> Attributes:
    return frozenset((pair.key, pair.value.string_value) for pair in pairs)


def points(*messages: ExportMetricsServiceRequest) -> dict[str, dict[Attributes, float]]:
    """Return values by name and attributes; fail if a point appears twice."""
    by_key: dict[str, dict[Attributes, float]] = {}
    for metric in (metric for message in messages for metric in _metrics(message)):
        data = metric.gauge if metric.HasField("gauge") else metric.sum
        for point in data.data_points:
            attributes = _attributes(point.attributes)
            series = by_key.setdefault(metric.name, {})
            assert attributes not in series, (metric.name, attributes)
            series[attributes] = point.as_double
    return by_key


def _metrics(message: ExportMetricsServiceRequest) -> list[Any]:
    metrics = [
        metric
        for resource_metric in message.resource_metrics
        for scope in resource_metric.scope_metrics
        for metric in scope.metrics
    ]
    assert len({metric.name for metric in metrics}) == len(metrics)
    return metrics


def _of(metrics: dict[str, dict[Attributes, float]], name: str, **attributes: str) -> list[float]:
    wanted = {(key.replace("__", "."), value) for key, value in attributes.items()}
    return [value for have, value in metrics.get(name, {}).items() if wanted <= have]


@pytest.fixture(scope="module")
def sent() -> Sent:
    """Headers and body of the golden node's message."""
    with receiving_metrics() as received, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{received.port}")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ml")
        patch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab,host.name=better-name")
        push = OtlpPush(page_of(node()))
        push.start()
        received.wait(1)
        push.stop()
    return received.messages[0]


def test_metrics_follow_the_hardware_semantic_conventions(sent: Sent) -> None:
    headers, message = sent

    assert (headers["path"], headers["content-type"], headers["x-tenant"]) == ("/v1/metrics", "application/x-protobuf", "ml")
    resource = dict(_attributes(message.resource_metrics[0].resource.attributes))
    assert resource["service.name"] == "rankscope-exporter"
    assert resource["host.name"] == "better-name"
    assert resource["service.instance.id"] == "node1"
    assert resource["deployment.environment"] == "lab"

    kinds = {
        metric.name: (
            metric.unit,
            "gauge" if metric.HasField("gauge") else "counter" if metric.sum.is_monotonic else "updowncounter",
        )
        for metric in _metrics(message)
    }
    assert kinds.items() >= {
        ("hw.temperature", ("Cel", "gauge")),
        ("hw.power", ("W", "gauge")),
        ("hw.energy", ("J", "counter")),
        ("hw.errors", ("{error}", "counter")),
        ("hw.status", ("1", "updowncounter")),
        ("hw.gpu.utilization", ("1", "gauge")),
        ("hw.gpu.memory.usage", ("By", "updowncounter")),
        ("hw.gpu.memory.limit", ("By", "updowncounter")),
        ("hw.gpu.memory.utilization", ("1", "gauge")),
        ("hw.gpu.io", ("By", "counter")),
        ("rankscope.gpu.sm_active", ("1", "gauge")),
        ("rankscope.gpu.sm_active_time", ("s", "counter")),
    }
    assert {name.split(".")[0] for name in kinds} == {"hw", "rankscope"}

    data_points = points(message)
    readings = {(reading.metric, reading.labels): reading.value for reading in sample_of(0).readings}
    (memory,) = _of(data_points, "hw.gpu.memory.usage", hw__id=H100)
    assert memory == readings["gpu_memory_used_bytes", ()]
    assert _of(data_points, "hw.gpu.memory.utilization", hw__id=H100) == [memory / readings["gpu_memory_total_bytes", ()]]
    assert _of(data_points, "hw.temperature", hw__id=H100, **{"hw.sensor_location": "memory"}) == [
        readings["gpu_memory_temperature_celsius", ()]
    ]
    assert _of(data_points, "hw.gpu.io", hw__id=H100, network__io__direction="receive") == [
        readings["gpu_pcie_receive_bytes_total", ()]
    ]
    assert _of(data_points, "hw.errors", hw__id=H100, hw__type="gpu", **{"error.type": "ecc.uncorrected.sram"}) == [0]
    assert len(_of(data_points, "rankscope.gpu.clock", hw__id=H100, rankscope__clock="sm")) == 1
    (power,) = (dict(have) for have in data_points["hw.power"] if ("hw.id", A100) in have)
    assert power == {
        "hw.id": A100,
        "hw.name": "GPU 00000000:3b:00.0",
        "hw.model": 'NVIDIA "A100"-SXM4-80GB',
        "hw.vendor": "NVIDIA",
        "hw.serial_number": "165001",
        "hw.driver_version": "570.86.15",
        "hw.type": "gpu",
    }


def test_a_mig_device_names_its_parent(sent: Sent) -> None:
    data_points = points(sent[1])

    of_mig = "MIG-20000000-1111-bbbb-cccc-000000000000"
    assert _of(data_points, "rankscope.gpu.mig_memory_used", hw__id=of_mig, hw__parent=DIVIDED, hw__name="MIG 4g.40gb 1.0") == [
        10 * 2**30
    ]


def test_gpu_that_is_down_has_status_failed_and_no_values(sent: Sent) -> None:
    data_points = points(sent[1])

    status = {dict(have)["hw.state"]: value for have, value in data_points["hw.status"].items() if ("hw.id", HUNG) in have}
    assert status == {"ok": 0, "degraded": 0, "failed": 1, "predicted_failure": 0}
    assert _of(data_points, "hw.status", hw__id=H100, hw__state="ok") == [1]
    with_values = {name for name, series in data_points.items() if any(("hw.id", HUNG) in have for have in series)}
    assert with_values == {"hw.status", "rankscope.gpu.down_since_timestamp", "rankscope.gpu.sample_age"}


def test_the_temporality_preference_is_honoured(
    http_collector: Received, pushing: Callable[[MetricsPage], OtlpPush], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    pushing(MetricsPage("node1", SimulatedFleet("1", interval_s=0.01)))

    metrics = {metric.name: metric for metric in _metrics(http_collector.wait(3)[-1])}
    assert metrics["hw.energy"].sum.aggregation_temporality == 1  # delta
    assert metrics["hw.gpu.memory.usage"].sum.aggregation_temporality == 2  # a level stays cumulative


def test_rank_metrics_have_the_gpu_as_attribute(http_collector: Received, pushing: Callable[[MetricsPage], OtlpPush]) -> None:
    rank = (("rank", "3"), ("run", "r"), ("slot", "0"))
    families = (
        SpoolFamily("rank_info", "gauge", "Who.", (Series("rank_info", 1, (("gpu_uuid", H100), ("run_id", "id-r"), *rank)),)),
        SpoolFamily("rank_steps_total", "counter", "Steps.", (Series("rank_steps_total", 40, rank),)),
        SpoolFamily("rank_" + "x" * 400, "gauge", "Long.", (Series("rank_" + "x" * 400, 1, rank),)),
    )
    spooled = SpoolSample(families, {RankKey("r", "3", "0"): "running"})
    pushing(page_of(node(), spool=loop("spool", spooled)))
    data_points = points(http_collector.wait(1)[0])

    assert _of(
        data_points, "rankscope.rank.steps", hw__id=H100, rankscope__rank="3", rankscope__run="r", rankscope__run_id="id-r"
    ) == [40]
    assert _of(data_points, "rankscope.rank.state", rankscope__rank="3", rankscope__state="running") == [1]
    assert not [name for name in data_points if "xxx" in name]


def test_histogram_is_exported_as_histogram(http_collector: Received, pushing: Callable[[MetricsPage], OtlpPush]) -> None:
    pushing(page_of(node(), spool=loop("spool", spooled_histogram(1, 2, 3, total=40.5))))

    (metric,) = [item for item in _metrics(http_collector.wait(1)[0]) if item.name == "rankscope.rank.step_duration"]
    (point,) = metric.histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([1, 2, 3], [1, 10])
    assert (point.count, point.sum, point.HasField("min"), metric.unit) == (6, 40.5, False, "s")
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano


def test_many_series_are_sent_in_several_messages(http_collector: Received, pushing: Callable[[MetricsPage], OtlpPush]) -> None:
    ranks = [(("rank", str(rank)), ("run", "r"), ("slot", "0")) for rank in range(5000)]
    family = SpoolFamily("rank_x", "gauge", "X.", tuple(Series("rank_x", 1, rank) for rank in ranks))
    pushing(page_of(node(), spool=loop("spool", SpoolSample((family,)))))

    sizes: list[int] = []
    while sum(sizes) < 5000:
        message = http_collector.wait(len(sizes) + 1)[len(sizes)]
        sizes.append(sum(len(metric.gauge.data_points) for metric in _metrics(message) if metric.name == "rankscope.rank.x"))
    assert max(sizes) <= 2048


def test_metrics_are_exported_over_grpc(monkeypatch: pytest.MonkeyPatch, pushing: Callable[[MetricsPage], OtlpPush]) -> None:
    received = Received()

    def export(request: Any, context: Any) -> ExportMetricsServiceResponse:
        received.messages.append((dict(context.invocation_metadata()), request))
        return ExportMetricsServiceResponse()

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ml")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    with receiving_grpc(add_MetricsServiceServicer_to_server, export, monkeypatch):
        push = pushing(page_of(node()))
        data_points = points(received.wait(1)[0])
        push.stop()

    assert received.messages[0][0]["x-tenant"] == "ml"
    assert _of(data_points, "hw.status", hw__id=HUNG, hw__state="failed") == [1]


@pytest.mark.slow
def test_unreachable_collector_is_logged_once_and_gets_data_later(
    pushing: Callable[[MetricsPage], OtlpPush],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free_port: Callable[[], int],
) -> None:
    caplog.set_level(logging.INFO)
    asked = threading.Event()
    passes: list[int] = []

    def state() -> FleetState:
        passes.append(1)
        if len(passes) >= 4:  # two passes per message
            asked.set()
        return node()

    port = free_port()  # no process listens here until the collector starts
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # long enough for a second attempt
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    page = page_of(state)
    push = pushing(page)
    assert asked.wait(120)
    # pages are rendered meanwhile
    assert b"gpu_up" in page.render()[0]

    with receiving_metrics(port) as received:
        received.wait(1)
        wait_until(lambda: len(caplog.records) >= 2)
        push.stop()

    away, back = (record for record in caplog.records if record.name.startswith("rankscope"))
    assert (away.levelname, "Connection refused" in away.getMessage()) == ("WARNING", True)
    assert back.levelname == "INFO"


@pytest.mark.slow
def test_stop_does_not_wait_for_an_unresponsive_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.exporter.pages.otlp._STOP_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
        push = OtlpPush(page_of(node()))
        push.start()
        silent.accept()[0].close()

        completed = threading.Thread(target=push.stop)
        completed.start()
        completed.join(120)

        assert not completed.is_alive()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "carrier-pigeon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "inf"),
    ],
)
def test_invalid_variable_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(InputError, match=f"{variable}={value}"):
        OtlpPush(page_of(node()))


def test_the_sdk_can_be_disabled(http_collector: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    push = OtlpPush(page_of(node()))
    push.start()
    push.stop()

    assert http_collector.messages == []


@pytest.mark.parametrize(("protocol", "extra"), [("http/protobuf", "otlp"), ("grpc", "otlp-grpc")])
def test_missing_extra_error_shows_the_install_command(monkeypatch: pytest.MonkeyPatch, protocol: str, extra: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    for kind in ("http", "grpc"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{kind}.metric_exporter", None)

    with pytest.raises(MissingError) as refusal:
        OtlpPush(page_of(node()))

    assert f"pip install 'rankscope[{extra}]'" in str(refusal.value)


def test_the_exporter_without_otlp_loads_no_sdk() -> None:
    script = "import sys, rankscope.exporter.pages.otlp; print('opentelemetry' in sys.modules, 'grpc' in sys.modules)"

    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout.split() == ["False", "False"]
