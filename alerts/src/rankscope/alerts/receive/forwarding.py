"""Forwarding of alerts: their targets, and the messages for the outbox."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankscope.alerts.alert import UPDATED_AT, rfc3339
from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.payload import Notice, PayloadAlert
from rankscope.alerts.receive.config import Route
from rankscope.alerts.receive.episodes import Episode

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


def notice_to_forward(
    received: PayloadAlert, episode: Episode, annotations: dict[str, str], *, revision: str | None = None
) -> Notice:
    """Build the forwarded alert: as received, with the start of its episode and our own ``annotations``.

    Received annotations take precedence, except those in ``_OWN``. ``revision`` defaults to that of the episode.
    """
    if annotations.get("verdict") == received.annotations.get("summary"):  # from the watcher: its summary is the verdict
        annotations = {name: text for name, text in annotations.items() if name != "verdict"}
    annotations = annotations | received.annotations | {name: text for name, text in annotations.items() if name in _OWN}
    return Notice(
        alert=msgspec.structs.replace(
            received, starts_at=episode_start(received, episode.starts_unix_ns), annotations=annotations
        ),
        revision=episode.revision if revision is None else revision,
    )


def episode_start(alert: PayloadAlert, starts_unix_ns: int) -> str:
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

    def put(self, notices: Sequence[Notice]) -> int:
        """Store messages about ``notices``, all or none, and return once they are on disk. Returns the number of messages.

        Raises ``StoreError``.
        """
        by_target: dict[str, list[Notice]] = defaultdict(list)
        for notice in notices:
            for target in self.targets_of(notice.alert.labels):
                by_target[target].append(notice)
        messages = [
            message
            for target, members in by_target.items()
            for message in messages_about(target, members, external_url=self._external_url, most_alerts=self._targets[target])
        ]
        if messages:
            self._outbox.put(messages)
            self._wake()
        return len(messages)

    def targets_of(self, labels: dict[str, str]) -> list[str]:
        """Return the targets of the first matching route; all targets if none matches."""
        route = next((route for route in self._routes if route.matches(labels)), None)
        return list(self._targets) if route is None else list(dict.fromkeys(route.targets))
