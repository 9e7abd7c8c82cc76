"""Ends of jobs, and the reasons for them in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.analysis.result.text import size
from rankscope.dashboards.store.cache import full_disk

CANCELLED: Final = "this was cancelled; it can be asked for again in a minute"
NO_PROGRESS: Final = "this made no progress for {:.0f} minutes and was ended; is the storage of the run slow?"


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a job."""

    failure: str | None = None
    """Reason why there is no result, for all who ask within the next minute."""
    complete: bool = False
    """True if it has ended by itself, with a result."""
    publish_as: str | None = None
    """Key under which the result of a follower is published."""


def too_large(limit: int, *, set_by_operator: bool, alone: bool) -> str:
    """Return why a job was ended for its memory. ``set_by_operator``: the limit is; ``alone``: this job exceeds it."""
    why = "as --memory says" if set_by_operator else "nearly all that was left when it began"
    needs = f"it needs more than {size(limit)} of memory" if alone else f"all analyses together need more than {size(limit)}"
    return (
        f"this was ended because {needs}, {why}; start the dashboard where more is free"
        f"{', or with a larger --memory' if set_by_operator else ''}"
    )


def ended_silently(status: int, folder: Path) -> str:
    """Return why a process that writes into ``folder`` may have ended with ``status`` without a reason of its own."""
    if (full := full_disk(folder)) is not None:
        return full
    if status < 0:
        why = "as processes are when memory is short: see the kernel's log, or try again in a minute"
        return f"this was killed (signal {-status}), {why}"
    return f"this ended without a result (status {status}); the log of the dashboard may say why"
