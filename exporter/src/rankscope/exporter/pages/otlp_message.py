"""OTLP messages of a page, built from the SDK's data types.

The SDK's instruments are not used: they hold every set of attributes that they ever had, report no reset of a counter, and take
only single observations for a histogram.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rankscope.base.version import VERSION
from rankscope.exporter.pages.otlp_metrics import Buckets, Instrument, Measurement

_KEPT_MESSAGES: Final = 60
"""Messages for which the start of a series is kept while the series is absent, as while a GPU is down."""

_Key = tuple[Instrument, tuple[tuple[str, str], ...], tuple[float, ...]]


class _CumulativeSeries(NamedTuple):
    """A cumulative series: since when its values are counted, its last point, and the number of the message that had it."""

    start_ns: int
    time_ns: int
    values: tuple[float, ...]
    message: int


class MessageBuilder:
    """Builder of the messages of one exporter, which keeps the start time of each cumulative series. Not thread-safe.

    A series starts when it is seen first, and anew after a decrease, at the time of its last point. With ``deltas``, counters and
    histograms have the increase since the last accepted point; a series begins with 0.
    """

    def __init__(self, resource: Resource, *, deltas: bool) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("rankscope.exporter", VERSION)
        self._deltas = deltas
        self._temporality = AggregationTemporality.DELTA if deltas else AggregationTemporality.CUMULATIVE
        self._accepted: dict[_Key, _CumulativeSeries] = {}
        self._latest: dict[_Key, _CumulativeSeries] = {}
        self._number = 0

    def message(self, measured: Iterable[Measurement]) -> MetricsData:
        """Return the message with these measurements, which are all of the page."""
        self._latest = {}
        now_ns = time.time_ns()
        points: dict[Instrument, tuple[str, list[Any]]] = {}
        for measurement in measured:
            points.setdefault(measurement.instrument, (measurement.help, []))[1].append(self._point(measurement, now_ns))
        metrics = [
            Metric(measurement.name, text, measurement.unit, self._data(measurement, points_of_instrument))
            for measurement, (text, points_of_instrument) in points.items()
        ]
        scopes = [ScopeMetrics(self._scope, metrics, schema_url="")]
        return MetricsData([ResourceMetrics(self._resource, scopes, schema_url="")])

    def accept(self) -> None:
        """Continue the series of the last message, because the collector has accepted it."""
        self._number += 1
        series = self._accepted | self._latest
        self._accepted = {key: entry for key, entry in series.items() if self._number - entry.message <= _KEPT_MESSAGES}

    def _data(self, instrument: Instrument, points: list[Any]) -> Gauge | Sum | Histogram:
        match instrument.kind:
            case "gauge":
                return Gauge(points)
            case "updowncounter":
                return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=False)
            case "counter":
                return Sum(points, self._temporality, is_monotonic=True)
            case "histogram":
                return Histogram(points, self._temporality)

    def _point(self, measurement: Measurement, now_ns: int) -> NumberDataPoint | HistogramDataPoint:
        attributes = dict(measurement.attributes)
        if isinstance(measurement.value, Buckets):
            start_ns, (total, *counts) = self._counted(
                measurement, (measurement.value.sum, *measurement.value.counts), now_ns, measurement.value.bounds
            )
            bucket_counts = [int(count) for count in counts]
            unknown: Any = None  # minimum and maximum are optional in OTLP
            return HistogramDataPoint(
                attributes, start_ns, now_ns, sum(bucket_counts), total, bucket_counts, measurement.value.bounds, unknown, unknown
            )
        if measurement.instrument.kind != "counter":
            return NumberDataPoint(attributes, 0, now_ns, measurement.value)
        start_ns, (value,) = self._counted(measurement, (measurement.value,), now_ns)
        return NumberDataPoint(attributes, start_ns, now_ns, value)

    def _counted(
        self, measurement: Measurement, values: tuple[float, ...], now_ns: int, bounds: tuple[float, ...] = ()
    ) -> tuple[int, tuple[float, ...]]:
        """Return the start of the series, and its values since then."""
        key = measurement.instrument, tuple(sorted(measurement.attributes.items())), bounds
        before = self._accepted.get(key)
        start_ns, base = now_ns, values
        if before is not None:
            was_reset = any(new < old for new, old in zip(values, before.values, strict=True))
            start_ns = before.time_ns if was_reset or self._deltas else before.start_ns
            base = tuple(0.0 for _ in values) if was_reset else before.values
        start_ns = min(start_ns, now_ns)  # the clock may have been set back
        self._latest[key] = _CumulativeSeries(start_ns, now_ns, values, self._number + 1)
        return start_ns, tuple(new - old for new, old in zip(values, base, strict=True)) if self._deltas else values
