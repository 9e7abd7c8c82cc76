"""Export of steps as spans through the OpenTelemetry SDK; loaded only where traces are sent."""

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
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import set_span_in_context

from rankscope.base.errors import InputError, MissingError
from rankscope.base.problems import ProblemLog
from rankscope.profiler.helper.publishing.spans import (
    STEP,
    children_of,
    phase_attributes,
    resource_attributes,
    step_attributes,
    trace_id,
)
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import RankInfo, RunInfo, StepRecord

_EXPORTERS: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otlp"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "otlp-grpc"),
}


class StepTracer:
    """Tracer of the steps of a rank: spans go in batches, from a thread of the SDK, to the target of ``OTEL_EXPORTER_OTLP_*``.

    Sampler and limits are the SDK's too (``OTEL_TRACES_SAMPLER``: trace ids are the same on all ranks, and so is the choice).
    A failing export is reported once, and so is its recovery.

    Raises:
        MissingError: the extra is not installed.
        InputError: a variable has an invalid value.
    """

    def __init__(self, run: RunInfo, rank: RankInfo, report: Callable[[str], None]) -> None:
        self._run_id, self._attempt = run.run_id, rank.attempt
        self._warning = _FirstStepWarning()
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(self._warning)
        sdk.propagate = False  # it repeats its messages at every attempt
        self._exporter = _ReportingExporter(_exporter(), self._warning, report)
        self._ids = _StepTraceIds()
        # Resource attributes from the variables override ours.
        detected = OTELResourceDetector().detect().attributes
        attributes = {name: value for name, value in resource_attributes(run, rank).items() if name not in detected}
        provider = TracerProvider(resource=Resource.create(attributes), id_generator=self._ids, shutdown_on_exit=False)
        try:
            provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as error:
            raise InputError("OTEL_BSP_…", str(error)) from error
        self._provider = provider
        self._tracer = provider.get_tracer("rankscope.profiler", _version())

    @property
    def accepted(self) -> bool | None:
        """True if the collector accepted the last spans; ``None``: none were sent yet."""
        return self._exporter.accepted

    @property
    def warning(self) -> str:
        """First warning of the SDK since it began to send the last spans; may be empty."""
        return self._warning.text

    def add(self, record: StepRecord, intervals: Sequence[PhaseInterval]) -> None:
        """Queue the span of a step, with a child for each stretch of a phase. Never waits for the collector."""
        self._ids.trace_id = trace_id(self._run_id, self._attempt, record.step)
        span = self._tracer.start_span(STEP, attributes=step_attributes(record), start_time=record.start_unix_ns)
        context = set_span_in_context(span)
        children = children_of(intervals)
        for child in children:
            attributes = phase_attributes(child, record)
            phase = self._tracer.start_span(child.phase, context, attributes=attributes, start_time=child.start_unix_ns)
            phase.end(child.end_unix_ns)
        span.end(record.start_unix_ns + round(record.wall_us * 1000))

    def close(self) -> None:
        """Send the queued spans; this takes as long as the collector needs, up to the SDK's timeout."""
        self._provider.shutdown()


class _StepTraceIds(RandomIdGenerator):
    """Generator of random span ids, and of the preset id of the trace that is begun next."""

    trace_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id


class _ReportingExporter(SpanExporter):
    """Wrapper of an exporter that records and reports its success."""

    def __init__(self, exporter: SpanExporter, warning: _FirstStepWarning, report: Callable[[str], None]) -> None:
        self._exporter = exporter
        self._warning = warning
        self._problems = ProblemLog[str](
            lambda reason: report(f"no collector accepts the traces over OTLP: {reason}; retrying"),
            lambda: report("the collector accepts the traces over OTLP again"),
            each_reason=False,
        )
        self.accepted: bool | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._warning.text = ""
        try:
            result = self._exporter.export(spans)
            reason = self._warning.text
        except Exception as error:  # noqa: BLE001  # the next batch may succeed
            result, reason = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        self.accepted = result is SpanExportResult.SUCCESS
        self._problems.report(None if self.accepted else reason or "no reason given")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _FirstStepWarning(logging.Handler):
    """Log handler that keeps the SDK's first warning; later ones only report that it gave up."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self.text:
            self.text = " ".join(record.getMessage().split())


def _exporter() -> SpanExporter:
    """Return the exporter for the protocol of the ``OTEL_EXPORTER_OTLP_*`` variables."""
    variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next((name for name in variables if os.environ.get(name, "").strip()), None)
    protocol = "http/protobuf" if variable is None else os.environ[variable].strip()
    if protocol not in _EXPORTERS:
        raise InputError(f"{variable}={protocol}", f"rankscope supports {' and '.join(_EXPORTERS)}")
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
