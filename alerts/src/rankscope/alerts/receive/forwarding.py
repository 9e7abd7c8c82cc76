"""Forwarding of alerts: their targets, the messages for the outbox, and verdicts that follow later."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rankscope.alerts.alert import UPDATED_AT, rfc3339
from rankscope.alerts.deliver.message import Message, messages
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.payload import PayloadAlert, build_payload, group_key
from rankscope.alerts.receive.analyst import Analyst
from rankscope.alerts.receive.config import Route
from rankscope.alerts.receive.counters import Counters
from rankscope.alerts.receive.episodes import Episode
from rankscope.alerts.receive.facts import annotations_of
from rankscope.alerts.receive.inbox import Action, Inbox
from rankscope.alerts.receive.known_runs import run_named
from rankscope.alerts.receive.notification import ReceivedAlert, payload_alert

_OWN: Final = frozenset(
    {
        "verdict",
        "no_verdict",
        "verdict_rank",
        "verdict_ranks",
        "verdict_host",
        "coverage",
        "simulated",
        "dashboard_url",
        "reminder",
    }
    | {UPDATED_AT, "found_by_name", "capture_request", "dump_request"}
)
"""Annotations whose received value is replaced by our own."""
_LONGEST_GROUP: Final = 512
"""Characters; a longer group key is replaced by a digest, because every message contains it."""


@dataclass(frozen=True, slots=True)
class ForwardedAlert:
    """An alert as it is forwarded."""

    alert: PayloadAlert
    revision: str = ""
    """Not empty for a further message about a state that was already forwarded."""


def forwarded(
    alert: ReceivedAlert, episode: Episode, annotations: dict[str, str], *, revision: str | None = None
) -> ForwardedAlert:
    """Build the forwarded alert: as received, with the start of its episode and our own ``annotations``.

    Received annotations take precedence, except those in ``_OWN``. ``revision`` defaults to that of the episode.
    """
    received = payload_alert(alert)
    if annotations.get("verdict") == received.annotations.get("summary"):  # from the watcher: its summary is the verdict
        annotations = {name: text for name, text in annotations.items() if name != "verdict"}
    annotations = annotations | received.annotations | {name: text for name, text in annotations.items() if name in _OWN}
    return ForwardedAlert(
        msgspec.structs.replace(received, starts_at=episode_start(alert, episode.starts_unix_ns), annotations=annotations),
        episode.revision if revision is None else revision,
    )


def episode_start(alert: ReceivedAlert, starts_unix_ns: int) -> str:
    """Return the start of the episode for forwarding; if it is unknown, the start as received."""
    return rfc3339(starts_unix_ns) if starts_unix_ns > 0 else alert.starts_at


class Forwarding:
    """Forwarder of alerts to the outbox by its routes. ``targets`` maps names to the maximum number of alerts per message."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        targets: dict[str, int],
        routes: Sequence[Route],
        external_url: str = "",
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self._outbox = outbox
        self._targets = targets
        self._routes = routes
        self._external_url = external_url
        self._wake = wake

    def put(self, alerts: Sequence[ForwardedAlert]) -> int:
        """Store messages about ``alerts``, all or none, and return once they are on disk. Returns the number of messages.

        Raises ``StoreError``.
        """
        groups: dict[tuple[str, str, str], list[PayloadAlert]] = defaultdict(list)
        for one in alerts:
            for target in self.targets_of(one.alert.labels):
                groups[target, _group(one.alert), one.revision].append(one.alert)
        made: list[Message] = []
        for (target, group, revision), members in groups.items():
            payload = build_payload(members, key=group, external_url=self._external_url)
            made += messages(target, payload, most_alerts=self._targets[target], revision=revision)
        if made:
            self._outbox.put(made)
            self._wake()
        return len(made)

    def targets_of(self, labels: dict[str, str]) -> list[str]:
        """Return the targets of the first matching route; all targets if none matches."""
        route = next((route for route in self._routes if route.matches(labels)), None)
        return list(self._targets) if route is None else list(dict.fromkeys(route.targets))


def _group(alert: PayloadAlert) -> str:
    key = group_key(alert.labels)
    return key if len(key) <= _LONGEST_GROUP else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


MOST_OWED: Final = 200
"""Limit, because each stores its alert and is checked at every event. Further alerts get no late verdict."""
TOO_LATE_S: Final = 1800.0
"""An older verdict is no longer useful."""


class LateVerdicts:
    """Verdicts that are owed to alerts. All methods raise ``StoreError``."""

    def __init__(
        self,
        inbox: Inbox,
        analyst: Analyst,
        forwarding: Forwarding,
        *,
        counters: Counters,
        dashboard_url: str | None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._inbox = inbox
        self._analyst = analyst
        self._forwarding = forwarding
        self._counters = counters
        self._dashboard_url = dashboard_url
        self._clock = clock

    def owed(self, alert: ReceivedAlert, episode: Episode, *, new: int) -> Action | None:
        """Build the inbox entry of an owed verdict; ``None`` at the limit. ``new``: number of new entries of the delivery."""
        if self._inbox.owed_verdict_count() + new >= MOST_OWED:
            return None
        return Action(
            kind="verdict",
            fingerprint=alert.fingerprint,
            starts_unix_ns=episode.starts_unix_ns,
            run_id=alert.labels.get("run_id", ""),
            created_unix_ns=self._clock(),
            steps=0,
            alert=msgspec.json.encode(alert),
        )

    def run_due(self) -> None:
        """Forward the verdicts that are ready."""
        for action in self._inbox.owed_verdicts():
            if self._settled(action):
                self._inbox.forget(action)

    def _settled(self, action: Action) -> bool:
        """Forward a verdict if it is ready. Returns ``False`` if it may still come, ``True`` if the entry can be deleted."""
        if abs(self._clock() - action.created_unix_ns) > TOO_LATE_S * 1e9:
            return True
        episode = self._inbox.episode(action.fingerprint)
        if episode is None or episode.status == "resolved" or episode.starts_unix_ns != action.starts_unix_ns:
            return True
        alert = msgspec.json.decode(action.alert, type=ReceivedAlert)
        named = run_named(alert.labels)
        assert named is not None, "a verdict is owed about a run"
        facts = self._analyst.facts(named)
        if facts is None or facts.late:
            return False
        self._counters.add("late_verdicts", outcome="no_verdict" if facts.verdict is None else "verdict")
        if facts.verdict is not None:
            annotations = annotations_of(facts, alert.labels, dashboard_url=self._dashboard_url)
            annotations[UPDATED_AT] = rfc3339(self._clock())
            follow_up = forwarded(alert, episode, annotations, revision=f"verdict-{action.number}")
            self._counters.add("forwarded", self._forwarding.put([follow_up]))
        return True
