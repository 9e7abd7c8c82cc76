"""Ledger of alerts: which are pending, firing or resolved, and since when.

It is kept in the store and survives a restart of the watcher: start times and fingerprints stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.alerts.alert import UPDATED_AT, Alert, is_of_host, ranks_of, rfc3339
from rankscope.alerts.payload import Notice, payload_alert
from rankscope.alerts.store.database import AlertStore, read_only
from rankscope.alerts.store.folders import STORE_FILE
from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss
from rankscope.alerts.watch.conditions.confirmation import Confirmation, Suspicion
from rankscope.alerts.watch.conditions.shared_alerts import merge_shared
from rankscope.alerts.watcher_alerts import STRAGGLER
from rankscope.analysis.result.analysis import Finding
from rankscope.base.errors import InputError


@dataclass(frozen=True, slots=True)
class FiringPolicy:
    """Consecutive evaluations with the finding to fire, and without it to resolve; both at least 1."""

    fire_after: int = 3
    resolve_after: int = 3
    least_firing_s: float = 0.0
    """Shortest time for which an alert fires, so that receivers that group alerts see it before it ends."""

    def __post_init__(self) -> None:
        if min(self.fire_after, self.resolve_after) < 1:
            raise ValueError("fire_after and resolve_after must be at least 1")


class FiringState(msgspec.Struct, frozen=True):
    """State of one finding.

    ``streak`` counts consecutive evaluations towards the next state: with the finding while pending, without it while firing.
    """

    state: Literal["pending", "firing", "resolved"]
    streak: int = 0


def advance(
    track: FiringState | None, *, present: bool, policy: FiringPolicy, firing_s: float = float("inf"), unconfirmed: bool = False
) -> FiringState | None:
    """Return the next state after an evaluation with or without the finding; ``None`` drops the finding.

    Do not call this for an evaluation that could not decide. ``firing_s``: how long the alert has been firing.
    ``unconfirmed``: it may not fire yet, however many evaluations found it.
    """
    if track is not None and track.state == "firing":
        misses = 0 if present else track.streak + 1
        over = misses >= policy.resolve_after and firing_s >= policy.least_firing_s
        return FiringState("resolved") if over else FiringState("firing", misses)
    if not present:
        return None
    hits = 1 + (track.streak if track is not None and track.state == "pending" else 0)
    return FiringState("firing") if hits >= policy.fire_after and not unconfirmed else FiringState("pending", hits)


ENDED_BECAUSE: Final = "ended_because"
"""Annotation of an alert that was resolved although no evaluation found its condition gone."""
_LONGEST_HOURS: Final = 1.0
"""Most hours between two evaluations that count as lost, which limits clock changes and pauses of the watcher."""

Status = Literal["firing", "resolved"]


class LedgerEntry(msgspec.Struct, kw_only=True):
    """One alert in the ledger."""

    run: str
    """Folder of the run."""
    fingerprint: str
    alert: Alert
    track: FiringState
    starts_at_unix_ns: int | None = None
    """When the alert fired; ``None`` while pending."""
    ends_at_unix_ns: int | None = None
    culprit: str = ""
    """Ranks to blame, as last known."""
    revised_unix_ns: int | None = None
    """When the culprit became known or changed while the alert fired; the alert is then sent again."""
    logged: Status | None = None
    """Last status in the run's ``findings.jsonl``."""
    ended_because: str = ""
    """Reason for an end without an evaluation that found the condition gone; empty after a regular end."""
    finding: Finding | None = None
    """Finding that made the alert fire, kept until it is in ``findings.jsonl``."""
    gpu_hours_lost: float = 0.0
    """GPU-hours lost since the alert was first seen."""
    seen_unix_ns: int | None = None
    """When the condition was last found."""
    suspicion: Suspicion | None = None
    """Confirmation of a straggler on new steps."""

    @property
    def name(self) -> str:
        """Name of the alert."""
        return self.alert.labels.get("alertname", "")

    @property
    def revision(self) -> str:
        """Identifier of the current details of the alert; empty until they change after it fired."""
        return "" if self.revised_unix_ns is None else str(self.revised_unix_ns)

    def firing_s(self, now_unix_ns: int) -> float:
        """Return for how long the alert has been firing, in seconds."""
        return 0.0 if self.starts_at_unix_ns is None else (now_unix_ns - self.starts_at_unix_ns) / 1e9

    def notice(self) -> Notice:
        """Build the notice to send. The alert must have fired."""
        assert self.starts_at_unix_ns is not None
        alert = payload_alert(self.alert_now(), starts_at_unix_ns=self.starts_at_unix_ns, ends_at_unix_ns=self.ends_at_unix_ns)
        return Notice(alert=alert, revision=self.revision if self.ends_at_unix_ns is None else "")

    def alert_now(self) -> Alert:
        """Return the alert with annotations for its last revision and for the reason of its end."""
        more = {}
        if self.revised_unix_ns is not None:
            more[UPDATED_AT] = rfc3339(self.revised_unix_ns)
        if self.ended_because:
            more[ENDED_BECAUSE] = self.ended_because
        return msgspec.structs.replace(self.alert, annotations=self.alert.annotations | more)

    def update(self, candidate: Candidate, now_unix_ns: int) -> None:
        """Update the alert from an evaluation that found its condition."""
        self.alert = candidate.alert
        culprit = self.alert.annotations.get("culprit", "")
        if culprit not in ("", self.culprit):
            self.culprit = culprit
            if self.starts_at_unix_ns is not None:
                self.revised_unix_ns, self.logged = now_unix_ns, None
        if candidate.loss is not None:
            self._lose(candidate.loss, now_unix_ns)
        self.seen_unix_ns = now_unix_ns

    def _lose(self, loss: ConditionLoss, now_unix_ns: int) -> None:
        hours = 0.0 if self.seen_unix_ns is None else max(0.0, (now_unix_ns - self.seen_unix_ns) / 3.6e12)
        more = self.gpu_hours_lost + loss.per_hour * min(hours, _LONGEST_HOURS)
        self.gpu_hours_lost = max(more, loss.gpu_hours)
        texts = {**self.alert.annotations, **loss.annotations(self.gpu_hours_lost)}
        self.alert = msgspec.structs.replace(self.alert, annotations=texts)


