"""The alerts of the watcher, one row each. Where a Prometheus rule knows the same, name, severity and runbook are the rule's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rankscope.analysis.result import Kind


@dataclass(frozen=True, slots=True)
class FindingRule:
    """An alert by name."""

    alertname: str
    severity: Literal["critical", "warning", "info"]


STRAGGLER: Final = FindingRule("TrainingStraggler", "warning")
STALLED: Final = FindingRule("TrainingStalled", "critical")
SILENT: Final = FindingRule("RankSilent", "critical")
CRASHED: Final = FindingRule("TrainingCrashed", "critical")
DISABLED: Final = FindingRule("RecorderDisabled", "warning")
REGRESSION: Final = FindingRule("TrainingStepRegression", "warning")
THROUGHPUT: Final = FindingRule("TrainingThroughputLoss", "warning")

ALERTED: Final[dict[Kind, FindingRule]] = {
    "straggler": STRAGGLER,
    "communication_bound": FindingRule("TrainingCommunicationBound", "warning"),
    "input_bound": FindingRule("TrainingInputBound", "warning"),
    "host_bound": FindingRule("TrainingHostBound", "warning"),
    "hang": STALLED,
}
"""What a kind of finding becomes. One of any other kind describes the job as a whole and wakes nobody."""

OF_LIFE: Final = (STALLED.alertname, SILENT.alertname, DISABLED.alertname)
"""Told by files that grow or do not, while a run goes on."""

OF_PAST: Final = (REGRESSION, THROUGHPUT)
"""Told by how a run went so far."""

EVERY: Final = tuple(dict.fromkeys((*ALERTED.values(), SILENT, CRASHED, DISABLED, *OF_PAST)))
"""All of them."""

WATCHER_ALERTS: Final = tuple(rule.alertname for rule in EVERY)

OF_RECORDS: Final = tuple(name for name in WATCHER_ALERTS if name not in OF_LIFE)
"""Told by what the records say."""
