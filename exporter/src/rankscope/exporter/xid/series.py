"""Series of the page: counts of errors by device, code and severity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rankscope.exporter.source import Labels, Series
from rankscope.exporter.xid.entry import Tally
from rankscope.exporter.xids import CRITICAL, GRADED

_TIMED_CODES: Final = 2  # the last code is often a consequence of the one before it
_UNKNOWN_SEVERITY: Final = "unknown"


def series_of_gpu(uuid: str, tallies: Sequence[Tally], *, last_code: int, recent: Mapping[int, int]) -> Iterator[Series]:
    """Yield the series of a GPU. Critical codes start at zero; ``recent`` are the numbers of recent errors by code."""
    gpu = (("uuid", uuid),)
    occurred = {tally.code for tally in tallies}
    for code in CRITICAL:
        if str(code) not in occurred:
            yield Series("gpu_xid_errors_total", 0, (*gpu, ("xid", str(code))))
    for tally in tallies:
        yield Series("gpu_xid_errors_total", tally.count, (*gpu, *_labels(tally)))
    # Only of the last codes, to bound the series of a faulty GPU. The history of the counters shows the times of the others.
    by_time = sorted(tallies, key=lambda tally: tally.unix_s)
    for tally in by_time[-_TIMED_CODES:]:
        yield Series("gpu_xid_last_timestamp_seconds", tally.unix_s, (*gpu, *_labels(tally)))
    for tally in [one for one in by_time if one.job_id is not None][-1:]:
        yield Series("gpu_xid_last_job_info", 1, (*gpu, ("xid", tally.code), ("job_id", tally.job_id or "")))
    yield Series("gpu_xid_last_code", last_code, gpu)
    for code, count in recent.items():
        yield Series("gpu_xid_recent_errors", count, (*gpu, ("xid", str(code))))


def series_of_switches(tallies: Iterable[Tally]) -> Iterator[Series]:
    """Yield the series of NVSwitches."""
    for tally in tallies:
        labels = (("pci_bus_id", tally.device), ("sxid", tally.code), ("severity", tally.severity))
        yield Series("nvswitch_sxid_errors_total", tally.count, labels)
        yield Series("nvswitch_sxid_last_timestamp_seconds", tally.unix_s, labels)


def _labels(tally: Tally) -> Labels:
    severity = tally.severity or (_UNKNOWN_SEVERITY if int(tally.code) in GRADED else "")
    return (("xid", tally.code), ("severity", severity)) if severity else (("xid", tally.code),)
