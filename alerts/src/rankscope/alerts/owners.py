"""Every alert with its severity and its owner: the one program that may emit it.

The watcher owns alerts that need the analysis of a run; the Prometheus rules own alerts that need only time series. Two owners of
one name would send the same fingerprint, so that one could resolve an alert that the other still fires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rankscope.analysis.result.analysis import Kind

Owner = Literal["watcher", "prometheus"]
Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class OwnedAlert:
    """Name, severity and owner of an alert. Operators may change the severity of a Prometheus rule."""

    alertname: str
    severity: Severity
    owner: Owner


STRAGGLER: Final = OwnedAlert("TrainingStraggler", "warning", "watcher")
COMMUNICATION_BOUND: Final = OwnedAlert("TrainingCommunicationBound", "warning", "watcher")
INPUT_BOUND: Final = OwnedAlert("TrainingInputBound", "warning", "watcher")
HOST_BOUND: Final = OwnedAlert("TrainingHostBound", "warning", "watcher")
REGRESSION: Final = OwnedAlert("TrainingStepRegression", "warning", "watcher")
THROUGHPUT: Final = OwnedAlert("TrainingThroughputLoss", "warning", "watcher")
HANG: Final = OwnedAlert("TrainingHang", "critical", "watcher")
RANK_LOST: Final = OwnedAlert("TrainingRankLost", "critical", "watcher")
CRASHED: Final = OwnedAlert("TrainingCrashed", "critical", "watcher")

ALERTS: Final = (
    STRAGGLER,
    COMMUNICATION_BOUND,
    INPUT_BOUND,
    HOST_BOUND,
    REGRESSION,
    THROUGHPUT,
    HANG,
    RANK_LOST,
    CRASHED,
    OwnedAlert("TrainingStalled", "critical", "prometheus"),
    OwnedAlert("TrainingHangSuspected", "critical", "prometheus"),
    OwnedAlert("RankSilent", "critical", "prometheus"),
    OwnedAlert("RecorderDisabled", "warning", "prometheus"),
    OwnedAlert("RecorderDropping", "warning", "prometheus"),
    OwnedAlert("GpuDown", "critical", "prometheus"),
    OwnedAlert("GpuMissing", "critical", "prometheus"),
    OwnedAlert("GpuRecoveryAction", "critical", "prometheus"),
    OwnedAlert("GpuEccUncorrected", "critical", "prometheus"),
    OwnedAlert("GpuRowRemapFailure", "critical", "prometheus"),
    OwnedAlert("GpuRowRemapPending", "warning", "prometheus"),
    OwnedAlert("GpuRetiredPagesPending", "warning", "prometheus"),
    OwnedAlert("GpuRetiredPagesMany", "warning", "prometheus"),
    OwnedAlert("GpuThermalSlowdown", "warning", "prometheus"),
    OwnedAlert("GpuPowerBrake", "warning", "prometheus"),
    OwnedAlert("GpuThrottleFlapping", "warning", "prometheus"),
    OwnedAlert("GpuTooHot", "warning", "prometheus"),
    OwnedAlert("GpuHangSuspected", "warning", "prometheus"),
    OwnedAlert("GpuAllocatedIdle", "info", "prometheus"),
    OwnedAlert("GpuAllocatedIdleLong", "warning", "prometheus"),
    OwnedAlert("GpuXidCritical", "critical", "prometheus"),
    OwnedAlert("GpuXidWarning", "warning", "prometheus"),
    OwnedAlert("GpuXidRepeated", "warning", "prometheus"),
    OwnedAlert("GpuXidOneUnit", "warning", "prometheus"),
    OwnedAlert("GpuXidManyUnits", "info", "prometheus"),
    OwnedAlert("NvswitchFatalError", "critical", "prometheus"),
    OwnedAlert("NvlinkInactive", "warning", "prometheus"),
    OwnedAlert("NvlinkCrcErrors", "warning", "prometheus"),
    OwnedAlert("NvlinkRecoveries", "warning", "prometheus"),
    OwnedAlert("GpuFabricUnhealthy", "critical", "prometheus"),
    OwnedAlert("PcieReplays", "warning", "prometheus"),
    OwnedAlert("PcieDegraded", "warning", "prometheus"),
    OwnedAlert("InfinibandLinkDowned", "critical", "prometheus"),
    OwnedAlert("InfinibandSymbolErrors", "warning", "prometheus"),
    OwnedAlert("InfinibandReceiveErrors", "warning", "prometheus"),
    OwnedAlert("InfinibandDiscards", "warning", "prometheus"),
    OwnedAlert("ExporterCollectorFailing", "warning", "prometheus"),
    OwnedAlert("ExporterStale", "warning", "prometheus"),
    OwnedAlert("ExporterSlow", "warning", "prometheus"),
    OwnedAlert("ExporterAbsent", "warning", "prometheus"),
    OwnedAlert("ExporterPartial", "info", "prometheus"),
    OwnedAlert("DriverSilent", "critical", "prometheus"),
    OwnedAlert("WatcherSilent", "critical", "prometheus"),
    OwnedAlert("ReceiverDown", "critical", "prometheus"),
    OwnedAlert("ReceiverRefusing", "critical", "prometheus"),
    OwnedAlert("ReceiverBacklog", "critical", "prometheus"),
    OwnedAlert("ReceiverUndelivered", "critical", "prometheus"),
    OwnedAlert("NodeDown", "critical", "prometheus"),
    OwnedAlert("NodeMaintenance", "info", "prometheus"),
)
"""All alerts; each name occurs once."""

WATCHER_ALERTS: Final = tuple(alert.alertname for alert in ALERTS if alert.owner == "watcher")

ALERT_OF_KIND: Final[dict[Kind, OwnedAlert]] = {
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
