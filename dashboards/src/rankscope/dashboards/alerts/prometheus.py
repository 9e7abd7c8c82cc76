"""Alerts of a Prometheus: the active ones, and the past ones from the ``ALERTS`` series."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from rankscope.alerts.prometheus import ActiveAlert, Prometheus, PrometheusError, Series, step_for
from rankscope.alerts.rules.rule_file import runbooks
from rankscope.dashboards.alerts.data import AlertRecord, State, alert_record

MOST_POINTS: Final = 2000
LEAST_STEP_S: Final = 15.0
_ROUNDING_NS: Final = 2_000_000
"""Prometheus rounds times to milliseconds."""


def prometheus_alerts(prometheus: Prometheus, span_unix_ns: tuple[int, int]) -> list[AlertRecord]:
    """Return alerts of rankscope's rules, and others about a run: those between two times, and the active ones.

    A past alert has only labels. An alert that fired until the end of the span and is not active now is ``lost``.
    Raises ``PrometheusError``.
    """
    names = "|".join(runbooks())
    step_s = step_for(span_unix_ns, most_points=MOST_POINTS, least_s=LEAST_STEP_S)
    fired = 'ALERTS{alertstate="firing",'
    expression = f'{fired}alertname=~"{names}"}} or {fired}run_id!=""}}'
    past = [
        alert
        for series in prometheus.query_range(expression, span_unix_ns=span_unix_ns, step_s=step_s)
        for alert in _past(series, step_s, span_unix_ns[1])
    ]
    active = [
        _active(alert, prometheus)
        for alert in prometheus.alerts()
        if alert.labels.get("alertname") in runbooks() or alert.labels.get("run_id")
    ]
    # A firing alert is in both lists: its annotations come from ``active``, its start from ``past``.
    since = {_key(alert): alert.started_unix_ns for alert in past if alert.ended_unix_ns is None}
    firing = {_key(alert) for alert in active if alert.state == "firing"}
    return [
        *(
            replace(alert, started_unix_ns=max(alert.started_unix_ns, since.get(_key(alert), 0)))
            if _key(alert) in firing
            else alert
            for alert in active
        ),
        *(alert for alert in past if alert.ended_unix_ns is not None or _key(alert) not in firing),
    ]


def _key(alert: AlertRecord) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(alert.labels.items()))


def _past(series: Series, step_s: float, now_unix_ns: int) -> list[AlertRecord]:
    labels = {name: value for name, value in series.labels.items() if name not in ("__name__", "alertstate")}
    return [
        alert_record(
            labels,
            {},
            state="lost" if ended is None else "resolved",
            started_unix_ns=began,
            ended_unix_ns=ended,
            source="prometheus",
        )
        for began, ended in _intervals(series, step_s, now_unix_ns)
    ]


def _intervals(series: Series, step_s: float, now_unix_ns: int) -> list[tuple[int, int | None]]:
    """Return begin and end of each run of consecutive samples, in unix ns; the end is ``None`` if the run reaches to now."""
    step_ns = int(step_s * 1e9)
    gaps = np.flatnonzero(np.diff(series.unix_ns) >= 2 * step_ns - _ROUNDING_NS) + 1
    ends = [(int(part[0]), int(part[-1]) + step_ns) for part in np.split(series.unix_ns, gaps) if len(part)]
    return [(began, ended if ended <= now_unix_ns else None) for began, ended in ends]


def _active(alert: ActiveAlert, prometheus: Prometheus) -> AlertRecord:
    state: State = "firing" if alert.state == "firing" else "pending"
    try:
        began = datetime.fromisoformat(alert.active_at)
    except ValueError as error:
        raise PrometheusError(prometheus.name, f"says of an alert that it is active since {alert.active_at!r}") from error
    return alert_record(
        alert.labels, alert.annotations, state=state, started_unix_ns=int(began.timestamp() * 1e9), source="prometheus"
    )
