"""Whether an alert that arrives is news: senders repeat themselves, and two Alertmanagers say everything twice."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

LATE_S: Final = 60.0
"""For so long after its end, a firing that began no later than the one that ended is a late copy of it, not a new one."""

News = Literal["change", "update", "reminder"]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One alert from when it fired until it fires anew."""

    fingerprint: str
    starts_unix_ns: int
    """As it was first heard: two Prometheis evaluate a moment apart, and Alertmanager settles on the earlier one later."""
    status: Literal["firing", "resolved"]
    changed_unix_ns: int
    """When we heard of the status."""
    told_unix_ns: int
    """When the firing was last passed on; 0: never."""
    told: int = 1
    """How often it was."""
    again: int = 0
    """How many episodes before it began at the same time: a server that comes back goes on with the times it knew."""

    updated_unix_ns: int = 0
    """When its sender said last that more is known of it; 0: never."""

    @property
    def revision(self) -> str:
        """Tells what is passed on now from what was passed on about the same state; empty the first time."""
        again = f"again-{self.again}" if self.again else ""
        return f"{again}told-{self.told}" if self.status == "firing" and self.told > 1 else again


def next_episode(
    known: Episode | None,
    *,
    fingerprint: str,
    status: Literal["firing", "resolved"],
    starts_unix_ns: int,
    now_unix_ns: int,
    repeat_after_s: float,
    updated_unix_ns: int = 0,
) -> tuple[Episode, News | None]:
    """The episode after an alert arrived, and whether anybody has to hear of it.

    A change is news; so is that more is known of it, and, ``repeat_after_s`` after it was last passed on, that it still fires.
    The end of what never fired here is not.
    """
    fresh = Episode(
        fingerprint=fingerprint,
        starts_unix_ns=starts_unix_ns,
        status=status,
        changed_unix_ns=now_unix_ns,
        told_unix_ns=now_unix_ns if status == "firing" else 0,
        again=known.again + 1 if known is not None and known.starts_unix_ns == starts_unix_ns else 0,
        updated_unix_ns=updated_unix_ns,
    )
    if known is None:
        return fresh, "change" if status == "firing" else None
    if status == "resolved":
        # An end that does not say of what is that of the one we know.
        if known.status == "resolved" or 0 < starts_unix_ns < known.starts_unix_ns - LATE_S * 1e9:
            return known, None
        return msgspec.structs.replace(known, status="resolved", changed_unix_ns=now_unix_ns), "change"
    if known.status == "resolved":
        # The clock may have been set back meanwhile, or nobody says when it began: what cannot be ordered is told, once too often
        # rather than never.
        late = 0 <= now_unix_ns - known.changed_unix_ns < LATE_S * 1e9 and 0 < starts_unix_ns <= known.starts_unix_ns
        return (known, None) if late else (fresh, "change")
    updated = updated_unix_ns > known.updated_unix_ns
    if not updated and abs(now_unix_ns - known.told_unix_ns) < repeat_after_s * 1e9:
        return known, None
    latest = max(updated_unix_ns, known.updated_unix_ns)
    episode = msgspec.structs.replace(known, told_unix_ns=now_unix_ns, told=known.told + 1, updated_unix_ns=latest)
    return episode, "update" if updated else "reminder"
