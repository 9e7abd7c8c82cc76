"""Measurements through the OpenTelemetry SDK: observable instruments, a reader and a meter provider for each owner of series.

The SDK keeps every set of attributes that an instrument ever had, while the ranks and MIG devices of a node change. So each owner
has a pipeline of its own, which is closed when the owner disappears. The node's own series are not affected.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final, Self

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge, ObservableUpDownCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from rankscope.exporter.pages.otlp_metrics import Instrument, Measurement, measurements
from rankscope.exporter.pages.page import Page

_MOST_SERIES: Final = 16_384
"""Series per instrument. The spool accepts 12,800 per user; beyond this limit the SDK sums series up."""

_Series = tuple[Instrument, tuple[tuple[str, str], ...]]


class OtlpPipelines:
    """Pipelines that export the measurements of ``page``, one per owner. Not thread-safe."""

    def __init__(self, page: Page, resource: Resource, exporter: MetricExporter) -> None:
        self._page = page
        self._resource = resource
        self._results = _ExportResults(exporter)
        self._pipelines: dict[str, _Pipeline] = {}

    def export(self, limit_s: float) -> str | None:
        """Export all measurements; return the reason if an export failed. No export starts after ``limit_s`` seconds.

        Raises what the page raises.
        """
        by_owner: dict[str, list[Measurement]] = {}
        for measurement in measurements(self._page):
            by_owner.setdefault(measurement.owner, []).append(measurement)
        for owner in self._pipelines.keys() - by_owner.keys():
            self._pipelines.pop(owner).close()
        until_s = time.monotonic() + limit_s
        self._results.failed = False
        with _FirstComplaint(logging.WARNING) as complaint:
            for owner in sorted(by_owner):  # the node first
                if owner not in self._pipelines:
                    self._pipelines[owner] = _Pipeline(self._resource, self._results)
                self._pipelines[owner].export(by_owner[owner])
                if time.monotonic() > until_s:
                    break
        return (complaint.text or "no reason given") if self._results.failed else None

    def close(self) -> None:
        """Close all pipelines and drop their series."""
        while self._pipelines:
            self._pipelines.popitem()[1].close()


class _ExportResults(MetricExporter):
    """Wrapper that records whether an export failed, which the SDK's reader does not report; shared by all readers."""

    def __init__(self, exporter: MetricExporter) -> None:
        temporality = exporter._preferred_temporality or {}  # noqa: SLF001  as the SDK's readers do
        super().__init__(temporality, exporter._preferred_aggregation)  # noqa: SLF001
        self.counters_are_deltas = temporality.get(ObservableCounter) is AggregationTemporality.DELTA
        self.failed = False
        self._exporter = exporter

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Export with the wrapped exporter's time-out and retries."""
        result = MetricExportResult.FAILURE
        try:
            result = self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
        finally:
            self.failed |= result is not MetricExportResult.SUCCESS
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        """Do nothing: there is no buffer."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Do nothing: other readers still use the exporter."""


class _FirstComplaint(logging.Handler):
    """Log handler that keeps the SDK's first warning, which names the cause; later ones only report that it gave up."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.text = self.text or " ".join((str(error) if error is not None else record.getMessage()).split())

    def __enter__(self) -> Self:
        logging.getLogger("opentelemetry").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("opentelemetry").removeHandler(self)


class _Pipeline:
    """Meter provider, reader and instruments of one owner. An instrument is created with its first measurement."""

    def __init__(self, resource: Resource, exporter: _ExportResults) -> None:
        limits: dict[Any, int] = dict.fromkeys((ObservableCounter, ObservableGauge, ObservableUpDownCounter), _MOST_SERIES)
        # No periodic export: all pipelines export the same state of the page.
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf, cardinality_limits=limits)
        self._provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("rankscope.exporter", version("rankscope"))
        self._deltas = exporter.counters_are_deltas
        self._observations: dict[Instrument, list[Observation]] = {}
        self._counters: dict[_Series, tuple[float, float]] = {}  # last value, and offset added to it

    def export(self, measured: Iterable[Measurement]) -> None:
        """Export the given measurements, and no earlier ones."""
        for observations in self._observations.values():
            observations.clear()
        for one in measured:
            value = self._counted(one) if one.instrument.kind == "counter" else one.value
            self._of(one.instrument, one.help).append(Observation(value, dict(one.attributes)))
        self._provider.force_flush()

    def close(self) -> None:
        """Shut down the provider, so that the SDK drops the series."""
        self._provider.shutdown()

    def _of(self, instrument: Instrument, text: str) -> list[Observation]:
        if instrument not in self._observations:
            create = {
                "gauge": self._meter.create_observable_gauge,
                "counter": self._meter.create_observable_counter,
                "updowncounter": self._meter.create_observable_up_down_counter,
            }[instrument.kind]
            create(instrument.name, [lambda _options: self._observations[instrument]], instrument.unit, text)
            self._observations[instrument] = []
        return self._observations[instrument]

    def _counted(self, one: Measurement) -> float:
        """Return a counter's value, offset so that it never decreases: the SDK cannot report that a counter was reset.

        With delta temporality, counting starts at the first value, because the period of the earlier increase is unknown.
        """
        series = one.instrument, tuple(sorted(one.attributes.items()))
        before, offset = self._counters.get(series, (one.value, -one.value if self._deltas else 0.0))
        if one.value < before:
            offset += before
        self._counters[series] = one.value, offset
        return one.value + offset