class AlertLedger(msgspec.Struct, kw_only=True):
    """All current alerts of all runs."""

    entries: list[LedgerEntry] = []
    active: list[str] = []
    """Folders of runs that made steps and have not ended; a stall of these is reported after a restart of the watcher, too."""

    def update(
        self,
        run: str,
        candidates: Iterable[Candidate],
        *,
        now_unix_ns: int,
        policy: FiringPolicy,
        unknown: Collection[int] = (),
        decided_names: Collection[str] | None = None,
        confirmation: Confirmation | None = None,
        unconfirmed: Collection[str] = (),
    ) -> None:
        """Apply one evaluation of a run.

        ``unknown``: ranks that were not evaluated; their alerts stay unchanged unless found. ``decided_names``: of the evaluated
        alerts, all for ``None``. ``confirmation``: of stragglers on new steps; without it they need none. ``unconfirmed``: names
        of alerts whose details are incomplete: those do not fire yet, and firing ones stay unchanged.
        """
        silent = set(unknown)
        merged = merge_shared(candidates, merged_names=self.names(run, shared_only=True))
        present = {candidate.fingerprint: candidate for candidate in merged}
        followed = {
            entry.fingerprint: entry
            for entry in self.entries
            if entry.run == run and entry.track.state != "resolved" and (decided_names is None or entry.name in decided_names)
        }
        for key, candidate in present.items():
            if key not in followed:
                followed[key] = LedgerEntry(run=run, fingerprint=key, alert=candidate.alert, track=FiringState("pending"))
                self.entries.append(followed[key])
        # Hosts first: alerts of their ranks end with the beginning of theirs.
        for key, entry in sorted(followed.items(), key=lambda item: not is_of_host(item[1].alert)):
            if key not in present:
                if not silent.isdisjoint(ranks_of(entry.alert)):
                    continue
                hosts = _covering(entry, [followed[other] for other in present])
                if hosts and entry.track.state == "firing":
                    _absorb(entry, hosts, now_unix_ns=now_unix_ns, policy=policy)
                    continue
            if entry.name in unconfirmed and entry.track.state == "firing":
                continue
            self._advance(
                entry,
                present.get(key),
                now_unix_ns=now_unix_ns,
                policy=policy,
                confirmation=confirmation,
                unconfirmed=entry.name in unconfirmed,
            )

    def _advance(
        self,
        entry: LedgerEntry,
        candidate: Candidate | None,
        *,
        now_unix_ns: int,
        policy: FiringPolicy,
        confirmation: Confirmation | None,
        unconfirmed: bool,
    ) -> None:
        """Advance an alert by an evaluation that found its condition, or did not (``None``)."""
        before = entry.track.state
        if confirmation is not None and candidate is not None and before == "pending" and entry.name == STRAGGLER.alertname:
            entry.suspicion = confirmation.advance(entry.suspicion, ranks_of(entry.alert))
            unconfirmed = not entry.suspicion.confirmed
        firing_s = entry.firing_s(now_unix_ns)
        track = advance(entry.track, present=candidate is not None, policy=policy, firing_s=firing_s, unconfirmed=unconfirmed)
        if track is None:
            self.entries.remove(entry)
            return
        entry.track = track
        if candidate is not None:
            entry.update(candidate, now_unix_ns)
        if track.state == "resolved":
            entry.ends_at_unix_ns = now_unix_ns
        elif candidate is not None and track.state == "firing" and before != "firing":
            entry.starts_at_unix_ns = now_unix_ns
            entry.finding = candidate.finding
            self._drop_overtaken(entry)

    def resolve(
        self,
        run: str,
        *,
        now_unix_ns: int,
        because: str,
        names: Collection[str] | None = None,
        except_names: Collection[str] = (),
    ) -> None:
        """End the alerts of a run: drop pending ones, resolve firing ones with the reason ``because``.

        ``names``: of the alerts to end, all for ``None``; ``except_names``: of those to leave.
        """
        affected = [
            entry
            for entry in self.entries
            if entry.run == run and (names is None or entry.name in names) and entry.name not in except_names
        ]
        dropped = {id(entry) for entry in affected if entry.track.state == "pending"}
        self.entries = [entry for entry in self.entries if id(entry) not in dropped]
        for entry in affected:
            if entry.track.state == "firing":
                entry.track = FiringState("resolved")
                entry.ends_at_unix_ns, entry.ended_because = now_unix_ns, because

    def restart(self, run: str) -> None:
        """Drop the pending alerts of a run whose next attempt has begun: they were about ranks of the previous one."""
        self.entries = [entry for entry in self.entries if entry.run != run or entry.track.state != "pending"]

    def runs(self) -> set[str]:
        """Folders of the runs with a pending or firing alert."""
        return {entry.run for entry in self.entries if entry.track.state != "resolved"}

    def names(self, run: str, *, shared_only: bool = False) -> set[str]:
        """Names of the pending or firing alerts of a run; ``shared_only``: only of those that each cover many ranks."""
        return {
            entry.name
            for entry in self.entries
            if entry.run == run and entry.track.state != "resolved" and (not shared_only or _is_of_many(entry.alert))
        }

    def has_pending(self, run: str) -> bool:
        """Return whether an alert of the run is pending."""
        return any(entry.run == run and entry.track.state == "pending" for entry in self.entries)

    def unlogged(self) -> list[LedgerEntry]:
        """Entries whose last change is not in ``findings.jsonl``."""
        return [
            entry for entry in self.entries if entry.track.state in ("firing", "resolved") and entry.logged != entry.track.state
        ]

    def forget(self, owed: Callable[[LedgerEntry], bool]) -> None:
        """Drop resolved alerts that are no longer ``owed`` to any receiver."""
        self.entries = [entry for entry in self.entries if entry.track.state != "resolved" or owed(entry)]

    def _drop_overtaken(self, entry: LedgerEntry) -> None:
        """Drop undelivered ends of an alert that fires again: for their receivers it never ended."""
        self.entries = [
            other
            for other in self.entries
            if other is entry or other.fingerprint != entry.fingerprint or other.track.state != "resolved"
        ]


