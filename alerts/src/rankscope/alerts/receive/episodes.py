"""Episodes of alerts, which decide whether a received alert is forwarded: senders repeat alerts, and there may be two senders."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

LATE_S: Final = 60.0
"""For this long after an episode's end, a firing alert that started no later than the episode is a late copy of it."""

Change = Literal["change", "update", "reminder"]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One alert from its firing until it fires anew."""

    fingerprint: str
    starts_unix_ns: int
    """First start received: two Prometheis evaluate a moment apart, and Alertmanager later sends the earlier start."""
    status: Literal["firing", "resolved"]
    changed_unix_ns: int
    """When the status was received."""
    forwarded_unix_ns: int
    """When the firing state was last forwarded; 0: never."""
    forwarded: int = 1
    """Number of times that the firing state was forwarded."""
    repeats: int = 0
    """Number of earlier episodes with the same start: a restarted server continues with its old start times."""

    updated_unix_ns: int = 0
    """Time of the last update from the sender; 0: never."""

    @property
    def revision(self) -> str:
        """Key that distinguishes this message from earlier ones about the same state; empty the first time."""
        repeat_suffix = f"again-{self.repeats}" if self.repeats else ""
        return f"{repeat_suffix}forwarded-{self.forwarded}" if self.status == "firing" and self.forwarded > 1 else repeat_suffix


def next_episode(
    previous: Episode | None,
    *,
    fingerprint: str,
    status: Literal["firing", "resolved"],
    starts_unix_ns: int,
    now_unix_ns: int,
    repeat_after_s: float,
    updated_unix_ns: int = 0,
) -> tuple[Episode, Change | None]:
    """Return the episode after an alert arrived, and the kind of change; ``None`` if the alert need not be forwarded.

    A change is another status, an update by the sender, and an alert that still fires ``repeat_after_s`` after it was last
    forwarded. The end of an alert that never fired here is no change.
    """
    fresh = Episode(
        fingerprint=fingerprint,
        starts_unix_ns=starts_unix_ns,
        status=status,
        changed_unix_ns=now_unix_ns,
        forwarded_unix_ns=now_unix_ns if status == "firing" else 0,
        repeats=previous.repeats + 1 if previous is not None and previous.starts_unix_ns == starts_unix_ns else 0,
        updated_unix_ns=updated_unix_ns,
    )
    if previous is None:
        return fresh, "change" if status == "firing" else None
    if status == "resolved":
        # An end without a start time belongs to the known episode.
        if previous.status == "resolved" or 0 < starts_unix_ns < previous.starts_unix_ns - LATE_S * 1e9:
            return previous, None
        return msgspec.structs.replace(previous, status="resolved", changed_unix_ns=now_unix_ns), "change"
    if previous.status == "resolved":
        # After a clock change, or without a start time, the order is unknown: forward once too often rather than never.
        late = 0 <= now_unix_ns - previous.changed_unix_ns < LATE_S * 1e9 and 0 < starts_unix_ns <= previous.starts_unix_ns
        return (previous, None) if late else (fresh, "change")
    updated = updated_unix_ns > previous.updated_unix_ns
    if not updated and abs(now_unix_ns - previous.forwarded_unix_ns) < repeat_after_s * 1e9:
        return previous, None
    latest = max(updated_unix_ns, previous.updated_unix_ns)
    episode = msgspec.structs.replace(
        previous, forwarded_unix_ns=now_unix_ns, forwarded=previous.forwarded + 1, updated_unix_ns=latest
    )
    return episode, "update" if updated else "reminder"
