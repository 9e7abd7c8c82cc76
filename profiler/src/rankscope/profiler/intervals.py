"""Times of the phases of one step."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.runs.records import Phase


class PhaseInterval(NamedTuple):
    """Uninterrupted stretch of one phase; nanoseconds since 1970."""

    phase: Phase
    start_unix_ns: int
    end_unix_ns: int
    blocked_ns: int
    """Part of it in which the rank waited for others, as far as that is known."""
