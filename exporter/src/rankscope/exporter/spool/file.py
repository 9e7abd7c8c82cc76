"""Reader and parser of a rank's text file, which is untrusted input."""

from __future__ import annotations

import itertools
import math
import os
import re
import stat
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from rankscope.base.exposition import Kind, Labels
from rankscope.exporter.source import Series
from rankscope.exporter.spool.series import RankKey, RejectedError, SpoolContent, SpoolFamily

MAX_BYTES: Final = 64 * 1024
MAX_SERIES: Final = 200
_MAX_LINES: Final = 4 * MAX_SERIES  # a metric with one series has three lines; more would cost too much to parse
_MAX_LINE: Final = 4096
_MAX_LABELS: Final = 16
_MAX_LABEL_VALUE: Final = 512
_RESERVED: Final = frozenset({"rank_state"})
_INFO: Final = "rank_info"
_DISABLED: Final = "rank_recorder_disabled"
_HISTOGRAM: Final = "_duration_seconds"
_HISTOGRAM_PARTS: Final = ("_bucket", "_sum", "_count", "_created")
_KINDS: Final = ("gauge", "counter", "histogram")

_METRIC_NAME: Final = re.compile(r"rank_[a-zA-Z0-9_]+")
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_RANK: Final = re.compile(r"[0-9]{1,7}")
_SLOT: Final = re.compile(r"0|[1-9][0-9]{0,3}")
_BOUND: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?|\+Inf")
_EXACT: Final = 2.0**53
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def read_regular(name: str, folder_fd: int, max_bytes: int = MAX_BYTES) -> tuple[bytes, os.stat_result]:
    """Read a file of the folder.

    It follows no link, does not block on a FIFO or device, and reads at most ``max_bytes``.

    Raises:
        RejectedError: not a regular file, unreadable, or too large.
        FileNotFoundError: the file was removed, for example because the rank ended.
    """
    try:
        # Checked before opening, because opening a device may have side effects.
        if not stat.S_ISREG(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            raise RejectedError("not_regular")
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RejectedError("unreadable") from error
    with open(fd, "rb", buffering=0) as file:  # noqa: PTH123  a descriptor, not a path
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RejectedError("not_regular")
        if status.st_size > max_bytes:
            raise RejectedError("too_large")
        try:
            content = file.read(max_bytes + 1)
        except OSError as error:
            raise RejectedError("unreadable") from error
    if len(content) > max_bytes:
        raise RejectedError("too_large")
    return content, status


def parse(content: bytes) -> SpoolContent:
    """Parse and check a rank's text; raises ``RejectedError``."""
    parsed = [family for family in parsed_text(content, _MAX_LINES) if family.samples]
    if sum(len(family.samples) for family in parsed) > MAX_SERIES:
        raise RejectedError("too_many_series")
    families = tuple(_family(family) for family in parsed)
    # OpenMetrics names a counter without _total: a gauge of that name would be the same metric.
    names = {family.name for family in families}
    if len({name.removesuffix("_total") for name in names}) != len(names):
        raise RejectedError("wrong_type")
    keys = {_key(labels) for labels in {sample.labels for family in families for sample in family.series}}
    if len(keys) != 1:
        raise RejectedError("several_ranks" if keys else "empty")
    (key,) = keys
    if any(len({(sample.metric, sample.labels) for sample in family.series}) != len(family.series) for family in families):
        raise RejectedError("repeated_series")
    return checked(key, families)


def checked(key: RankKey, families: tuple[SpoolFamily, ...]) -> SpoolContent:
    """Check what depends on values, and that the file names its run; raises ``RejectedError``."""
    infos: tuple[Series, ...] = ()
    disabled = False
    for family in families:
        if family.type == "histogram":
            _check_histogram(family)
        elif family.name == _INFO:
            infos = family.series
        elif family.name == _DISABLED:
            disabled = any(sample.value > 0 for sample in family.series)
    # With two of them, PromQL joins on rank_info would fail.
    if len(infos) != 1 or not (run_id := dict(infos[0].labels).get("run_id")):
        raise RejectedError("no_identity")
    return SpoolContent(key, run_id, disabled, families)


def parsed_text(content: bytes, max_lines: int) -> list[Metric]:
    """Parse Prometheus text of limited size; raises ``RejectedError``."""
    if content.count(b"\n") > max_lines:
        raise RejectedError("too_many_series")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RejectedError("not_utf8") from error
    # The parser is slow on long lines.
    if _CONTROL.search(text) or any(len(line) > _MAX_LINE for line in text.split("\n")):
        raise RejectedError("not_prometheus_text")
    try:
        return list(text_string_to_metric_families(text))
    except Exception as error:  # on hostile text the parser raises more than ValueError
        raise RejectedError("not_prometheus_text") from error


def _family(metric: Metric) -> SpoolFamily:
    # The parser strips _total from a counter's name, and adds it to samples that lack it.
    histogram = metric.type == "histogram"
    name = metric.name if histogram else metric.samples[0].name
    if not _METRIC_NAME.fullmatch(name) or name.removesuffix("_total") in _RESERVED:
        raise RejectedError("wrong_name")
    if any(sample.timestamp is not None for sample in metric.samples):
        raise RejectedError("timestamp")
    try:
        # The parser returns integers of any length.
        series = tuple(Series(item.name, float(item.value), tuple(sorted(item.labels.items()))) for item in metric.samples)
    except OverflowError as error:
        raise RejectedError("not_prometheus_text") from error
    if metric.type not in _KINDS or _kind(name) != metric.type:
        raise RejectedError("wrong_type")
    return SpoolFamily(name, metric.type, metric.documentation, series)


def _kind(name: str) -> Kind | None:
    """Return the type that a name stands for, so that all ranks agree on a metric's type; None for names of histogram parts."""
    base = name.removesuffix("_total")
    if base.endswith(_HISTOGRAM_PARTS):
        return None
    if base.endswith(_HISTOGRAM):
        return "histogram" if base == name else None
    return "gauge" if base == name else "counter"


def check_labels(labels: Labels) -> None:
    """Check names, lengths and number of a series's labels; raises ``RejectedError``."""
    if len(labels) > _MAX_LABELS or not all(_LABEL_NAME.fullmatch(name) for name, _ in labels):
        raise RejectedError("wrong_labels")
    if any(len(text) > _MAX_LABEL_VALUE for _, text in labels):
        raise RejectedError("wrong_labels")


def _key(labels: Labels) -> RankKey:
    """Check the labels of a series and return the rank it belongs to."""
    key = RankKey.of(labels)
    if not key.run or not _RANK.fullmatch(key.rank) or not _SLOT.fullmatch(key.slot):
        raise RejectedError("no_identity")
    check_labels(labels)
    return key


def _check_histogram(family: SpoolFamily) -> None:
    """Check that each label set has non-decreasing buckets up to +Inf, a sum, and their count; raises ``RejectedError``.

    Prometheus does not define what an invalid histogram means.
    """
    labels_seen: set[Labels] = set()
    for labels, series in itertools.groupby(family.series, _without_bound):
        if labels in labels_seen or not _is_histogram(family.name, [*series]):
            raise RejectedError("wrong_histogram")
        labels_seen.add(labels)


def _without_bound(series: Series) -> Labels:
    return tuple(pair for pair in series.labels if pair[0] != "le")


def _is_histogram(name: str, series: list[Series]) -> bool:
    if len(series) < 3 or {series[-2].metric, series[-1].metric} != {f"{name}_sum", f"{name}_count"}:
        return False
    *buckets, first, second = series
    total, count = (first.value, second.value) if first.metric.endswith("_sum") else (second.value, first.value)
    # The values are durations, so their sum is a counter and cannot be negative.
    if not 0 <= total < math.inf or any(dict(sample.labels).get("le") for sample in (first, second)):
        return False
    before, bound = 0.0, -math.inf
    for sample in buckets:
        text = dict(sample.labels).get("le", "") if sample.metric == f"{name}_bucket" else ""
        if not _BOUND.fullmatch(text) or not float(text) > bound:
            return False
        if not before <= sample.value < _EXACT or sample.value != int(sample.value):
            return False
        before, bound = sample.value, float(text)
    return bound == math.inf and before == count
