"""Verdict that is kept in the run directory, so that lists of runs show it without an analysis."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.result.analysis import Analysis, Source, Verdict
from rankscope.analysis.result.costs import Throughput
from rankscope.runs.paths import verdict_file
from rankscope.runs.segments import UNDECODABLE, open_regular
from rankscope.runs.writer import write_record

VERDICT_SCHEMA: Final = "rankscope.verdict/1"
MOST_BYTES: Final = 1 << 20
"""Largest file that is read."""


class StoredVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a run, by the version of rankscope that reached it."""

    schema: str = VERDICT_SCHEMA
    version: str
    as_of_unix_ns: int
    """Start of the analysis: what the run got later is not in the verdict."""
    verdict: Verdict
    source: Source
    throughput: Throughput | None = None


def store_verdict(run: Path, analysis: Analysis, *, as_of_unix_ns: int) -> None:
    """Replace the stored verdict of a run. Raises ``OSError``."""
    kept = StoredVerdict(
        version=version("rankscope"),
        as_of_unix_ns=as_of_unix_ns,
        verdict=analysis.verdict,
        source=analysis.source,
        throughput=analysis.throughput,
    )
    write_record(verdict_file(run), kept)


def stored_verdict(run: Path) -> StoredVerdict | None:
    """Return the stored verdict of a run; ``None`` if there is none that can be read."""
    try:
        with open_regular(verdict_file(run), links=False) as file:
            data = file.read(MOST_BYTES + 1)
        found = msgspec.json.decode(data, type=StoredVerdict) if len(data) <= MOST_BYTES else None
    except (OSError, *UNDECODABLE):
        return None
    return found if found is not None and found.schema == VERDICT_SCHEMA else None
