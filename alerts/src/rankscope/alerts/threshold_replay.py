"""Would our rules have fired with other thresholds, over what a Prometheus remembers?

The alerts are those of our rule file with the thresholds put in; the series they rest on are those that the server recorded.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.own_prometheus import OwnPrometheus, Programs, find_programs
from rankscope.alerts.prometheus import Prometheus, Rule
from rankscope.alerts.prometheus_replay import DEFAULT_INTERVAL_S, recorded_by, replay_asked
from rankscope.alerts.replay_result import Replay, Replayed
from rankscope.alerts.rules import rules_text, runbooks
from rankscope.alerts.thresholds import Tables

LEFT_OUT: Final = "the thresholds leave it out"
_RECORDED: Final = re.compile(r"\b[a-z_]\w*(?::\w+)+")
_NOTE: Final = "GPU states and what else the server records it has recorded with thresholds of its own"


def shipped_rules(programs: Programs, folder: Path, settings: Tables | None) -> dict[str, Rule]:
    """The shipped rules by name, with these thresholds, as a Prometheus in ``folder`` reads them; it leaves no data.

    Raises ``RankscopeError`` where it does not start.
    """
    reading = folder / "rules"
    reading.mkdir()
    with OwnPrometheus(programs, reading, lookback_s=DEFAULT_INTERVAL_S).running(
        rules=rules_text(settings=settings)
    ) as prometheus:
        return {rule.name: rule for group in prometheus.rules() for rule in group.rules}


def replay_thresholds(
    prometheus: Prometheus,
    names: Sequence[str],
    span_unix_ns: tuple[int, int],
    *,
    settings: Tables,
    progress: Callable[[str], None] = lambda _rule: None,
) -> Replay:
    """The shipped alerts of these ``names`` (all when there are none) with the thresholds ``settings``, between two moments.

    Raises ``PrometheusError``, ``MissingError`` without a Prometheus here that reads the rules, and ``RankscopeError``.
    """
    groups = prometheus.rules()
    there = [(rule, group.interval) for group in groups for rule in group.rules]
    intervals = {rule.name: interval_s for rule, interval_s in there if rule.type == "alerting" and interval_s}
    recorded = {rule.name for rule, _ in there if rule.type == "recording"}
    with tempfile.TemporaryDirectory(prefix="rankscope-replay-") as folder:
        ours = shipped_rules(find_programs(), Path(folder), settings)
    wanted = names or [name for name in runbooks() if name in ours]
    obstacles = {name: _obstacle(ours, name, recorded) for name in wanted}
    asked = [(ours[name], intervals.get(name, DEFAULT_INTERVAL_S)) for name in wanted if obstacles[name] is None]
    result = replay_asked(prometheus, asked, span_unix_ns, recorded=recorded_by(groups), progress=progress)
    impossible = [
        Replayed(rule=name, source="prometheus", policy="", not_evaluated=obstacle)
        for name, obstacle in obstacles.items()
        if obstacle is not None
    ]
    return msgspec.structs.replace(result, rules=[*result.rules, *impossible], notes=[_NOTE, *result.notes])


def _obstacle(ours: Mapping[str, Rule], name: str, recorded: set[str]) -> str | None:
    """Why an alert cannot be evaluated; without a series that it rests on it would seem never to have fired."""
    if name not in ours:
        return LEFT_OUT
    missing = sorted(series for series in set(_RECORDED.findall(ours[name].query)) if series in ours and series not in recorded)
    if not missing:
        return None
    return f"it rests on {missing[0]}, which the server does not record: have it evaluate rankscope's rules"
