"""Numbers, times and verdicts in words. ``None`` is shown as "not known", never as zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rankscope.analysis.result.analysis import Kind
from rankscope.analysis.result.text import counted
from rankscope.base.text import factor
from rankscope.dashboards.words import units
from rankscope.runs.durations import DURATION_SOURCES

if TYPE_CHECKING:
    from rankscope.dashboards.data.source import Stale, Status

UNKNOWN: Final = "not known"

count: Final = counted
"""Function that formats a count: ``1 rank``, ``1,024 ranks``."""

EVIDENCE: Final[dict[str, str]] = {
    "steps": "step records",
    "windows": "profiled steps",
    "traces": "traces",
    **{kind: f"durations of collectives ({source.title.removeprefix('the ')})" for kind, source in DURATION_SOURCES.items()},
}
"""Records that a verdict or figure rests on, by their source."""

KIND_LABELS: Final[dict[Kind, str]] = {
    "balanced": "Balanced",
    "straggler": "Straggler",
    "communication_bound": "Communication bound",
    "input_bound": "Input bound",
    "host_bound": "Host bound",
    "compute_bound": "Compute bound",
    "pipeline_bubble": "Pipeline bubble",
    "hang": "Hang",
    "insufficient_data": "Not enough data",
}

KIND_TONES: Final[dict[Kind, str]] = {
    "balanced": "good",
    "straggler": "bad",
    "communication_bound": "fair",
    "input_bound": "fair",
    "host_bound": "fair",
    "compute_bound": "good",
    "pipeline_bubble": "fair",
    "hang": "bad",
    "insufficient_data": "unknown",
}
"""Tone of each kind of verdict. assets/style.css has a colour and a sign per tone."""


def verdict_tone(kind: Kind, *, may_be_well: bool) -> str:
    """Return the tone of a verdict on a run. "good" becomes "plain" unless ``may_be_well``: a killed run is not healthy."""
    tone = KIND_TONES[kind]
    return "plain" if tone == "good" and not may_be_well else tone


STATUS_LABELS: Final[dict[Status, str]] = {
    "starting": "Starting",
    "live": "Live",
    "silent": "Silent",
    "finished": "Finished",
    "failed": "Ended badly",
    "unreadable": "Unreadable",
}

STATUS_TONES: Final[dict[Status, str]] = {
    "starting": "live", "live": "live", "silent": "fair", "finished": "plain", "failed": "bad", "unreadable": "bad",
}  # fmt: skip


def run_state(status: Status, kind: Kind | None = None) -> tuple[str, str]:
    """Return label and tone of a run's state. ``kind``: that of its verdict, where it is known."""
    return ("Hung", "bad") if kind == "hang" else (STATUS_LABELS[status], STATUS_TONES[status])


def percent(share: float | None, *, digits: int = 0) -> str:
    """Format a fraction: ``0.38`` -> ``38%``."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f}%"


def slowdown(ratio: float | None) -> str:
    """Format a slowdown as all other outputs do: ``1.31`` -> ``1.31x``."""
    return UNKNOWN if ratio is None else factor(ratio)


def gpu_hours(hours: float | None) -> str:
    """Format GPU time. Below 1 GPU-h it is in GPU-minutes or GPU-seconds, with three significant digits."""
    if hours is None:
        return UNKNOWN
    size, unit = gpu_time_unit(hours)
    return f"{hours:,.1f} {unit}" if hours >= 1 else f"{hours / size:.3g} {unit}"


def gpu_time_unit(hours: float) -> tuple[float, str]:
    """Return (hours per unit, unit) in which GPU time up to ``hours`` reads best."""
    if hours >= 1 or hours == 0:
        return 1.0, "GPU-h"
    return (1 / 60, "GPU-min") if hours >= 1 / 60 else (1 / 3600, "GPU-s")


def money(amount: float, currency: str) -> str:
    """Format an amount: ``31.0, USD`` -> ``31.00 USD``."""
    return f"{amount:,.2f} {currency}" if amount >= 0.01 or amount == 0 else f"{amount:.2g} {currency}"


def rate(per_second: float) -> str:
    """Format a rate: ``1.25/s``, ``123,100/s``."""
    return f"{per_second:,.0f}/s" if per_second >= 1000 else f"{per_second:.4g}/s"


def milliseconds(us: float | None) -> float | None:
    """Convert microseconds to milliseconds; ``None`` stays ``None``."""
    return None if us is None else us / 1e3


def seconds(us: float | None) -> float | None:
    """Convert microseconds to seconds; ``None`` stays ``None``."""
    return None if us is None else us / 1e6


def utc_time(unix_ns: int | None) -> str:
    """Format date and time in UTC, so that all viewers of a link see the same."""
    text = None if unix_ns is None else units.date_and_time(unix_ns)
    return UNKNOWN if text is None else f"{text} UTC"


def not_renewed(stale: Stale) -> str:
    """Return the note that older content is shown, with its time and the reason."""
    reason = "" if stale.is_pending else "nothing newer could be read, and it is tried again: "
    return f"As of {utc_time(stale.as_of_unix_ns)}; {reason}{stale.why}"
