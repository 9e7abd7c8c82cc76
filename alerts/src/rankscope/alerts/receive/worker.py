"""Processing of accepted deliveries: what changed is enriched and forwarded, and actions are stored for the action runner.

The messages of a delivery, the episodes of its alerts and the actions they call for are stored in one transaction. After a crash
before that transaction the delivery is processed again.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.alerts.alert import UPDATED_AT, rfc3339, unix_ns
from rankscope.alerts.payload import Notice, PayloadAlert
from rankscope.alerts.receive.actions.action_runner import wanted_actions
from rankscope.alerts.receive.config import ActionRule
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.episodes import Change, Episode, next_episode
from rankscope.alerts.receive.forwarding import Forwarding, notice_to_forward
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.notification import Notification, NotUnderstoodError, read_notification
from rankscope.alerts.receive.verdicts.analyst import Analyst
from rankscope.alerts.receive.verdicts.known_runs import RunName, run_named
from rankscope.alerts.receive.verdicts.late_verdicts import LateVerdicts
from rankscope.alerts.receive.verdicts.run_verdict import RunVerdict, verdict_annotations
from rankscope.alerts.receive.work_loop import run_until_stopped
from rankscope.alerts.store.database import StoreError

POLL_S: Final = 0.5
PRUNE_S: Final = 600.0
PRUNE_DELIVERIES: Final = 100
POISON_S: Final = 60.0
"""Pause before a delivery that caused an internal fault is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings for the processing of alerts."""

    repeat_after_s: float = 4 * 3600.0
    enrich_within_s: float = 20.0
    dashboard_url: str | None = None
    rules: Sequence[ActionRule] = ()


@dataclass(slots=True)
class _EpisodeChanges:
    """Alerts of one delivery that have to be forwarded, and the episodes after it."""

    episodes: dict[str, Episode] = field(default_factory=dict)
    alerts: list[tuple[PayloadAlert, Episode, Change]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _WaitingDelivery:
    """What is known about a delivery that has to wait, so that its body need not be decoded at every look."""

    received_unix_ns: int
    """When it arrived, or this process started."""
    since_s: float = field(default_factory=time.monotonic)
    """Monotonic time of the first look."""
    fingerprints: array[int] = field(default_factory=lambda: array("Q"))
    runs: frozenset[RunName] = frozenset()
    """Runs whose verdicts it waits for."""
    blocked: bool = False
    """An earlier delivery about one of its alerts waits."""
    not_before_s: float = 0.0
    """Monotonic time of the next attempt after an internal fault; 0 without one."""


class InboxWorker:
    """Processor of the inbox. Without ``forwarding`` no alert is forwarded; without ``analyst`` none is enriched.

    ``late`` forwards verdicts that were not ready in time.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        settings: WorkerSettings,
        counters: Counters,
        report: Callable[[str], object],
        forwarding: Forwarding | None = None,
        analyst: Analyst | None = None,
        late: LateVerdicts | None = None,
        on_action: Callable[[], object] = lambda: None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._settings = settings
        self._counters = counters
        self._report = report
        self._forwarding = forwarding
        self._analyst = analyst
        self._late = late
        self._on_action = on_action
        self._clock = clock
        self._began_unix_ns = clock()
        self._waiting: dict[int, _WaitingDelivery] = {}
        self._pruned = -math.inf
        self._since_pruned = 0

    def run(self, woken: threading.Event, stopping: threading.Event) -> None:
        """Run until ``stopping`` is set; ``woken`` announces work."""

        def work() -> None:
            while not stopping.is_set() and self.run_due():
                pass

        run_until_stopped(work, woken, stopping, poll_s=POLL_S, report=self._report, item_names="accepted deliveries")

    def run_due(self) -> bool:
        """Process the deliveries that need not wait; returns ``True`` if there were any. Raises ``StoreError``."""
        deliveries = self._process_waiting()
        if self._late is not None:
            self._late.run_due()
        self._since_pruned += deliveries
        if self._since_pruned >= PRUNE_DELIVERIES or time.monotonic() - self._pruned > PRUNE_S:
            self._inbox.prune(now_unix_ns=self._clock())
            self._pruned, self._since_pruned = time.monotonic(), 0
        return deliveries > 0

    def _process_waiting(self) -> int:
        """Process the deliveries that need not wait; returns their number."""
        waiting = self._inbox.waiting()
        remembered = {number: self._waiting[number] for number, _ in waiting if number in self._waiting}
        self._waiting = remembered
        if len(remembered) == len(waiting) and not any(
            not delivery.blocked and self._may_proceed(delivery) for delivery in remembered.values()
        ):
            return 0
        blocked: set[int] = set()
        deliveries = 0
        for number, received_unix_ns in waiting:
            delivery = remembered.get(number)
            if delivery is None or (blocked.isdisjoint(delivery.fingerprints) and self._may_proceed(delivery)):
                # One body at a time to limit memory: each may have the maximum size.
                delivery = self._process_delivery(number, received_unix_ns, blocked)
                if delivery is None:
                    remembered.pop(number, None)
                    deliveries += 1
                    continue
                remembered[number] = delivery
            # No later delivery about the same alerts may overtake this one.
            delivery.blocked = not blocked.isdisjoint(delivery.fingerprints)
            blocked.update(delivery.fingerprints)
        return deliveries

    def _may_proceed(self, delivery: _WaitingDelivery) -> bool:
        """Return whether a delivery that had to wait can be processed now."""
        if time.monotonic() < delivery.not_before_s:
            return False
        analyst = self._analyst
        return self._is_late(delivery) or analyst is None or all(analyst.verdict(named) is not None for named in delivery.runs)

    def _process_delivery(self, number: int, received_unix_ns: int, blocked: set[int]) -> _WaitingDelivery | None:
        """Process a delivery, unless it has to wait; returns what to keep about one that waits.

        One that causes an internal fault stays in the inbox and does not block the others.
        """
        delivery = self._waiting.get(number) or _WaitingDelivery(received_unix_ns=max(received_unix_ns, self._began_unix_ns))
        try:
            notification = read_notification(self._inbox.body(number))
        except NotUnderstoodError as error:  # accepted by another version of rankscope
            self._report(f"delivery {number} was accepted and is not understood: {error}")
            notification = Notification(source="alertmanager")
        delivery.fingerprints = array("Q", (int(alert.fingerprint, 16) for alert in notification.alerts))
        if not blocked.isdisjoint(delivery.fingerprints):
            return delivery
        try:
            delivery.runs = self._process(number, delivery, notification)
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug must not stop the alerts of other deliveries
            if not delivery.not_before_s:
                self._report(f"internal fault: delivery {number} is left for later: {type(error).__name__}: {error}")
            delivery.not_before_s = time.monotonic() + POISON_S
            return delivery
        return delivery if delivery.runs else None

    def _process(self, number: int, delivery: _WaitingDelivery, notification: Notification) -> frozenset[RunName]:
        """Process a delivery; returns the runs whose verdicts it has to wait for, empty if it was processed."""
        now = self._clock()
        changes = self._changes(notification.alerts, now)
        verdicts, missing = self._verdicts(delivery, changes)
        if missing:
            return missing
        actions: list[Action] = []
        notices: list[Notice] = []
        for alert, episode, kind in changes.alerts:
            annotations = self._annotations(alert, episode, verdicts.get(alert.fingerprint), actions)
            if kind == "reminder":
                annotations |= {"reminder": str(episode.forwarded - 1), UPDATED_AT: rfc3339(episode.forwarded_unix_ns)}
            notices.append(notice_to_forward(alert, episode, annotations))
        forwarded_count = 0
        with self._inbox.store.transaction():
            if self._forwarding is not None and notices:
                forwarded_count = self._forwarding.put(notices)
            self._inbox.settle(number, list(changes.episodes.values()), actions, now_unix_ns=now)
        self._counters.add("forwarded", forwarded_count)
        for counted in changes.kinds:
            self._counters.add("alerts", what=counted)
        self._counters.add("truncated_alerts", notification.truncated_alerts)
        if actions:
            self._on_action()
        return frozenset()

    def _annotations(
        self, alert: PayloadAlert, episode: Episode, verdict: RunVerdict | None, actions: list[Action]
    ) -> dict[str, str]:
        """Return our annotations of an alert; append the actions that it calls for to ``actions``."""
        annotations: dict[str, str] = {}
        if verdict is not None:
            annotations = verdict_annotations(verdict, alert.labels, dashboard_url=self._settings.dashboard_url)
            self._counters.add("enriched", outcome="no_verdict" if verdict.verdict is None else "verdict")
            if verdict.late and self._late is not None and (owed := self._late.owed(alert, episode, new=len(actions))):
                annotations["no_verdict"] += "; it follows when it is ready"
                actions.append(owed)
        rules = () if verdict is not None and verdict.unknown else self._settings.rules
        run_id = "" if verdict is None else verdict.run_id
        now = self._clock()
        for kind, text, action in wanted_actions(rules, alert, episode, self._inbox, actions, run_id=run_id, now_unix_ns=now):
            annotations[f"{kind}_request"] = text
            if action is None:
                self._counters.add("actions", kind=kind, outcome="rate_limited")
            else:
                actions.append(action)
        return annotations

    def _changes(self, alerts: Sequence[PayloadAlert], now_unix_ns: int) -> _EpisodeChanges:
        changes = _EpisodeChanges()
        for alert in alerts:
            previous = changes.episodes.get(alert.fingerprint) or self._inbox.episode(alert.fingerprint)
            episode, kind = next_episode(
                previous,
                fingerprint=alert.fingerprint,
                status=alert.status,
                starts_unix_ns=unix_ns(alert.starts_at),
                now_unix_ns=now_unix_ns,
                repeat_after_s=self._settings.repeat_after_s,
                updated_unix_ns=unix_ns(alert.annotations.get(UPDATED_AT, "")),
            )
            changes.episodes[alert.fingerprint] = episode
            changes.kinds.append(kind or "repeated")
            if kind is not None:
                changes.alerts.append((alert, episode, kind))
        return changes

    def _is_late(self, delivery: _WaitingDelivery) -> bool:
        """Return whether a delivery has waited long enough. Setting the clock back does not reduce its time."""
        waited_s = max(time.monotonic() - delivery.since_s, (self._clock() - delivery.received_unix_ns) / 1e9)
        return waited_s >= self._settings.enrich_within_s

    def _verdicts(self, delivery: _WaitingDelivery, changes: _EpisodeChanges) -> tuple[dict[str, RunVerdict], frozenset[RunName]]:
        """Return verdicts by fingerprint for firing alerts that name a run, and the runs that have to be waited for."""
        verdicts: dict[str, RunVerdict] = {}
        missing: set[RunName] = set()
        if self._analyst is None:
            return verdicts, frozenset()
        late = self._is_late(delivery)
        for alert, _, _ in changes.alerts:
            named = run_named(alert.labels)
            if named is None or alert.status != "firing":
                continue
            verdict = self._analyst.verdict(named)
            if verdict is None:
                if not late:
                    missing.add(named)
                    continue
                verdict = RunVerdict(problem=f"the run was not analysed within {self._settings.enrich_within_s:g} s", late=True)
            verdicts[alert.fingerprint] = verdict
        return verdicts, frozenset(missing)
