"""From the values of an alert's expression to the times at which it is pending and fires, as Prometheus decides it.

Every evaluation at which the expression has a value keeps the alert active; active for ``for``, it fires. Without a value it
ends, if it fires only after ``keep_firing_for`` (https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankscope.alerts.prometheus import Rule, Series
from rankscope.alerts.replay_result import Spell
from rankscope.analysis.result import Evidence

_ROUNDING_NS: Final = 2_000_000
"""The server rounds times to milliseconds."""
_LABEL: Final = re.compile(r"\{\{-?\s*\$labels\.(\w+)\s*-?\}\}")


@dataclass(frozen=True, slots=True)
class _Active:
    """Evaluations one after the other; a firing alert may bridge gaps. Times in unix ns."""

    first: int
    last: int
    fired: int | None


def spells_of(series: Series, rule: Rule, *, step_s: float, end_unix_ns: int) -> list[Spell]:
    """When an alert about one series of the expression was active; it was evaluated every ``step_s`` until ``end_unix_ns``."""
    step, wait, keep = (int(seconds * 1e9) for seconds in (step_s, rule.duration, rule.keep_firing_for))
    found: list[_Active] = []
    for moment in series.unix_ns.tolist():
        now = found[-1] if found else None
        if now is None or moment - now.last >= 2 * step + (keep if now.fired is not None else 0) - _ROUNDING_NS:
            now = _Active(moment, moment, None)
            found.append(now)
        fired = now.fired if now.fired is not None or moment - now.first < wait else moment
        found[-1] = _Active(now.first, moment, fired)
    bridged = step * -(-keep // step)
    return [_spell(one, series, rule, end_unix_ns, gone_ns=step + (bridged if one.fired is not None else 0)) for one in found]


def _spell(active: _Active, series: Series, rule: Rule, end_unix_ns: int, *, gone_ns: int) -> Spell:
    ended = active.last + gone_ns
    during = (series.unix_ns >= active.first) & (series.unix_ns <= active.last)
    at = series.unix_ns == (active.first if active.fired is None else active.fired)
    numbers = (("value", float(series.values[at][0])), ("highest_value", float(np.max(series.values[during]))))
    return Spell(
        labels=labels_of(rule, series.labels),
        pending_unix_ns=active.first,
        fired_unix_ns=active.fired,
        ended_unix_ns=ended if ended <= end_unix_ns else None,
        annotations={name: text for name, text in rule.annotations.items() if "{{" not in text},
        values=[Evidence(name=name, value=value, unit="") for name, value in numbers if np.isfinite(value)],
    )


def labels_of(rule: Rule, found: dict[str, str]) -> dict[str, str]:
    """Labels of the alert about a series. Of templates only those that take the value of a label are filled in."""
    own = {name: _LABEL.sub(lambda label: found.get(label[1], ""), text) for name, text in rule.labels.items()}
    labels = {name: value for name, value in found.items() if name != "__name__"}
    labels |= {name: value for name, value in own.items() if "{{" not in value}
    return {name: value for name, value in {**labels, "alertname": rule.name}.items() if value}
