"""Passing alerts on: which targets an alert goes to, and the messages that the outbox takes."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.alerts.alert import Alert
from rankscope.alerts.message import Message, messages
from rankscope.alerts.outbox import Outbox
from rankscope.alerts.payload import GROUP_LABELS, PAYLOAD_VERSION, Payload, PayloadAlert, group_key
from rankscope.alerts.receiver_config import Route

_LONGEST_GROUP: Final = 512
"""Characters; of a longer one only a digest is left, for a group is part of every message."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """An alert as it goes on."""

    alert: PayloadAlert
    revision: str = ""
    """Not empty: more about a state that was told."""


class Forwarding:
    """Puts alerts into the outbox, for the targets that its routes say; ``targets`` maps names to alerts in one message."""

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
        """Take alerts, all or none; they are on the disk when this returns. Returns how many messages were made of them.

        Raises ``OutboxError``.
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
        """Targets of the first route that matches; all, where none does."""
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
