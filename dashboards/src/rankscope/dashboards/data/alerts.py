"""Active and past alerts about runs, from the files of their watchers and from a Prometheus.

Every alert name has one owner (``rankscope.alerts.owners``), so the watcher and Prometheus never report the same alert.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.alert_record import AlertRecord, AlertsFound, State
from rankscope.dashboards.data.source import RunSummary
from rankscope.dashboards.data.watched_alerts import alert_of, findings_of, followed
from rankscope.runs.links import overview_url

if TYPE_CHECKING:
    from rankscope.alerts.prometheus import Prometheus  # needs a package that is installed only for queries to a Prometheus

_OVER: Final = ("finished", "failed")
_ORDER: Final[tuple[State, ...]] = ("firing", "pending", "lost", "resolved")


class Findings(Protocol):
    """Reader of the alerts that a watcher wrote into a run directory."""

    def __call__(self, run: Path, *, over: bool) -> list[AlertRecord]:
        """Return alerts by start time; ``over``: the run has ended. Raises ``InputError``."""


def alerts_of(
    runs: Sequence[RunSummary],
    *,
    root: Path | None,
    prometheus: Prometheus | None,
    span_unix_ns: tuple[int, int],
    findings: Findings = findings_of,
    prometheus_from_unix_ns: int = 0,
) -> AlertsFound:
    """Return alerts about ``runs`` between two times; a Prometheus also contributes alerts about hardware.

    ``root``: the folder of the runs, which a watcher may follow as a whole. Past alerts of a Prometheus are queried from
    ``prometheus_from_unix_ns`` on. Never raises: an unreadable source is listed in ``problems``.
    """
    problems: dict[str, None] = {}

    def read(source: Callable[[], Iterable[AlertRecord]]) -> list[AlertRecord]:
        try:
            return list(source())
        except RankscopeError as error:
            problems[str(error)] = None
            return []

    alerts: list[AlertRecord] = []
    for run in runs:
        alerts += read(partial(findings, Path(run.path), over=run.status in _OVER))
    # A firing alert is in the run's findings and in the state of every watcher that follows the run.
    active = {alert.identity for alert in alerts if alert.ended_unix_ns is None}
    folders = {str(Path(run.path).resolve()) for run in runs if run.status not in _OVER}
    for watched in dict.fromkeys([*([root] if root is not None else []), *map(Path, sorted(folders))]):
        new = [one for one in read(partial(_followed, watched, folders, span_unix_ns[1])) if one.identity not in active]
        active |= {alert.identity for alert in new}
        alerts += new
    if prometheus is not None:
        alerts += read(partial(_of_prometheus, prometheus, (max(span_unix_ns[0], prometheus_from_unix_ns), span_unix_ns[1])))
    known = {run.run_id for run in runs}
    first, last = span_unix_ns
    shown = [_linked(alert, known) for alert in alerts if _end(alert) >= first and alert.started_unix_ns <= last]
    return AlertsFound(sorted(shown, key=lambda alert: (_ORDER.index(alert.state), -alert.started_unix_ns)), list(problems))


def _end(alert: AlertRecord) -> float:
    return float("inf") if alert.ended_unix_ns is None else alert.ended_unix_ns


def _linked(alert: AlertRecord, known: set[str]) -> AlertRecord:
    if alert.run_id is None or alert.run_id not in known:
        return alert
    return replace(alert, evidence=overview_url("", alert.run_id, rank=alert.rank))


def _followed(watched: Path, folders: set[str], now_unix_ns: int) -> list[AlertRecord]:
    entries = [entry for entry in followed(watched) if entry.run in folders and entry.track.state != "resolved"]
    return [alert_of(entry, seen_unix_ns=now_unix_ns) for entry in entries]


def _of_prometheus(prometheus: Prometheus, span_unix_ns: tuple[int, int]) -> list[AlertRecord]:
    from rankscope.dashboards.data.prometheus_alerts import prometheus_alerts

    return prometheus_alerts(prometheus, span_unix_ns)


def about_run(found: AlertsFound, run_id: str, *, gpus: Container[str], hosts: Container[str]) -> AlertsFound:
    """Return the alerts about a run, or about its GPUs (uuids) and hosts."""

    def concerns(alert: AlertRecord) -> bool:
        if alert.run_id is not None:
            return alert.run_id == run_id
        labels = alert.labels
        host = labels.get("host") or labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")
        return labels.get("uuid", "") in gpus or ("uuid" not in labels and host in hosts)

    return AlertsFound([alert for alert in found.alerts if concerns(alert)], found.problems)
