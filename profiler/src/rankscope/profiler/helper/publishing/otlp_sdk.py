"""Export of spans through the OpenTelemetry SDK; loaded only where traces are sent."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, set_span_in_context

from rankscope.base.errors import InputError, MissingError
from rankscope.profiler.helper.publishing.spans import SpanData, Value

_EXPORTERS: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otlp"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "otlp-grpc"),
}


class Emitter:
    """Emitter of spans in batches, from a thread of the SDK, to the target of the ``OTEL_EXPORTER_OTLP_*`` variables.

    Sampler and limits are the SDK's too (``OTEL_TRACES_SAMPLER``: trace ids are the same on all ranks, and so is the choice).
    A failing export is reported once, and so is its recovery.

    Raises:
        MissingError: the extra is not installed.
        InputError: a variable has an invalid value.
    """

    def __init__(self, resource: dict[str, Value], report: Callable[[str], None]) -> None:
        self._words = _FirstWords()
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(self._words)
        sdk.propagate = False  # it repeats its messages at every attempt
        self._exporter = _Told(_exporter(), self._words, report)
        self._ids = _GivenIds()
        # Resource attributes from the variables override ours.
        given = OTELResourceDetector().detect().attributes
        self._provider = TracerProvider(
            resource=Resource.create({key: value for key, value in resource.items() if key not in given}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        try:
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as error:
            raise InputError("OTEL_BSP_…", str(error)) from error
        self._tracer = self._provider.get_tracer("rankscope.profiler", _version())

    @property
    def taken(self) -> bool | None:
        """True if the last spans were accepted; ``None``: none were sent yet."""
        return self._exporter.taken

    @property
    def complaint(self) -> str:
        """First warning of the SDK since it began to send the last spans, in parentheses; or an empty string."""
        return f"({self._words.first})" if self._words.first else ""

    def emit(self, parent: SpanData, children: Sequence[SpanData]) -> None:
        """Queue a span and its children. Never waits for the collector."""
        span = self._start(parent, None)
        for child in children:
            self._start(child, span).end(child.end_unix_ns)
        span.end(parent.end_unix_ns)

    def close(self) -> None:
        """Send the queued spans; this takes as long as the collector needs, up to the SDK's timeout."""
        self._provider.shutdown()

    def _start(self, data: SpanData, parent: Span | None) -> Span:
        self._ids.trace_id, self._ids.span_id = data.trace_id, data.span_id
        context = None if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(data.name, context=context, attributes=data.attributes, start_time=data.start_unix_ns)


class _GivenIds(IdGenerator):
    """Generator that returns the preset ids of the span that is started next."""

    trace_id = span_id = 1

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Told(SpanExporter):
    """Wrapper of an exporter that records and reports its success."""

    def __init__(self, exporter: SpanExporter, words: _FirstWords, report: Callable[[str], None]) -> None:
        self._exporter = exporter
        self._words = words
        self._report = report
        self.taken: bool | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._words.first = ""
        try:
            result = self._exporter.export(spans)
            reason = self._words.first
        except Exception as error:  # noqa: BLE001  # the next batch may succeed
            result, reason = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        taken = result is SpanExportResult.SUCCESS
        if not taken and self.taken is not False:
            self._report(f"no collector accepts the traces over OTLP: {reason or 'no reason given'}; retrying")
        elif taken and self.taken is False:
            self._report("the traces over OTLP are taken again")
        self.taken = taken
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _FirstWords(logging.Handler):
    """Log handler that keeps the SDK's first warning; later ones only report that it gave up."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self.first:
            self.first = " ".join(record.getMessage().split())


def _exporter() -> SpanExporter:
    """Return the exporter for the protocol of the ``OTEL_EXPORTER_OTLP_*`` variables."""
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    asked = next(((name, os.environ[name].strip()) for name in variables if os.environ.get(name, "").strip()), None)
    protocol = asked[1] if asked is not None else "http/protobuf"
    if asked is not None and protocol not in _EXPORTERS:
        raise InputError(f"{asked[0]}={protocol}", f"rankscope speaks {' and '.join(_EXPORTERS)}")
    module, extra = _EXPORTERS[protocol]
    try:
        exporter: SpanExporter = importlib.import_module(module).OTLPSpanExporter()
    except ImportError as error:
        raise MissingError(f"{protocol} needs {error.name}: pip install 'rankscope[{extra}]'") from error
    except (ValueError, OSError) as error:
        raise InputError("OTEL_EXPORTER_OTLP_…", str(error)) from error
    return exporter


def _version() -> str | None:
    try:
        return version("rankscope")
    except PackageNotFoundError:
        return None
