"""Passing alerts on: which targets an alert goes to, and the messages that the outbox takes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rankscope.alerts.alert import UPDATED_AT, Alert, rfc3339
from rankscope.alerts.deliver.message import Message, messages
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.payload import GROUP_LABELS, PAYLOAD_VERSION, Payload, PayloadAlert, group_key
from rankscope.alerts.receive.config import Route
from rankscope.alerts.receive.episodes import Episode
from rankscope.alerts.receive.notification import Arrived, payload_alert

_OURS: Final = frozenset(
    {"verdict", "no_verdict", "verdict_rank", "verdict_host", "coverage", "simulated", "dashboard_url", "reminder"}
    | {UPDATED_AT, "found_by_name", "capture_asked", "dump_asked"}
)
"""Annotations whose received value is replaced by our own."""
_LONGEST_GROUP: Final = 512
"""Characters; a longer group key is replaced by a digest, because every message contains it."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """An alert as it is forwarded."""

    alert: PayloadAlert
    revision: str = ""
    """Not empty for a further message about a state that was already forwarded."""


def forwarded(alert: Arrived, episode: Episode, words: dict[str, str], *, revision: str | None = None) -> Forwarded:
    """Build the forwarded alert: as received, with the start of its episode and our annotations ``words``.

    Received annotations take precedence, except those in ``_OURS``. ``revision`` defaults to that of the episode.
    """
    said = payload_alert(alert)
    if words.get("verdict") == said.annotations.get("summary"):  # from the watcher: its summary is the verdict
        words = {name: text for name, text in words.items() if name != "verdict"}
    annotations = words | said.annotations | {name: text for name, text in words.items() if name in _OURS}
    return Forwarded(
        msgspec.structs.replace(said, starts_at=begun(alert, episode.starts_unix_ns), annotations=annotations),
        episode.revision if revision is None else revision,
    )


def begun(alert: Arrived, starts_unix_ns: int) -> str:
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
        woken: Callable[[], object] = lambda: None,
    ) -> None:
        self._outbox = outbox
        self._targets = targets
        self._routes = routes
        self._external_url = external_url
        self._woken = woken

    def put(self, alerts: Sequence[Forwarded]) -> int:
        """Store messages about ``alerts``, all or none, and return once they are on disk. Returns the number of messages.

        Raises ``StoreError``.
        """
        groups: dict[tuple[str, str, str], list[PayloadAlert]] = defaultdict(list)
        for one in alerts:
            for target in self.targets_of(one.alert.labels):
                groups[target, _group(one.alert), one.revision].append(one.alert)
        made: list[Message] = []
        for (target, group, revision), members in groups.items():
            payload = self._payload(group, members)
            made += messages(target, payload, most_alerts=self._targets[target], revision=revision)
        if made:
            self._outbox.put(made)
            self._woken()
        return len(made)

    def targets_of(self, labels: dict[str, str]) -> list[str]:
        """Return the targets of the first matching route; all targets if none matches."""
        route = next((route for route in self._routes if route.matches(labels)), None)
        return list(self._targets) if route is None else list(dict.fromkeys(route.targets))

    def _payload(self, group: str, alerts: list[PayloadAlert]) -> Payload:
        first = alerts[0]
        return Payload(
            version=PAYLOAD_VERSION,
            group_key=group,
            status="firing" if any(alert.status == "firing" for alert in alerts) else "resolved",
            receiver="rankscope",
            group_labels={name: first.labels[name] for name in GROUP_LABELS if name in first.labels},
            external_url=self._external_url,
            alerts=alerts,
        )


def _group(alert: PayloadAlert) -> str:
    key = group_key(Alert(labels=alert.labels, annotations={}))
    return key if len(key) <= _LONGEST_GROUP else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
