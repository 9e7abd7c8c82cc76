"""Numbers, times and verdicts in words; ``None`` is always said, never shown as zero."""

from __future__ import annotations

from typing import Final

from rankscope.analysis.result import Cause, Kind
from rankscope.analysis.wording import counted
from rankscope.dashboards.data.source import Stale, Status
from rankscope.dashboards.figures import units

UNKNOWN: Final = "not known"

count: Final = counted
"""``1 rank``, ``1,024 ranks``."""

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
"""Tone of a verdict; each has a colour and a sign of its own in assets/style.css."""


def verdict_tone(kind: Kind, *, may_be_well: bool) -> str:
    """Tone of a verdict on a run. That no rank stands out is no good news of one that was killed."""
    tone = KIND_TONES[kind]
    return "plain" if tone == "good" and not may_be_well else tone


CAUSE_LABELS: Final[dict[Cause, str]] = {
    "input": "slow input",
    "host": "slow host",
    "gc": "garbage collection",
    "checkpoint": "checkpoint",
    "compute": "slow compute",
    "imbalance": "more work than others",
    "communication": "communication",
    "unknown": "cause unknown",
}

STATUS_LABELS: Final[dict[Status, str]] = {
    "starting": "Starting",
    "live": "Live",
    "silent": "Silent",
    "finished": "Finished",
    "failed": "Ended badly",
    "unreadable": "Unreadable",
}

GOING_ON: Final[frozenset[Status]] = frozenset({"starting", "live", "silent"})
"""Statuses of runs that may have ranks at work."""


def percent(share: float | None, *, digits: int = 0) -> str:
    """``0.38`` -> ``38%``."""
    return UNKNOWN if share is None else f"{100 * share:.{digits}f}%"


def slowdown(factor: float | None) -> str:
    """``1.31`` -> ``31% longer``."""
    if factor is None:
        return UNKNOWN
    longer = 100 * (factor - 1)
    return "none" if longer < 0.05 else f"{longer:.0f}% longer" if longer >= 10 else f"{longer:.1f}% longer"


def gpu_hours(hours: float | None) -> str:
    """Three significant digits; what is small is said in GPU-seconds or GPU-minutes."""
    if hours is None:
        return UNKNOWN
    if hours == 0:
        return "0 GPU-h"
    if hours < 1 / 60:
        return f"{hours * 3600:.3g} GPU-s"
    if hours < 1:
        return f"{hours * 60:.3g} GPU-min"
    return f"{hours:,.1f} GPU-h"


def money(amount: float, currency: str) -> str:
    """``31.0, USD`` -> ``31.00 USD``."""
    return f"{amount:,.2f} {currency}" if amount >= 0.01 or amount == 0 else f"{amount:.2g} {currency}"


def rate(per_second: float) -> str:
    """``1.25/s``, ``123,100/s``."""
    return f"{per_second:,.0f}/s" if per_second >= 1000 else f"{per_second:.4g}/s"


def milliseconds(us: float | None) -> float | None:
    """Microseconds to milliseconds; not known stays not known."""
    return None if us is None else us / 1e3


def moment(unix_ns: int | None) -> str:
    """Date and time in UTC: the same for everyone who opens the link."""
    text = None if unix_ns is None else units.moment(unix_ns)
    return UNKNOWN if text is None else f"{text} UTC"


def not_renewed(stale: Stale) -> str:
    """That something older is shown, as of when, and why."""
    return f"As of {moment(stale.as_of_unix_ns)}; nothing newer could be read, and it is tried again: {stale.why}"
