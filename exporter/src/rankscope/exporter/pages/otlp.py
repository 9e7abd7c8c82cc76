"""Pushing the page's data by OTLP, as the standard ``OTEL_*`` variables say, without ever standing in the way of a scrape."""

from __future__ import annotations

import importlib
import logging
import math
import os
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from rankscope.exporter.errors import ExporterInputError, ExporterMissingError
from rankscope.exporter.pages.page import Page

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

    from rankscope.exporter.pages.otlp_metrics import OtlpMetrics

logger = logging.getLogger(__name__)

_STOP_S: Final = 1.0
_EXPORTERS: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "otlp"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.metric_exporter", "otlp-grpc"),
}


class OtlpPush:
    """Sends what ``page`` has every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds (60,000), from a thread of its own.

    ``OTEL_EXPORTER_OTLP_PROTOCOL`` is ``http/protobuf`` or ``grpc``; endpoint, headers, timeout, certificates and compression are
    read by the SDK's exporter, service name and resource attributes by the SDK. That nobody takes the data is logged once, and
    once that somebody does again.

    Raises:
        ExporterMissingError: the extra is not installed.
        ExporterInputError: a variable says what cannot be.
    """

    def __init__(self, page: Page) -> None:
        self._interval_s = _interval_s()
        self._exporter = _exporter()
        self._metrics = _metrics(page)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._words = _FirstWords()
        self._taken: bool | None = None

    def start(self) -> None:
        """Begin to send, unless ``OTEL_SDK_DISABLED``; to be called after all forks, for it starts a thread."""
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            logger.info("OTLP: OTEL_SDK_DISABLED says not to send")
            return
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(self._words)
        sdk.propagate = False  # it repeats itself with every try
        self._thread.start()

    def stop(self) -> None:
        """Send once more, if that does not take long, and end."""
        self._ended.set()
        started = self._thread.is_alive()
        if started:
            self._thread.join(_STOP_S)
        self._exporter.shutdown(timeout_millis=1000 * _STOP_S)
        if started:
            self._thread.join(_STOP_S)
        sdk = logging.getLogger("opentelemetry")
        sdk.removeHandler(self._words)
        sdk.propagate = True

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._send()
        if self._taken:
            self._send()

    def _send(self) -> None:
        try:
            self._words.first = ""
            taken = self._exporter.export(self._metrics.collect()).name == "SUCCESS"
            reason = self._words.first
        except Exception as error:  # noqa: BLE001  whatever is wrong there must not end this thread
            taken, reason = False, str(error) or type(error).__name__
        if not taken and self._ended.is_set():
            return
        if not taken and self._taken is not False:
            logger.warning("OTLP: nobody takes the metrics: %s", reason or "no reason given")
        elif taken and self._taken is False:
            logger.info("OTLP: the metrics are taken again")
        self._taken = taken


class _FirstWords(logging.Handler):
    """Keeps what the SDK complained of first; what comes after that is only that it gave up."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING and not self.first:
            self.first = " ".join(record.getMessage().split())


def _interval_s() -> float:
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip() or "60000"
    try:
        interval_s = float(text) / 1000
    except ValueError:
        interval_s = math.nan
    if not 0 < interval_s < math.inf:
        raise ExporterInputError(f"OTEL_METRIC_EXPORT_INTERVAL={text}: a number of milliseconds is needed")
    return interval_s


def _exporter() -> MetricExporter:
    """The exporter for the protocol asked for."""
    variables = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    asked = next(((name, os.environ[name].strip()) for name in variables if os.environ.get(name, "").strip()), None)
    protocol = asked[1] if asked is not None else "http/protobuf"
    if asked is not None and protocol not in _EXPORTERS:
        raise ExporterInputError(f"{asked[0]}={protocol}: this exporter speaks {' and '.join(_EXPORTERS)}")
    module, extra = _EXPORTERS[protocol]
    try:
        exporter: MetricExporter = importlib.import_module(module).OTLPMetricExporter()
    except ImportError as error:
        raise ExporterMissingError(f"OTLP ({protocol}) needs {error.name}: pip install 'rankscope[{extra}]'") from error
    except (ValueError, OSError) as error:
        raise ExporterInputError(f"OTEL_EXPORTER_OTLP_…: {error}") from error
    return exporter


def _metrics(page: Page) -> OtlpMetrics:
    """What to send, as from whom: this node's exporter, unless ``OTEL_RESOURCE_ATTRIBUTES`` or ``OTEL_SERVICE_NAME`` differ."""
    # Not before the exporter: its absence is what a person has to be told of.
    from opentelemetry.sdk.metrics.export import AggregationTemporality
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    from rankscope.exporter.pages.otlp_metrics import OtlpMetrics

    attributes = {
        "service.name": "rankscope-exporter",
        "service.version": version("rankscope"),
        "service.instance.id": page.host,
        "host.name": page.host,
        **({"rankscope.simulated": "true"} if page.simulated else {}),
    }
    given = OTELResourceDetector().detect().attributes
    preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").strip().lower()
    return OtlpMetrics(
        page,
        Resource.create({key: value for key, value in attributes.items() if key not in given}),
        temporality=AggregationTemporality.DELTA if preference == "delta" else AggregationTemporality.CUMULATIVE,
    )
