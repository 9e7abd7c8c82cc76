"""Metrics of the receiver: counts since it started, in Prometheus' text format."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from rankscope.base.exposition import Family, Kind, Labels, exposition_text

_HELP: Final[dict[str, tuple[Kind, str]]] = {
    "rankscope_receiver_deliveries_total": ("counter", "Deliveries accepted, by sender: alertmanager, grafana."),
    "rankscope_receiver_duplicates_total": ("counter", "Deliveries that had been accepted before, by their webhook-id."),
    "rankscope_receiver_refused_total": ("counter", "Refused requests, by reason."),
    "rankscope_receiver_alerts_total": ("counter", "Alerts processed, by kind: change, update, reminder, repeated."),
    "rankscope_receiver_truncated_alerts_total": ("counter", "Alerts that were left out of deliveries."),
    "rankscope_receiver_enriched_total": ("counter", "Alerts that name a run, by outcome: verdict, no_verdict."),
    "rankscope_receiver_late_verdicts_total": ("counter", "Verdicts that came after their alerts were forwarded, by outcome."),
    "rankscope_receiver_forwarded_total": ("counter", "Messages put into the outbox."),
    "rankscope_receiver_actions_total": ("counter", "Actions, by kind and outcome."),
    "rankscope_receiver_waiting": ("gauge", "Accepted deliveries that are not processed yet."),
    "rankscope_receiver_oldest_waiting_seconds": ("gauge", "Age of the oldest of them; 0 when there is none."),
    "rankscope_receiver_undelivered_messages": ("gauge", "Messages that no target has accepted yet, in the outbox."),
    "rankscope_receiver_oldest_undelivered_seconds": (
        "gauge",
        "How long the oldest of them has waited; 0 when there is none.",
    ),
    "rankscope_receiver_config_last_reload_successful": ("gauge", "Whether the last SIGHUP could read the configuration."),
    "rankscope_receiver_info": (
        "gauge",
        "Always 1. A receiver that moves to another address with its state folder keeps its store.",
    ),
    "rankscope_receiver_writable": ("gauge", "Whether the last delivery could be stored."),
}
GAUGES: Final = tuple(
    name.removeprefix("rankscope_receiver_")
    for name, (kind, _) in _HELP.items()
    if kind == "gauge" and not name.endswith("_info")
)
"""Arguments of ``Counters.page``."""
REFUSALS: Final = (
    "too_large", "not_understood", "not_authenticated", "cross_site", "content_type", "slow", "cut_off", "busy", "not_stored",
    "evicted",
)  # fmt: skip
"""Reasons for refusing a delivery. They start at 0: Prometheus sees no increase in a counter whose first value is 1."""


class Counters:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Labels]] = Counter()
        for reason in REFUSALS:
            self.add("refused", 0, reason=reason)

    def add(self, name: str, by: int = 1, /, **labels: str) -> None:
        """Increase a counter; ``name`` omits ``rankscope_receiver_`` and ``_total``."""
        with self._lock:
            self._counts[f"rankscope_receiver_{name}_total", tuple(sorted(labels.items()))] += by

    def page(self, *, store_id: str, **gauges: float) -> bytes:
        """Render all metrics in Prometheus' text format. ``store_id`` identifies the receiver."""
        values: dict[tuple[str, Labels], float] = {(f"rankscope_receiver_{name}", ()): value for name, value in gauges.items()}
        values["rankscope_receiver_info", (("store", store_id),)] = 1
        with self._lock:
            values |= self._counts
        families = {name: Family(name, kind, help_text) for name, (kind, help_text) in _HELP.items()}
        for (name, labels), value in sorted(values.items()):
            families[name].add(labels, value)
        return exposition_text(families.values())
