"""Alerts about the runs of a folder, looked up once for many callers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankscope.dashboards.data.alert_record import AlertRecord, AlertsFound
from rankscope.dashboards.data.alerts import alerts_of
from rankscope.dashboards.data.memo import Memo
from rankscope.dashboards.data.run_folder import RunFolder
from rankscope.dashboards.data.watched_alerts import findings_of, revision_of

if TYPE_CHECKING:
    from rankscope.alerts.prometheus import Prometheus  # needs a package that is installed only for queries to a Prometheus

ALERTS_AFTER_S: Final = 3600.0
"""Time after the last record of a run during which alerts still belong to it; its watcher ends them after an hour."""
ALERTS_FOR_S: Final = 10.0
"""Lifetime of a cached answer."""
PROMETHEUS_ASKED_S: Final = 7 * 86_400.0
"""Time range of past alerts on the page of all runs; over a longer range, Prometheus's resolution misses short alerts."""

_KEPT_RUNS: Final = 64
_KEPT_FILES: Final = 1 << 15


class FolderAlerts:
    """Alerts of watchers, and of a ``prometheus``, about the runs of ``folder``; at most ``ALERTS_FOR_S`` old."""

    def __init__(self, folder: RunFolder, prometheus: Prometheus | None, *, clock_s: Callable[[], float]) -> None:
        self._folder = folder
        self._prometheus = prometheus
        self._clock_s = clock_s
        self._alerts: Memo[AlertsFound] = Memo(_KEPT_RUNS)
        self._findings: Memo[list[AlertRecord]] = Memo(_KEPT_FILES)

    def of_run(self, run_id: str) -> AlertsFound:
        """Return alerts from the start of the run until ``ALERTS_AFTER_S`` after its last record."""
        run, now_s = self._folder.summary(run_id), self._clock_s()
        last_ns = int(min(now_s, (run.last_write_unix_ns or 0) / 1e9 + ALERTS_AFTER_S) * 1e9)
        span = (min(run.start_unix_ns or last_ns, last_ns), last_ns)
        return self._alerts.get(
            run_id,
            f"{run.status} {now_s // ALERTS_FOR_S}",
            lambda: alerts_of([run], root=self._folder.path, prometheus=self._prometheus, span_unix_ns=span),
        )

    def of_all(self) -> AlertsFound:
        """Return alerts of all runs; the query to a Prometheus covers the last ``PROMETHEUS_ASKED_S``."""
        now_s = self._clock_s()
        now_ns = int(now_s * 1e9)
        return self._alerts.get(
            "",
            f"{now_s // ALERTS_FOR_S}",
            lambda: alerts_of(
                [run for run in self._folder.runs() if run.problem is None],
                root=self._folder.path,
                prometheus=self._prometheus,
                span_unix_ns=(0, now_ns),
                findings=self._findings_of,
                prometheus_from_unix_ns=now_ns - int(PROMETHEUS_ASKED_S * 1e9),
            ),
        )

    def _findings_of(self, run: Path, *, over: bool) -> list[AlertRecord]:
        """Return the findings of a run; the file is read again only when it has changed."""
        return self._findings.get(str(run), f"{over} {revision_of(run)}", lambda: findings_of(run, over=over))
