"""Verdict that is kept in the run directory, so that lists of runs show it without an analysis."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.result.analysis import Analysis, Source, Verdict
from rankscope.analysis.result.costs import Throughput
from rankscope.runs.paths import verdict_file
from rankscope.runs.writer import write_record

VERDICT_SCHEMA: Final = "rankscope.verdict/1"
MOST_BYTES: Final = 1 << 20
"""Largest file that is read."""


class StoredVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a run, by the version of rankscope that reached it."""

    schema: str = VERDICT_SCHEMA
    version: str
    verdict: Verdict
    source: Source
    throughput: Throughput | None = None


def store_verdict(run: Path, analysis: Analysis) -> None:
    """Replace the stored verdict of a run. Raises ``OSError``."""
    kept = StoredVerdict(
        version=version("rankscope"), verdict=analysis.verdict, source=analysis.source, throughput=analysis.throughput
    )
    write_record(verdict_file(run), kept)


def stored_verdict(run: Path) -> tuple[StoredVerdict, int] | None:
    """Return the stored verdict and the time of its file in unix nanoseconds; ``None`` if there is none that can be read."""
    try:
        with verdict_file(run).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            return None
        found = msgspec.json.decode(data, type=StoredVerdict)
        return (found, verdict_file(run).stat().st_mtime_ns) if found.schema == VERDICT_SCHEMA else None
    except (OSError, ValueError):
        return None
