"""Histograms of a page as OpenTelemetry has them: counts of each bucket alone, and a new start for one that began anew."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, Metric

from rankscope.exporter.pages.exposition import Family, Point
from rankscope.exporter.pages.otlp_names import otel_name
from rankscope.exporter.source import Labels

_Key = tuple[str, Labels]


@dataclass(slots=True)
class _Counted:
    """A histogram at ``at_ns``, and since when it counts; ``counts`` are those of each bucket alone."""

    start_ns: int
    at_ns: int
    bounds: list[float]
    counts: list[int]
    sum: float


class OtlpHistograms:
    """Remembers how every histogram was last time, for its start and for what is new in it."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        self._temporality = temporality
        self._counted: dict[_Key, _Counted] = {}

    def metrics(
        self, families: Iterable[Family], attributes: Callable[[Labels], dict[str, str]], *, at_ns: int, last_ns: int
    ) -> Iterator[Metric]:
        """The histograms among the families. What appeared after ``last_ns`` counts from about then."""
        before, self._counted = self._counted, {}
        for family in families:
            otel = otel_name(family.name, family.type) if family.type == "histogram" else None
            if otel is None:
                continue
            points = []
            for labels, series in itertools.groupby(family.points, _without_bound):
                now = _counted(family.name, [*series], at_ns=at_ns, last_ns=last_ns)
                old = before.get((family.name, labels))
                if old is not None:
                    now.start_ns = old.at_ns if _began_anew(old, now) else old.start_ns
                self._counted[family.name, labels] = now
                point = self._point(attributes(labels), now, old)
                if point is not None:
                    points.append(point)
            if points:
                yield Metric(otel.name, family.help, otel.unit, Histogram(points, self._temporality))

    def _point(self, given: dict[str, str], now: _Counted, old: _Counted | None) -> HistogramDataPoint | None:
        start_ns, counts, total = now.start_ns, now.counts, now.sum
        if self._temporality is AggregationTemporality.DELTA:
            if old is None:
                return None  # how much of it is new, nobody knows
            start_ns = old.at_ns
            if not _began_anew(old, now):
                counts = [count - earlier for count, earlier in zip(counts, old.counts, strict=True)]
                total -= old.sum
        return HistogramDataPoint(
            attributes=given,
            start_time_unix_nano=start_ns,
            time_unix_nano=now.at_ns,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=now.bounds,
            min=None,  # type: ignore[arg-type]  # it may be absent in the protocol; nobody has it
            max=None,  # type: ignore[arg-type]
        )


def _without_bound(point: Point) -> Labels:
    return tuple(pair for pair in point.labels if pair[0] != "le")


def _counted(name: str, series: list[Point], *, at_ns: int, last_ns: int) -> _Counted:
    """From buckets that each contain those before, as the spool has checked."""
    buckets = [(float(dict(point.labels)["le"]), int(point.value)) for point in series if point.name == f"{name}_bucket"]
    (total,) = (point.value for point in series if point.name == f"{name}_sum")
    counts = [count - before for (_, before), (_, count) in itertools.pairwise([(0.0, 0), *buckets])]
    return _Counted(last_ns, at_ns, [bound for bound, _ in buckets if bound != math.inf], counts, total)


def _began_anew(old: _Counted, now: _Counted) -> bool:
    return old.bounds != now.bounds or any(count < before for count, before in zip(now.counts, old.counts, strict=True))
