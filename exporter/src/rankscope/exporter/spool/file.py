"""Reader and parser of a rank's text file, which is untrusted input."""

from __future__ import annotations

import os
import re
import stat
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from rankscope.exporter.spool.histogram import HISTOGRAM_PARTS, check_histogram
from rankscope.exporter.spool.series import Kind, Labels, RankKey, RejectedError, SpoolContent, SpoolFamily, SpoolSeries

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
_KINDS: Final = ("gauge", "counter", "histogram")

_METRIC_NAME: Final = re.compile(r"rank_[a-zA-Z0-9_]+")
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_RANK: Final = re.compile(r"[0-9]{1,7}")
_SLOT: Final = re.compile(r"0|[1-9][0-9]{0,3}")
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
    if any(len({(sample.name, sample.labels) for sample in family.series}) != len(family.series) for family in families):
        raise RejectedError("repeated_series")
    return checked(key, families)


def checked(key: RankKey, families: tuple[SpoolFamily, ...]) -> SpoolContent:
    """Check what depends on values, and that the file names its run; raises ``RejectedError``."""
    infos: tuple[SpoolSeries, ...] = ()
    disabled = False
    for family in families:
        if family.type == "histogram":
            check_histogram(family)
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
        series = tuple(SpoolSeries(item.name, tuple(sorted(item.labels.items())), float(item.value)) for item in metric.samples)
    except OverflowError as error:
        raise RejectedError("not_prometheus_text") from error
    if metric.type not in _KINDS or _kind(name) != metric.type:
        raise RejectedError("wrong_type")
    return SpoolFamily(name, metric.type, metric.documentation, series)


def _kind(name: str) -> Kind | None:
    """Return the type that a name stands for, so that all ranks agree on a metric's type; None for names of histogram parts."""
    base = name.removesuffix("_total")
    if base.endswith(HISTOGRAM_PARTS):
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
    by_name = dict(labels)
    key = RankKey(by_name.get("run", ""), by_name.get("rank", ""), by_name.get("slot", ""))
    if not key.run or not _RANK.fullmatch(key.rank) or not _SLOT.fullmatch(key.slot):
        raise RejectedError("no_identity")
    check_labels(labels)
    return key
