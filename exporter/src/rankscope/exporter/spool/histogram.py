"""Check of histograms, because Prometheus does not define what an invalid one means."""

from __future__ import annotations

import itertools
import math
import re
from typing import Final

from rankscope.exporter.spool.series import Labels, RejectedError, SpoolFamily, SpoolSeries

HISTOGRAM_PARTS: Final = ("_bucket", "_sum", "_count", "_created")
_BOUND: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?|\+Inf")
_EXACT: Final = 2.0**53


def check_histogram(family: SpoolFamily) -> None:
    """Check that each label set has non-decreasing buckets up to +Inf, a sum, and their count; raises ``RejectedError``."""
    labels_seen: set[Labels] = set()
    for labels, series in itertools.groupby(family.series, _without_bound):
        if labels in labels_seen or not _is_histogram(family.name, [*series]):
            raise RejectedError("wrong_histogram")
        labels_seen.add(labels)


def _without_bound(series: SpoolSeries) -> Labels:
    return tuple(pair for pair in series.labels if pair[0] != "le")


def _is_histogram(name: str, series: list[SpoolSeries]) -> bool:
    if len(series) < 3 or {series[-2].name, series[-1].name} != {f"{name}_sum", f"{name}_count"}:
        return False
    *buckets, first, second = series
    total, count = (first.value, second.value) if first.name.endswith("_sum") else (second.value, first.value)
    # The values are durations, so their sum is a counter and cannot be negative.
    if not 0 <= total < math.inf or any(dict(sample.labels).get("le") for sample in (first, second)):
        return False
    before, bound = 0.0, -math.inf
    for sample in buckets:
        text = dict(sample.labels).get("le", "") if sample.name == f"{name}_bucket" else ""
        if not _BOUND.fullmatch(text) or not float(text) > bound:
            return False
        if not before <= sample.value < _EXACT or sample.value != int(sample.value):
            return False
        before, bound = sample.value, float(text)
    return bound == math.inf and before == count
