"""Files of ranks in a spool, and helpers to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope.exporter.spool.folder import SpoolFolder
from rankscope.exporter.spool.reading import Spool, SpoolSample
from rankscope.exporter.spool.series import RankKey

LABELS = 'run="r1",rank="3",slot="0"'
INFO = f'# TYPE rank_info gauge\nrank_info{{{LABELS},run_id="id-r1"}} 1\n'
R1, R2 = RankKey("r1", "3", "0"), RankKey("r2", "3", "0")
GOOD = f"""\
{INFO}\
# HELP rank_steps_total Training steps completed.
# TYPE rank_steps_total counter
rank_steps_total{{{LABELS}}} 40
# HELP rank_last_step_timestamp_seconds Unix time at which the last step ended.
# TYPE rank_last_step_timestamp_seconds gauge
rank_last_step_timestamp_seconds{{{LABELS}}} 1.7e9
"""


def gauge(labels: str = LABELS, *, name: str = "rank_x", value: str = "1") -> bytes:
    return f"# TYPE {name} gauge\n{name}{{{labels}}} {value}\n".encode()


def gauged(value: float) -> str:
    """Return a valid file with one more series."""
    return INFO + gauge(value=str(value)).decode()


def values_of(sample: SpoolSample) -> list[float]:
    """Return the values of all series except ``rank_info``."""
    return [series.value for family in sample.families if family.name != "rank_info" for series in family.series]


def spool_of(folder: Path, **options: Any) -> Spool:
    return Spool(SpoolFolder(folder), **{"stale_s": 300.0, "forget_s": 86400.0, **options})
