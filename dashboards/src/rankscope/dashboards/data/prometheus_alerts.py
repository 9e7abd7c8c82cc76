"""Alerts of a Prometheus: those that are active now, and from ``ALERTS`` those that were."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from rankscope.alerts.prometheus import ActiveAlert, Prometheus, PrometheusError, Rule, Series, step_for
from rankscope.alerts.rules import runbooks
from rankscope.alerts.spells import spells_of
from rankscope.dashboards.data.alert_record import AlertRecord, State, alert_record

MOST_POINTS: Final = 2000
LEAST_STEP_S: Final = 15.0
_AS_IT_IS: Final = Rule(type="alerting", name="", query="")
"""``ALERTS`` has a value as long as the alert is what its label says."""


def prometheus_alerts(prometheus: Prometheus, span_unix_ns: tuple[int, int]) -> list[AlertRecord]:
    """Alerts of rankscope's rules, and others about a run, between two moments, and those that are active now.

    Of one that is past only its labels are known; one that fired until the end of the time and is not active now is lost.
    Raises ``PrometheusError``.
    """
    names = "|".join(runbooks())
    step_s = step_for(span_unix_ns, most_points=MOST_POINTS, least_s=LEAST_STEP_S)
    fired = 'ALERTS{alertstate="firing",'
    expression = f'{fired}alertname=~"{names}"}} or {fired}run_id!=""}}'
    past = [
        alert
        for series in prometheus.query_range(expression, span_unix_ns=span_unix_ns, step_s=step_s).series
        for alert in _past(series, step_s, span_unix_ns[1])
    ]
    active = [
        _active(alert, prometheus)
        for alert in prometheus.alerts()
        if alert.labels.get("alertname") in runbooks() or alert.labels.get("run_id")
    ]
    # What fires now is in both: what it says comes from the one, since when it fires from the other.
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
            state="resolved" if spell.ended_unix_ns is not None else "lost",
            started_unix_ns=spell.pending_unix_ns,
            ended_unix_ns=spell.ended_unix_ns,
            teller="prometheus",
        )
        for spell in spells_of(series, _AS_IT_IS, step_s=step_s, end_unix_ns=now_unix_ns)
    ]


def _active(alert: ActiveAlert, prometheus: Prometheus) -> AlertRecord:
    state: State = "firing" if alert.state == "firing" else "pending"
    try:
        began = datetime.fromisoformat(alert.active_at)
    except ValueError as error:
        raise PrometheusError(prometheus.name, f"says of an alert that it is active since {alert.active_at!r}") from error
    return alert_record(
        alert.labels, alert.annotations, state=state, started_unix_ns=int(began.timestamp() * 1e9), teller="prometheus"
    )
