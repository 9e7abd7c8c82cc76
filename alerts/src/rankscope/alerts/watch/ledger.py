"""Ledger of alerts: which are pending, firing or resolved, since when, and which webhook has accepted which change.

It survives a restart of the watcher: start times and fingerprints stay, and no webhook is sent a change twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from rankscope.alerts.alert import UPDATED_AT, Alert, Notice, rfc3339
from rankscope.alerts.watch.candidate import Candidate, Loss
from rankscope.analysis.result import Finding


@dataclass(frozen=True, slots=True)
class Policy:
    """Consecutive evaluations with the finding to fire, and without it to resolve; both at least 1."""

    fire_after: int = 3
    resolve_after: int = 3
    least_firing_s: float = 0.0
    """An alert fires for at least as long: whoever groups alerts must get to see it before it is over."""

    def __post_init__(self) -> None:
        if min(self.fire_after, self.resolve_after) < 1:
            raise ValueError("fire_after and resolve_after must be at least 1")


class Track(msgspec.Struct, frozen=True):
    """Where one finding stands.

    ``streak`` counts consecutive evaluations that speak for leaving the state: with the finding while pending, without it
    while firing.
    """

    state: Literal["pending", "firing", "resolved"]
    streak: int = 0


def advance(track: Track | None, *, present: bool, policy: Policy, firing_s: float = float("inf")) -> Track | None:
    """The next state after one evaluation that did or did not show the finding; ``None`` when there is nothing to follow.

    An evaluation that could not tell must not be passed on: missing is neither present nor absent. ``firing_s``: for how long it
    has been firing.
    """
    if track is not None and track.state == "firing":
        misses = 0 if present else track.streak + 1
        over = misses >= policy.resolve_after and firing_s >= policy.least_firing_s
        return Track("resolved") if over else Track("firing", misses)
    if not present:
        return None
    hits = 1 + (track.streak if track is not None and track.state == "pending" else 0)
    return Track("firing") if hits >= policy.fire_after else Track("pending", hits)


ENDED_BECAUSE: Final = "ended_because"
"""Annotation of an alert that has ended although nobody saw that it was mended."""
_LONGEST_HOURS: Final = 1.0
"""Between two evaluations: what a clock that is set, or a watcher that was away, adds beyond is not counted as lost."""

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
    culprit: str = ""
    """Who is to blame, as far as that was known last."""
    revised_unix_ns: int | None = None
    """When it became known, or another turned out to be it, while the alert fired: worth being told once more."""
    told: dict[str, Status] = {}
    """Receiver (its key, not its address) to the last status it accepted."""
    knows: dict[str, str] = {}
    """Receiver to the revision that it accepted."""
    logged: Status | None = None
    """The last status that is in the run's ``findings.jsonl``."""
    ended_because: str = ""
    """Why it is no longer told although nobody saw it mended; empty: it is no longer so."""
    finding: Finding | None = None
    """What it fired for, until that is there, too."""
    gpu_hours_lost: float = 0.0
    """Since it was seen first."""
    seen_unix_ns: int | None = None
    """When it was found last."""

    @property
    def name(self) -> str:
        """Of the alert."""
        return self.alert.labels.get("alertname", "")

    @property
    def revision(self) -> str:
        """Tells what is known by now from what was known when it fired."""
        return "" if self.revised_unix_ns is None else str(self.revised_unix_ns)

    def notice(self) -> Notice:
        """What to send about it; only for an alert that has fired."""
        assert self.starts_at_unix_ns is not None
        return Notice(
            alert=self.alert_now(),
            fingerprint=self.fingerprint,
            starts_at_unix_ns=self.starts_at_unix_ns,
            ends_at_unix_ns=self.ends_at_unix_ns,
            revision=self.revision if self.ends_at_unix_ns is None else "",
        )

    def alert_now(self) -> Alert:
        """What it says, with when more became known, and why it has ended where nobody saw it mended."""
        more = {}
        if self.revised_unix_ns is not None:
            more[UPDATED_AT] = rfc3339(self.revised_unix_ns)
        if self.ended_because:
            more[ENDED_BECAUSE] = self.ended_because
        return msgspec.structs.replace(self.alert, annotations=self.alert.annotations | more)

    def found(self, candidate: Candidate, now_unix_ns: int) -> None:
        """It is there, and this is what is known of it now."""
        self.alert = candidate.alert
        culprit = self.alert.annotations.get("culprit", "")
        if culprit not in ("", self.culprit):
            self.culprit = culprit
            if self.starts_at_unix_ns is not None:
                self.revised_unix_ns, self.logged = now_unix_ns, None
        if candidate.loss is not None:
            self._lose(candidate.loss, now_unix_ns)
        self.seen_unix_ns = now_unix_ns

    def _lose(self, loss: Loss, now_unix_ns: int) -> None:
        hours = 0.0 if self.seen_unix_ns is None else max(0.0, (now_unix_ns - self.seen_unix_ns) / 3.6e12)
        more = self.gpu_hours_lost + loss.per_hour * min(hours, _LONGEST_HOURS)
        self.gpu_hours_lost = max(more, loss.gpu_hours)
        texts = {**self.alert.annotations, **loss.annotations(self.gpu_hours_lost)}
        self.alert = msgspec.structs.replace(self.alert, annotations=texts)


