"""Series of the page: counts of errors by device, code and severity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from rankscope.exporter.source import Labels, Series
from rankscope.exporter.xid.entry import Tally, XidEntry
from rankscope.exporter.xids import CRITICAL, GRADED

RECENT_S: Final = 300.0
"""Age in seconds up to which an error is recent (``gpu_xid_recent_errors``)."""

RecentErrors = dict[tuple[str, int], int]

_UNKNOWN_SEVERITY: Final = "unknown"


def recent_errors(entries: Iterable[XidEntry], *, boot_id: str, boot_now: float, now: float) -> RecentErrors:
    """Return the number of Xid errors of the last ``RECENT_S`` seconds by uuid and code; ``boot_now`` is in ``boot_id``."""
    recent: Counter[tuple[str, int]] = Counter()
    for entry in entries:
        age_s = boot_now - entry.boot_s if entry.boot_id == boot_id else now - entry.unix_s
        if entry.kind == "xid" and entry.uuid and 0 <= age_s < RECENT_S:
            recent[entry.uuid, entry.code] += 1
    return dict(recent)


def series_of_gpu(
    uuid: str,
    tallies: Sequence[Tally],
    *,
    last_code: int,
    recent: Mapping[int, int],
    last_reset_s: float,
    time_of: Callable[[Tally], float],
) -> Iterator[Series]:
    """Yield the series of a GPU. Critical codes start at zero.

    ``recent`` are the numbers of recent errors by code, ``time_of`` gives the time of a tally's last error.
    """
    gpu = (("uuid", uuid),)
    occurred = {tally.code for tally in tallies}
    for code in CRITICAL:
        if str(code) not in occurred:
            yield Series("gpu_xid_errors_total", 0, (*gpu, ("xid", str(code))))
    for tally in tallies:
        yield Series("gpu_xid_errors_total", tally.count, (*gpu, *_labels(tally)))
    by_time = sorted(tallies, key=time_of)
    for tally in by_time:
        yield Series("gpu_xid_last_timestamp_seconds", time_of(tally), (*gpu, *_labels(tally)))
    yield Series("gpu_last_reset_timestamp_seconds", last_reset_s, gpu)
    for tally in [item for item in by_time if item.job_id is not None][-1:]:
        yield Series("gpu_xid_last_job_info", 1, (*gpu, ("xid", tally.code), ("job_id", tally.job_id or "")))
    yield Series("gpu_xid_last_code", last_code, gpu)
    for code, count in recent.items():
        yield Series("gpu_xid_recent_errors", count, (*gpu, ("xid", str(code))))


def series_of_switches(tallies: Iterable[Tally], time_of: Callable[[Tally], float]) -> Iterator[Series]:
    """Yield the series of NVSwitches."""
    for tally in tallies:
        labels = (("pci_bus_id", tally.device), ("sxid", tally.code), ("severity", tally.severity))
        yield Series("nvswitch_sxid_errors_total", tally.count, labels)
        yield Series("nvswitch_sxid_last_timestamp_seconds", time_of(tally), labels)


def _labels(tally: Tally) -> Labels:
    severity = tally.severity or (_UNKNOWN_SEVERITY if int(tally.code) in GRADED else "")
    return (("xid", tally.code), ("severity", severity)) if severity else (("xid", tally.code),)
