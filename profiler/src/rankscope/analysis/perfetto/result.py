"""What an export says about itself: the JSON of ``rankscope export --format json`` (schema ``rankscope.export/1``)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

EXPORT_SCHEMA: Final = "rankscope.export/1"


class ExportClock(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks' clocks were brought together."""

    method: Literal["collective_ends", "none"]
    """``collective_ends``: each host's offset from the ends of matched collectives. ``none``: no collective could be matched,
    times are those of each host's own clock."""
    residual_us: float | None
    """Median disagreement of the ends of matched collectives afterwards; ``None``: not known."""
    matched: int
    """Collectives that the offsets were fitted to."""
    fitted_to: str | None = None
    """Which steps' collectives these are, where not those that are exported: none of these was profiled."""
    offset_us: dict[int, float]
    """Rank to what was subtracted from its times, of those in ``changing`` in the middle of the collectives; a rank that is
    missing had no matched collective, so nothing was."""
    drift_ppm: dict[int, float] = {}
    """Rank to by how much its clock is too fast, where one can be told from an offset that stays."""
    changing: list[int] = []
    """Ranks from whose times not always the same was subtracted, as their clocks drift or were set."""


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and what was not."""

    schema: str = EXPORT_SCHEMA
    path: str
    """``-``: standard output."""
    kind: Literal["run", "traces"]
    ranks: list[int]
    steps: tuple[int, int] | None
    """First step and the step after the last; ``None``: no step is numbered."""
    events: int
    bytes: int
    """Size of the file as written."""
    base_unix_ns: int
    """The moment that is 0 in the file."""
    simulated: bool
    clock: ExportClock
    arrows: int
    """From the last to arrive at a collective to those who waited for it."""
    left_out: list[str]
    """One sentence each."""
