"""Collector of traces over OTLP/HTTP, which decodes them with the official messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from tests.otlp_http import receiving
from tests.waiting import wait_until

from rankscope.profiler.helper.publishing.spans import AttributeValue


@dataclass(frozen=True)
class ReceivedSpan:
    """Received span; ids in hexadecimal, as tools show them."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, AttributeValue]
    resource: dict[str, AttributeValue]


@dataclass
class Collector:
    """Received requests, in order."""

    port: int = 0
    requests: list[tuple[dict[str, str], ExportTraceServiceRequest]] = field(default_factory=list)

    def spans(self) -> list[ReceivedSpan]:
        """Return all spans of all requests."""
        return [
            ReceivedSpan(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                _attributes(span.attributes),
                _attributes(resource.resource.attributes),
            )
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait(self, condition: Callable[[list[ReceivedSpan]], bool]) -> None:
        """Wait until the received spans meet ``condition``."""
        wait_until(lambda: condition(self.spans()), details=self.spans)


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Run a collector on ``port`` of 127.0.0.1, or on a free port."""
    collector = Collector()

    def receive(headers: dict[str, str], request: ExportTraceServiceRequest) -> None:
        collector.requests.append((headers, request))

    with receiving(ExportTraceServiceRequest, ExportTraceServiceResponse(), receive, port) as collector.port:
        yield collector


def _attributes(pairs: Any) -> dict[str, AttributeValue]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> AttributeValue:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [item.string_value for item in value.array_value.values]
    result: AttributeValue = getattr(value, kind)
    return result
