"""Processing of accepted deliveries: what changed is enriched and forwarded, and actions are stored for the actor.

The messages of a delivery, the episodes of its alerts and the actions they call for are stored in one transaction. After a crash
before that transaction the delivery is processed again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.alerts.alert import UPDATED_AT, rfc3339, unix_ns
from rankscope.alerts.receive.actor import run_until_stopped, wanted_actions
from rankscope.alerts.receive.analyst import Analyst
from rankscope.alerts.receive.config import ActionRule
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.episodes import Change, Episode, next_episode
from rankscope.alerts.receive.facts import Facts, annotations_of
from rankscope.alerts.receive.forwarding import ForwardedAlert, Forwarding, LateVerdicts, forwarded
from rankscope.alerts.receive.inbox import Action, Delivery, Inbox
from rankscope.alerts.receive.known_runs import run_named
from rankscope.alerts.receive.notification import Notification, NotUnderstoodError, ReceivedAlert, read_notification
from rankscope.alerts.store.database import StoreError

POLL_S: Final = 0.5
PRUNE_S: Final = 600.0
PRUNE_DELIVERIES: Final = 100
POISON_S: Final = 60.0
"""Pause before a delivery that caused an internal fault is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings for the processing of alerts."""

    repeat_after_s: float = 4 * 3600.0
    enrich_within_s: float = 20.0
    dashboard_url: str | None = None
    rules: Sequence[ActionRule] = ()


@dataclass(slots=True)
class _Changes:
    """Alerts of one delivery that have to be forwarded, and the episodes after it."""

    episodes: dict[str, Episode] = field(default_factory=dict)
    alerts: list[tuple[ReceivedAlert, Episode, Change]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


class Worker:
    """Processor of the inbox. Without ``forwarding`` no alert is forwarded; without ``analyst`` none is enriched.

    ``late`` forwards verdicts that were not ready in time.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        policy: Policy,
        counters: Counters,
        report: Callable[[str], object],
        forwarding: Forwarding | None = None,
        analyst: Analyst | None = None,
        late: LateVerdicts | None = None,
        on_action: Callable[[], object] = lambda: None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._policy = policy
        self._counters = counters
        self._report = report
        self._forwarding = forwarding
        self._analyst = analyst
        self._late = late
        self._on_action = on_action
        self._clock = clock
        self._began_unix_ns = clock()
        self._waits: dict[int, float] = {}
        """Deliveries that wait for an analysis, and the monotonic time of the first look."""
        self._pruned = -math.inf
        self._since_pruned = 0
        self._poison: dict[int, float] = {}
        """Deliveries that caused an internal fault, and when."""

    def run(self, woken: threading.Event, stopping: threading.Event) -> None:
        """Run until ``stopping`` is set; ``woken`` announces work."""

        def work() -> None:
            while not stopping.is_set() and self.run_due():
                pass

        run_until_stopped(work, woken, stopping, poll_s=POLL_S, report=self._report, kept="accepted deliveries")

    def run_due(self) -> bool:
        """Process the deliveries that need not wait; returns ``True`` if there were any. Raises ``StoreError``."""
        held: set[str] = set()
        done = 0
        last = 0
        # One at a time to limit memory: each may have the maximum size of a body.
        while batch := self._inbox.waiting(1, after=last):
            done += sum([self._process_delivery(delivery, held) for delivery in batch])
            last = batch[-1].number
        if self._late is not None:
            self._late.run_due()
        self._since_pruned += done
        if self._since_pruned >= PRUNE_DELIVERIES or time.monotonic() - self._pruned > PRUNE_S:
            self._inbox.prune(now_unix_ns=self._clock())
            self._pruned, self._since_pruned = time.monotonic(), 0
        return done > 0

    def _process_delivery(self, delivery: Delivery, held: set[str]) -> bool:
        """Process a delivery, unless it has to wait. No later delivery about the same alerts may overtake it."""
        try:
            notification = read_notification(delivery.body)
        except NotUnderstoodError as error:  # accepted by another version of rankscope
            self._report(f"delivery {delivery.number} was accepted and is not understood: {error}")
            notification = Notification(source="alertmanager")
        about = {alert.fingerprint for alert in notification.alerts}
        if about & held or not self._process_safely(delivery, notification):
            held |= about
            return False
        self._waits.pop(delivery.number, None)
        return True

    def _process_safely(self, delivery: Delivery, notification: Notification) -> bool:
        """Process a delivery. One that causes an internal fault stays in the inbox and does not block the others."""
        if time.monotonic() - self._poison.get(delivery.number, -math.inf) < POISON_S:
            return False
        try:
            done = self._process(delivery, notification)
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a bug must not stop the alerts of other deliveries
            if delivery.number not in self._poison:
                self._report(f"internal fault: delivery {delivery.number} is left for later: {type(error).__name__}: {error}")
            self._poison[delivery.number] = time.monotonic()
            return False
        self._poison.pop(delivery.number, None)
        return done

    def _process(self, delivery: Delivery, notification: Notification) -> bool:
        now = self._clock()
        changes = self._changes(notification.alerts, now)
        facts = self._facts(delivery, changes)
        if facts is None:
            return False
        actions: list[Action] = []
        alerts: list[ForwardedAlert] = []
        for alert, episode, kind in changes.alerts:
            annotations = self._annotations(alert, episode, facts.get(alert.fingerprint), actions)
            if kind == "reminder":
                annotations |= {"reminder": str(episode.forwarded - 1), UPDATED_AT: rfc3339(episode.forwarded_unix_ns)}
            alerts.append(forwarded(alert, episode, annotations))
        forwarded_count = 0
        with self._inbox.store.transaction():
            if self._forwarding is not None and alerts:
                forwarded_count = self._forwarding.put(alerts)
            self._inbox.settle(delivery.number, list(changes.episodes.values()), actions, now_unix_ns=now)
        self._counters.add("forwarded", forwarded_count)
        for counted in changes.kinds:
            self._counters.add("alerts", what=counted)
        self._counters.add("truncated_alerts", notification.truncated_alerts)
        if actions:
            self._on_action()
        return True

    def _annotations(self, alert: ReceivedAlert, episode: Episode, known: Facts | None, actions: list[Action]) -> dict[str, str]:
        """Return our annotations of an alert; append the actions that it calls for to ``actions``."""
        annotations: dict[str, str] = {}
        if known is not None:
            annotations = annotations_of(known, alert.labels, dashboard_url=self._policy.dashboard_url)
            self._counters.add("enriched", outcome="no_verdict" if known.verdict is None else "verdict")
            if known.late and self._late is not None and (owed := self._late.owed(alert, episode, new=len(actions))):
                annotations["no_verdict"] += "; it follows when it is ready"
                actions.append(owed)
        rules = () if known is not None and known.unknown else self._policy.rules
        run_id = "" if known is None else known.run_id
        now = self._clock()
        for kind, text, action in wanted_actions(rules, alert, episode, self._inbox, actions, run_id=run_id, now_unix_ns=now):
            annotations[f"{kind}_request"] = text
            if action is None:
                self._counters.add("actions", kind=kind, outcome="rate_limited")
            else:
                actions.append(action)
        return annotations

    def _changes(self, alerts: Sequence[ReceivedAlert], now_unix_ns: int) -> _Changes:
        changes = _Changes()
        for alert in alerts:
            known = changes.episodes.get(alert.fingerprint) or self._inbox.episode(alert.fingerprint)
            episode, kind = next_episode(
                known,
                fingerprint=alert.fingerprint,
                status=alert.status,
                starts_unix_ns=alert.starts_unix_ns,
                now_unix_ns=now_unix_ns,
                repeat_after_s=self._policy.repeat_after_s,
                updated_unix_ns=unix_ns(alert.annotations.get(UPDATED_AT, "")),
            )
            changes.episodes[alert.fingerprint] = episode
            changes.kinds.append(kind or "repeated")
            if kind is not None:
                changes.alerts.append((alert, episode, kind))
        return changes

    def _waited_s(self, delivery: Delivery) -> float:
        """Return the seconds since a delivery arrived or this process started. Setting the clock back does not reduce them."""
        since = self._waits.setdefault(delivery.number, time.monotonic())
        came = max(delivery.received_unix_ns, self._began_unix_ns)
        return max(time.monotonic() - since, (self._clock() - came) / 1e9)

    def _facts(self, delivery: Delivery, changes: _Changes) -> dict[str, Facts] | None:
        """Return facts by fingerprint for firing alerts that name a run; ``None`` while the delivery has to wait."""
        if self._analyst is None:
            return {}
        late = self._waited_s(delivery) >= self._policy.enrich_within_s
        found: dict[str, Facts] = {}
        waits = False
        for alert, _, _ in changes.alerts:
            named = run_named(alert.labels)
            if named is None or alert.status != "firing":
                continue
            facts = self._analyst.facts(named)
            if facts is None:
                if not late:
                    waits = True
                    continue
                facts = Facts(problem=f"the run was not analysed within {self._policy.enrich_within_s:g} s", late=True)
            found[alert.fingerprint] = facts
        return None if waits else found
