"""What the receiver says of itself: counts since it started, as Prometheus reads them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

_HELP: Final = {
    "rankscope_receiver_deliveries_total": ("counter", "Deliveries accepted, by sender: alertmanager, grafana."),
    "rankscope_receiver_duplicates_total": ("counter", "Deliveries that had been accepted before, by their webhook-id."),
    "rankscope_receiver_refused_total": ("counter", "Requests refused, by reason."),
    "rankscope_receiver_alerts_total": ("counter", "Alerts looked at, by what they were: change, update, reminder, repeated."),
    "rankscope_receiver_truncated_alerts_total": ("counter", "Alerts that were left out of deliveries."),
    "rankscope_receiver_enriched_total": ("counter", "Alerts that name a run, by outcome: verdict, no_verdict."),
    "rankscope_receiver_late_verdicts_total": ("counter", "Verdicts that were looked for after their alerts, by outcome."),
    "rankscope_receiver_forwarded_total": ("counter", "Messages put into the outbox."),
    "rankscope_receiver_actions_total": ("counter", "Actions, by kind and outcome."),
    "rankscope_receiver_waiting": ("gauge", "Accepted deliveries that have not been dealt with."),
    "rankscope_receiver_oldest_waiting_seconds": ("gauge", "Age of the oldest of them; 0 when there is none."),
    "rankscope_receiver_writable": ("gauge", "Whether the inbox could be written at the last look."),
}
_Key = tuple[str, tuple[tuple[str, str], ...]]


class Counters:
    """Counts, from any thread. Names and labels are ours, so there are few, and nothing in them needs escaping."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[_Key] = Counter()

    def add(self, name: str, by: int = 1, /, **labels: str) -> None:
        """Count; ``name`` is without ``rankscope_receiver_`` and ``_total``."""
        with self._lock:
            self._counts[f"rankscope_receiver_{name}_total", tuple(sorted(labels.items()))] += by

    def page(self, **gauges: float) -> bytes:
        """Everything in Prometheus' text format."""
        values: dict[_Key, float] = {(f"rankscope_receiver_{name}", ()): value for name, value in gauges.items()}
        with self._lock:
            values |= self._counts
        lines = []
        for name, (kind, text) in _HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for (_, labels), value in sorted(item for item in values.items() if item[0][0] == name):
                pairs = ",".join(f'{label}="{said}"' for label, said in labels)
                lines.append(f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}")
        return ("\n".join(lines) + "\n").encode()
