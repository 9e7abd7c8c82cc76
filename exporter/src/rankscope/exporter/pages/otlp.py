"""Export of the page's data by OTLP, configured by the standard ``OTEL_*`` variables; never delays a scrape."""

from __future__ import annotations

import importlib
import logging
import math
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from rankscope.base.errors import InputError, MissingError
from rankscope.base.problems import ProblemLog
from rankscope.base.version import VERSION
from rankscope.exporter.pages.otlp_metrics import measurements
from rankscope.exporter.pages.page import MetricsPage

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource

logger = logging.getLogger(__name__)

_STOP_S: Final = 1.0
_MAX_POINTS: Final = 2048
"""Points in one message: gRPC limits a message to 4 MiB by default."""
_SILENT: Final = logging.NullHandler()
_EXPORTERS: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "otlp"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.metric_exporter", "otlp-grpc"),
}


class OtlpPush:
    """Export of the page's data every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds (60,000), from a thread of its own.

    ``OTEL_EXPORTER_OTLP_PROTOCOL`` is ``http/protobuf`` or ``grpc``. The SDK's exporter reads the variables for endpoint,
    headers, timeout, certificates and compression; the SDK reads service name and resource attributes. A failing export is logged
    once, and once more when exports succeed again.

    Raises:
        MissingError: the extra is not installed.
        InputError: a variable has an invalid value.
    """

    def __init__(self, page: MetricsPage) -> None:
        self._interval_s = _interval_s()
        self._exporter = _exporter()
        # Imported after the exporter, so that the error about a missing package names the exporter's extra.
        from rankscope.exporter.pages.otlp_message import MessageBuilder

        self._page = page
        self._builder = MessageBuilder(_resource(page), deltas=_prefers_deltas())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._accepted = False
        self._problems = ProblemLog(
            partial(logger.warning, "OTLP: the collector does not accept metrics: %s"),
            partial(logger.info, "OTLP: the collector accepts metrics again"),
            each_reason=False,
        )

    def start(self) -> None:
        """Start exporting, unless ``OTEL_SDK_DISABLED`` is true. Call it after all forks, because it starts a thread."""
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            logger.info("OTLP: nothing is exported, because OTEL_SDK_DISABLED is true")
            return
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(_SILENT)
        sdk.propagate = False  # the SDK logs every failed attempt
        self._thread.start()

    def stop(self) -> None:
        """Stop after a last export, which may take about a second."""
        self._ended.set()
        started = self._thread.is_alive()
        if started:
            self._thread.join(_STOP_S)
        self._exporter.shutdown(timeout_millis=1000 * _STOP_S)
        if started:
            self._thread.join(_STOP_S)
        sdk = logging.getLogger("opentelemetry")
        sdk.removeHandler(_SILENT)
        sdk.propagate = True

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._export()
        if self._accepted:
            self._export()

    def _export(self) -> None:
        try:
            with _FirstWarning(logging.WARNING) as warning:
                result = self._exporter.export(self._builder.message(measurements(self._page)))
            failure = None if result.name == "SUCCESS" else warning.text or "no reason given"
            if failure is None:
                self._builder.accept()
        except Exception as error:  # noqa: BLE001  no error may end this thread
            failure = str(error) or type(error).__name__
        if failure is not None and self._ended.is_set():
            return
        self._problems.report(failure)
        self._accepted = failure is None


class _FirstWarning(logging.Handler):
    """Log handler that keeps the SDK's first warning, which names the cause; later ones only report that it gave up."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's text."""
        error = record.exc_info[1] if record.exc_info else None
        self.text = self.text or " ".join((str(error) if error is not None else record.getMessage()).split())

    def __enter__(self) -> Self:
        logging.getLogger("opentelemetry").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("opentelemetry").removeHandler(self)


def _prefers_deltas() -> bool:
    """Return the preferred temporality of counters that are read, as the page's are: ``lowmemory`` leaves those cumulative."""
    return os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower() == "delta"


def _interval_s() -> float:
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or "60000"
    try:
        interval_s = float(text) / 1000
    except ValueError:
        interval_s = math.nan
    if not 0 < interval_s < math.inf:
        raise InputError(f"OTEL_METRIC_EXPORT_INTERVAL={text}", "must be a positive number of milliseconds")
    return interval_s


def _exporter() -> MetricExporter:
    """Create the SDK's exporter for the protocol that the variables select."""
    variables = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    chosen = next(((name, os.environ[name].strip()) for name in variables if os.environ.get(name, "").strip()), None)
    protocol = chosen[1] if chosen is not None else "http/protobuf"
    if chosen is not None and protocol not in _EXPORTERS:
        raise InputError(f"{chosen[0]}={protocol}", f"supported are {' and '.join(_EXPORTERS)}")
    module, extra = _EXPORTERS[protocol]
    try:
        exporter: MetricExporter = importlib.import_module(module).OTLPMetricExporter(max_export_batch_size=_MAX_POINTS)
    except ImportError as error:
        raise MissingError(f"OTLP ({protocol}) needs {error.name}: pip install 'rankscope[{extra}]'") from error
    except (ValueError, OSError) as error:
        raise InputError("OTEL_EXPORTER_OTLP_…", str(error)) from error
    return exporter


def _resource(page: MetricsPage) -> Resource:
    """Return the resource of this exporter; ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` take precedence."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    attributes = {
        "service.name": "rankscope-exporter",
        "service.version": VERSION,
        "service.instance.id": page.host,
        "host.name": page.host,
        **({"rankscope.simulated": "true"} if page.simulated else {}),
    }
    detected = OTELResourceDetector().detect().attributes
    return Resource.create({key: value for key, value in attributes.items() if key not in detected})
