"""Result of an export: the JSON of ``rankscope export --format json`` (schema ``rankscope.export/1``)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.result.text import counted
from rankscope.base.text import format_duration

EXPORT_SCHEMA: Final = "rankscope.export/1"


class ExportClock(msgspec.Struct, frozen=True, kw_only=True):
    """Alignment of the ranks' clocks."""

    method: Literal["collective_ends", "one_clock", "none"]
    """``collective_ends``: each host's offset is fitted to the ends of matched collectives. ``one_clock``: all ranks ran on one
    kernel, so there is nothing to correct. ``none``: no collective of several hosts could be matched, so times are those of each
    host's own clock."""
    residual_us: float | None
    """Median spread of the ends of matched collectives, after the correction if there is one; ``None``: not known."""
    matched: int
    """Number of collectives matched; the offsets, if any, are fitted to them."""
    fitted_to: str | None = None
    """Steps whose collectives were used for the fit, if not the exported ones: none of those was profiled."""
    offset_us: dict[int, float]
    """Rank to the offset subtracted from its times; for ranks in ``changing``, the offset in the middle of the collectives. A
    missing rank had no matched collective, so its times are not corrected."""
    drift_ppm: dict[int, float] = {}
    """Rank to the drift of its clock (positive: too fast), where it can be distinguished from a constant offset."""
    changing: list[int] = []
    """Ranks whose offset varies over time, as their clocks drift or were set."""


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the exported and the left-out parts."""

    schema: str = EXPORT_SCHEMA
    path: str
    """Path of the file; ``-``: standard output."""
    kind: Literal["run", "traces"]
    ranks: list[int]
    steps: tuple[int, int] | None
    """First step and the step after the last; ``None``: the traces number no step."""
    events: int
    bytes: int
    """Size of the file as written."""
    base_unix_ns: int
    """Time that is 0 in the file."""
    simulated: bool
    clock: ExportClock
    arrows: int
    """Number of arrows from the last rank to arrive at a collective to the ranks that waited for it."""
    left_out: list[str]
    """Parts that were left out, one sentence each."""


def clock_sentence(clock: ExportClock) -> str:
    """Return a sentence on how precisely the ranks' times can be compared."""
    if clock.method == "none":
        return (
            "Clocks not corrected: no collective of several hosts could be matched, each host's times are those of its own clock."
        )
    of = counted(clock.matched, "collective") + (f" of {clock.fitted_to}" if clock.fitted_to else "")
    residual = "not known" if clock.residual_us is None else format_duration(clock.residual_us)
    if clock.method == "one_clock":
        ends = f" The ranks see the ends of {of} {residual} apart in the median: shorter waits are not shown."
        return "All ranks are on one clock, so nothing is corrected." + (ends if clock.matched else "")
    return (
        f"Clocks corrected by the ends of {of}; afterwards these still disagree by {residual} in the median: "
        "between ranks nothing below that means anything." + _changing(clock)
    )


def _changing(clock: ExportClock) -> str:
    if not clock.changing:
        return ""
    fast = max(map(abs, clock.drift_ppm.values()), default=None)
    by = "" if fast is None else f", by up to {fast:.3g} us per second"
    return f" Clocks of {counted(len(clock.changing), 'rank')} drift or were set{by}: their times are corrected by when they are."
