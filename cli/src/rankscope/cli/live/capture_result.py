"""Results that ``rankscope capture --format json`` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rankscope.analysis.result.analysis import Analysis, Verdict
from rankscope.base.text import printable

CAPTURE_SCHEMA: Final = "rankscope.capture/1"
SHOWN: Final = 16


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """Rank without a result."""

    rank: int
    reason: str


def no_record(ranks: Iterable[int]) -> list[Missing]:
    """Return a row for each of ``ranks``: ranks of the job that have left no record."""
    return [Missing(rank=rank, reason="it has left no record: no step has ended yet, or it is not recorded") for rank in ranks]


class CaptureResult(msgspec.Struct, frozen=True, kw_only=True):
    """JSON of ``rankscope capture --format json``."""

    schema: str = CAPTURE_SCHEMA
    kind: str = "capture"
    request: str
    """Id of the request."""
    accepted: bool | None
    """True if the job accepted the request; ``None``: no answer."""
    reason: str | None = None
    """Reason for a refusal, for no answer, or for missing profiles."""
    attempt: int
    first_step: int | None = None
    last_step: int | None = None
    ranks: list[int] = []
    """Ranks that profiled all these steps."""
    missing: list[Missing] = []
    traces: list[str] = []
    """Paths of the kept raw traces, relative to the run: kept on request, or because of an anomaly in the window."""
    analysis: Analysis | None = None
    """Analysis of only these steps."""
    run_verdict: Verdict | None = None
    """Verdict on the whole run so far; ``None``: it could not be read."""

    @property
    def complete(self) -> bool:
        """True if all requested ranks profiled all steps."""
        return bool(self.accepted) and not self.missing


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """One dump file; a rank may have recorders of several backends."""

    rank: int
    host: str | None
    path: str
    """Path relative to the run."""


class DumpResult(msgspec.Struct, frozen=True, kw_only=True):
    """JSON of ``rankscope capture --flight-recorder --format json``."""

    schema: str = CAPTURE_SCHEMA
    kind: str = "dump"
    request: str
    attempt: int
    dumps: list[Dump]
    missing: list[Missing]

    def text(self) -> str:
        """Return the result as text for people."""
        lines = [f"{len({dump.rank for dump in self.dumps})} ranks wrote their Flight Recorder"]
        lines += [f"  rank {dump.rank}  {dump.host or '-'}  {dump.path}" for dump in self.dumps[:SHOWN]]
        lines += [f"  rank {row.rank}  missing: {row.reason}" for row in self.missing[:SHOWN]]
        unshown = max(0, len(self.dumps) - SHOWN) + max(0, len(self.missing) - SHOWN)
        if unshown:
            lines.append(f"  and {unshown} more; --format json has them all")
        return printable("\n".join(lines))
