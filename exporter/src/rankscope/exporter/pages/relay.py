"""The ranks' own metrics on the page: points, and with them lines, of what has not changed are kept from page to page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankscope.exporter.pages.exposition import Family, Point
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import SpoolFamily, SpoolSeries

_NOTHING: Final[tuple[Sequence[SpoolSeries], list[Point]]] = ((), [])


class Relay:
    """Makes families of what the spool holds. Any thread may ask."""

    def __init__(self) -> None:
        self._last: tuple[SpoolSample, list[Family]] | None = None
        self._known: dict[str, tuple[Sequence[SpoolSeries], list[Point]]] = {}

    def families(self, sample: SpoolSample) -> list[Family]:
        """One for each metric of the ranks that has series; of the same sample, the same."""
        last = self._last
        if last is not None and last[0] is sample:
            return last[1]
        known: dict[str, tuple[Sequence[SpoolSeries], list[Point]]] = {
            family.name: (family.series, self._points(family)) for family in sample.families
        }
        relayed = []
        for family in sample.families:
            points = known[family.name][1]
            if family.type == "counter":
                # OpenMetrics forbids both below zero and NaN for counters, and no clock or count is either.
                points = [point for point in points if point.value >= 0]
            if points:
                relayed.append(Family(family.name, family.type, family.help, points=points))
        self._known, self._last = known, (sample, relayed)
        return relayed

    def _points(self, family: SpoolFamily) -> list[Point]:
        before, points = self._known.get(family.name, _NOTHING)
        if len(before) != len(family.series):
            return [_point(family, one) for one in family.series]
        return [
            point if one is old else _renewed(family, one, old, point)
            for one, old, point in zip(family.series, before, points, strict=True)
        ]


def _renewed(family: SpoolFamily, series: SpoolSeries, before: SpoolSeries, point: Point) -> Point:
    # Ranks may have come and gone: then it is another one that stands here.
    if series.labels is before.labels and series.name == before.name:
        return Point(series.labels, series.value, point.name, point.beginning)
    return _point(family, series)


def _point(family: SpoolFamily, series: SpoolSeries) -> Point:
    return Point(series.labels, series.value, series.name if family.type == "histogram" else "")
