"""The alerts of the watcher, those that need the analysis of a run; all others are Prometheus rules (``rules``).

No name is both: two programs would send the same fingerprint, and one could resolve an alert that the other still fires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rankscope.analysis.result.analysis import Kind


@dataclass(frozen=True, slots=True)
class WatcherAlert:
    """Name and severity of an alert of the watcher."""

    alertname: str
    severity: Literal["critical", "warning"]


STRAGGLER: Final = WatcherAlert("TrainingStraggler", "warning")
COMMUNICATION_BOUND: Final = WatcherAlert("TrainingCommunicationBound", "warning")
INPUT_BOUND: Final = WatcherAlert("TrainingInputBound", "warning")
HOST_BOUND: Final = WatcherAlert("TrainingHostBound", "warning")
REGRESSION: Final = WatcherAlert("TrainingStepRegression", "warning")
THROUGHPUT: Final = WatcherAlert("TrainingThroughputLoss", "warning")
HANG: Final = WatcherAlert("TrainingHang", "critical")
RANK_LOST: Final = WatcherAlert("TrainingRankLost", "critical")
CRASHED: Final = WatcherAlert("TrainingCrashed", "critical")

_ALL: Final = (STRAGGLER, COMMUNICATION_BOUND, INPUT_BOUND, HOST_BOUND, REGRESSION, THROUGHPUT, HANG, RANK_LOST, CRASHED)
WATCHER_ALERTS: Final = {alert.alertname: alert for alert in _ALL}

ALERT_OF_KIND: Final[dict[Kind, WatcherAlert]] = {
    "straggler": STRAGGLER,
    "communication_bound": COMMUNICATION_BOUND,
    "input_bound": INPUT_BOUND,
    "host_bound": HOST_BOUND,
    "hang": HANG,
}
"""Kind of a finding to its alert. Findings of other kinds only describe the job and raise no alert."""

LIVENESS_ALERTS: Final = (HANG.alertname, RANK_LOST.alertname)
"""Alerts decided, while a run is active, by whether the files of its ranks grow."""

HISTORY_ALERTS: Final = (REGRESSION.alertname, THROUGHPUT.alertname)
"""Alerts decided by the history of the run's steps."""

RECORD_ALERTS: Final = tuple(name for name in WATCHER_ALERTS if name not in LIVENESS_ALERTS)
"""Alerts decided by the records of a run."""