def _is_of_many(alert: Alert) -> bool:
    """Return whether an alert stands for those of many ranks or hosts (``conditions.shared_alerts``)."""
    return "ranks" in alert.annotations and not is_of_host(alert)


def _covering(entry: LedgerEntry, present: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the alerts about whole hosts that are about all ranks of ``entry`` together; empty if they are not."""
    ranks = ranks_of(entry.alert)
    hosts = [host for host in present if host.name == entry.name and is_of_host(host.alert) and ranks & ranks_of(host.alert)]
    return hosts if ranks and ranks <= set().union(*(ranks_of(host.alert) for host in hosts)) else []


def _absorb(entry: LedgerEntry, hosts: Iterable[LedgerEntry], *, now_unix_ns: int, policy: FiringPolicy) -> None:
    """End an alert whose ranks are those of ``hosts`` once all of these fire; until then it alone is about the condition."""
    if all(host.track.state == "firing" for host in hosts) and entry.firing_s(now_unix_ns) >= policy.least_firing_s:
        names = ", ".join(sorted(host.alert.labels["host"] for host in hosts))
        entry.track, entry.ends_at_unix_ns = FiringState("resolved"), now_unix_ns
        entry.ended_because = f"part of the alert about host {names} as a whole"


def load_ledger(store: AlertStore) -> AlertLedger:
    """Load the ledger from ``store``, empty for a new one. Raises ``StoreError``, and ``InputError`` for undecodable entries."""
    rows = store.query("SELECT entry FROM alerts ORDER BY number")
    active = store.query("SELECT run FROM active_runs ORDER BY run")
    return AlertLedger(entries=_decoded(rows, Path(store.name)), active=[run for (run,) in active])


def save_ledger(store: AlertStore, ledger: AlertLedger) -> None:
    """Replace the ledger in ``store``. Raises ``StoreError``."""
    with store.transaction() as database:
        database.execute("DELETE FROM alerts")
        database.execute("DELETE FROM active_runs")
        database.executemany("INSERT INTO alerts (entry) VALUES (?)", [(msgspec.json.encode(entry),) for entry in ledger.entries])
        database.executemany("INSERT OR IGNORE INTO active_runs VALUES (?)", [(run,) for run in ledger.active])


def read_entries(folder: Path) -> list[LedgerEntry]:
    """Read the alerts in the store in ``folder``, next to a running watcher; none without a store. Raises ``InputError``."""
    with read_only(folder) as database:
        rows = [] if database is None else database.execute("SELECT entry FROM alerts ORDER BY number").fetchall()
    return _decoded(rows, folder / STORE_FILE)


def _decoded(rows: list[tuple[bytes]], path: Path) -> list[LedgerEntry]:
    try:
        return [msgspec.json.decode(entry, type=LedgerEntry) for (entry,) in rows]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, f"not the ledger of a watcher: {error}") from error