class Ledger(msgspec.Struct, kw_only=True):
    """All alerts that are followed, of all runs."""

    entries: list[Entry] = []
    alive: list[str] = []
    """Folders of runs that were seen to make steps and have not ended: that they no longer do is news after a restart, too."""

    def update(
        self,
        run: str,
        found: Iterable[Candidate],
        *,
        now_unix_ns: int,
        policy: Policy,
        unknown: Collection[int] = (),
        of: Collection[str] | None = None,
    ) -> None:
        """Take in one evaluation of a run.

        ``unknown``: ranks that it could tell nothing of. What is followed of them stays as it is unless it was found. ``of``:
        names of the alerts that it was about; ``None``: all.
        """
        silent = {str(rank) for rank in unknown}
        present = {candidate.fingerprint: candidate for candidate in found}
        followed = {
            entry.fingerprint: entry
            for entry in self.entries
            if entry.run == run and entry.track.state != "resolved" and (of is None or entry.name in of)
        }
        for key, candidate in present.items():
            if key not in followed:
                followed[key] = Entry(run=run, fingerprint=key, alert=candidate.alert, track=Track("pending"))
                self.entries.append(followed[key])
        for key, entry in followed.items():
            if key not in present and not silent.isdisjoint(_ranks_of(entry)):
                continue
            before = entry.track.state
            firing_s = 0.0 if entry.starts_at_unix_ns is None else (now_unix_ns - entry.starts_at_unix_ns) / 1e9
            track = advance(entry.track, present=key in present, policy=policy, firing_s=firing_s)
            if track is None:
                self.entries.remove(entry)
                continue
            entry.track = track
            if key in present:
                entry.found(present[key], now_unix_ns)
            if track.state == "resolved":
                entry.ends_at_unix_ns = now_unix_ns
            elif track.state == "firing" and before != "firing":
                entry.starts_at_unix_ns = now_unix_ns
                entry.finding = present[key].finding
                self._drop_overtaken(entry)

    def resolve(
        self, run: str, *, now_unix_ns: int, because: str, of: Collection[str] | None = None, but: Collection[str] = ()
    ) -> None:
        """End everything of a run that is over or gone: pending findings are dropped, firing alerts resolved ``because`` of that.

        ``of`` these names (``None``: all), ``but`` not of these.
        """
        meant = [
            entry for entry in self.entries if entry.run == run and (of is None or entry.name in of) and entry.name not in but
        ]
        dropped = {id(entry) for entry in meant if entry.track.state == "pending"}
        self.entries = [entry for entry in self.entries if id(entry) not in dropped]
        for entry in meant:
            if entry.track.state == "firing":
                entry.track = Track("resolved")
                entry.ends_at_unix_ns, entry.ended_because = now_unix_ns, because

    def restart(self, run: str) -> None:
        """Another attempt has begun: what was only pending was about ranks that are gone."""
        self.entries = [entry for entry in self.entries if entry.run != run or entry.track.state != "pending"]

    def runs(self) -> set[str]:
        """Folders of the runs with a pending or firing alert."""
        return {entry.run for entry in self.entries if entry.track.state != "resolved"}

    def names(self, run: str, *, together: bool = False) -> set[str]:
        """Names of the pending or firing alerts of a run; ``together``: only of those that are about many ranks at once."""
        return {
            entry.name
            for entry in self.entries
            if entry.run == run and entry.track.state != "resolved" and (not together or "ranks" in entry.alert.annotations)
        }

    def has_pending(self, run: str) -> bool:
        """Whether something of the run is about to fire."""
        return any(entry.run == run and entry.track.state == "pending" for entry in self.entries)

    def unlogged(self) -> list[Entry]:
        """Those whose last change is not in ``findings.jsonl``."""
        return [
            entry for entry in self.entries if entry.track.state in ("firing", "resolved") and entry.logged != entry.track.state
        ]

    def forget(self, owed: Callable[[Entry], bool]) -> None:
        """Drop resolved alerts that are ``owed`` to nobody any more."""
        self.entries = [entry for entry in self.entries if entry.track.state != "resolved" or owed(entry)]

    def _drop_overtaken(self, entry: Entry) -> None:
        """An end not yet delivered is overtaken when the same alert fires again: for that receiver it never ended."""
        self.entries = [
            other
            for other in self.entries
            if other is entry or other.fingerprint != entry.fingerprint or other.track.state != "resolved"
        ]


def _ranks_of(entry: Entry) -> set[str]:
    """The ranks that an alert is about."""
    together = entry.alert.annotations.get("ranks", "")
    return {entry.alert.labels.get("rank", ""), *together.split(",")} - {""}
