"""The ledger of alerts: which finding is pending or firing since when, and which receiver has been told what.

It is the part of the watcher that outlives a restart: start times and fingerprints stay, nobody is told twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

import msgspec

from rankscope.alerts.alert import Alert, Notice
from rankscope.alerts.findings import Candidate
from rankscope.alerts.hysteresis import Policy, Track, advance

LEDGER_SCHEMA: Final = "rankscope.alerts-state/1"

Status = Literal["firing", "resolved"]


class Entry(msgspec.Struct, kw_only=True):
    """One alert that is followed."""

    run: str
    """Folder of the run."""
    fingerprint: str
    alert: Alert
    track: Track
    starts_at_unix_ns: int | None = None
    """When it fired; ``None`` while pending."""
    ends_at_unix_ns: int | None = None
    told: dict[str, Status] = {}
    """Receiver (its key, not its address) to the last status it accepted."""

    def notice(self) -> Notice:
        """What to send about it; only for an alert that has fired."""
        assert self.starts_at_unix_ns is not None
        return Notice(
            alert=self.alert,
            fingerprint=self.fingerprint,
            starts_at_unix_ns=self.starts_at_unix_ns,
            ends_at_unix_ns=self.ends_at_unix_ns,
        )


class Ledger(msgspec.Struct, kw_only=True):
    """All alerts that are followed, of all runs."""

    schema: str = LEDGER_SCHEMA
    entries: list[Entry] = []

    def update(
        self,
        run: str,
        found: Iterable[Candidate],
        *,
        now_unix_ns: int,
        policy: Policy,
        unknown: Collection[int] = (),
    ) -> list[Entry]:
        """Take in one evaluation of a run; returns the entries that fired or resolved by it.

        ``unknown``: ranks that it could tell nothing of. What is followed of them stays as it is unless it was found.
        """
        silent = {str(rank) for rank in unknown}
        present = {candidate.fingerprint: candidate for candidate in found}
        changed: list[Entry] = []
        followed = {entry.fingerprint: entry for entry in self.entries if entry.run == run and entry.track.state != "resolved"}
        for key, candidate in present.items():
            if key not in followed:
                followed[key] = Entry(run=run, fingerprint=key, alert=candidate.alert, track=Track("pending"))
                self.entries.append(followed[key])
        for key, entry in followed.items():
            if key not in present and entry.alert.labels.get("rank") in silent:
                continue
            before = entry.track.state
            track = advance(entry.track, present=key in present, policy=policy)
            if track is None:
                self.entries.remove(entry)
                continue
            entry.track = track
            if key in present:
                entry.alert = present[key].alert
            if track.state == "resolved":
                entry.ends_at_unix_ns = now_unix_ns
            elif track.state == "firing" and before != "firing":
                entry.starts_at_unix_ns = now_unix_ns
                self._drop_overtaken(entry)
            if track.state != before:
                changed.append(entry)
        return [entry for entry in changed if entry.track.state != "pending"]

    def resolve(self, run: str, *, now_unix_ns: int) -> list[Entry]:
        """End everything of a run that is over or gone: pending findings are dropped, firing alerts resolved and returned."""
        self.entries = [entry for entry in self.entries if entry.run != run or entry.track.state != "pending"]
        ended = [entry for entry in self.entries if entry.run == run and entry.track.state == "firing"]
        for entry in ended:
            entry.track = Track("resolved")
            entry.ends_at_unix_ns = now_unix_ns
        return ended

    def runs(self) -> set[str]:
        """Folders of the runs with a pending or firing alert."""
        return {entry.run for entry in self.entries if entry.track.state != "resolved"}

    def forget(self, receivers: Collection[str]) -> None:
        """Drop resolved alerts of which every one of ``receivers`` (keys) that was told about the firing knows the end."""
        self.entries = [
            entry
            for entry in self.entries
            if entry.track.state != "resolved" or any(entry.told.get(key) == "firing" for key in receivers)
        ]

    def _drop_overtaken(self, entry: Entry) -> None:
        """An end not yet delivered is overtaken when the same alert fires again: for that receiver it never ended."""
        self.entries = [
            other
            for other in self.entries
            if other is entry or other.fingerprint != entry.fingerprint or other.track.state != "resolved"
        ]
