"""Would it have fired? The alerting rules of a Prometheus over what it remembers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from rankscope.alerts.prometheus import MAX_POINTS, Prometheus, PrometheusError, Rule, RuleGroup, Series
from rankscope.alerts.replay_result import Replay, Replayed
from rankscope.alerts.rules import runbooks
from rankscope.alerts.series_seen import SeriesSeen
from rankscope.alerts.spells import spells_of
from rankscope.analysis.wording import first_of

MOST_QUESTIONS: Final = 16
"""About one rule; of a longer time it is evaluated less often."""
DEFAULT_INTERVAL_S: Final = 60.0
"""Between two evaluations, where nothing else is said."""
_NAMED: Final = 20


def replay_server(
    prometheus: Prometheus,
    rules: Sequence[str],
    span_unix_ns: tuple[int, int],
    *,
    progress: Callable[[str], None] = lambda _rule: None,
) -> Replay:
    """``rules`` of the server, by name (rankscope's own that it evaluates when there are none), between two moments.

    ``progress`` gets the name of the rule that comes next. Raises ``PrometheusError``.
    """
    groups = prometheus.rules()
    return replay_asked(
        prometheus, _asked(prometheus, groups, rules), span_unix_ns, recorded=recorded_by(groups), progress=progress
    )


def recorded_by(groups: Sequence[RuleGroup]) -> Mapping[str, Collection[str]]:
    """Name of a series that the server records to the expressions that it records it by."""
    found: dict[str, list[str]] = defaultdict(list)
    for rule in (rule for group in groups for rule in group.rules if rule.type == "recording"):
        found[rule.name].append(rule.query)
    return found


def replay_asked(
    prometheus: Prometheus,
    asked: Sequence[tuple[Rule, float]],
    span_unix_ns: tuple[int, int],
    *,
    recorded: Mapping[str, Collection[str]],
    progress: Callable[[str], None],
) -> Replay:
    """These rules, each evaluated every so many seconds as far as the server can. Raises ``PrometheusError``.

    ``recorded``: what the server records, as of ``recorded_by``. A rule of whose series none was there is not evaluated.
    """
    seen = SeriesSeen(prometheus, span_unix_ns, recorded)
    replayed: list[Replayed] = []
    notes: list[str] = []
    first, last = span_unix_ns
    coarsest = 0.0 if asked else DEFAULT_INTERVAL_S
    for rule, interval_s in asked:
        progress(rule.name)
        least_s = (last - first) / 1e9 / (MAX_POINTS * MOST_QUESTIONS)
        step_s = interval_s * max(1, int(np.ceil(least_s / interval_s)))
        if step_s > interval_s:
            notes.append(f"{rule.name}: evaluated every {step_s:g} s instead of every {interval_s:g} s: ask for less time")
        result, warnings = replay_rule(prometheus, rule, span_unix_ns, step_s)
        notes += warnings
        obstacle = seen.obstacle(rule, silent=not result.spells)
        result = msgspec.structs.replace(result, not_evaluated=obstacle)
        replayed.append(result)
        coarsest = max(coarsest, step_s)
    notes += seen.notes()
    return Replay(
        path=prometheus.name,
        start_unix_ns=first,
        end_unix_ns=last,
        interval_s=coarsest,
        evaluations=int((last - first) / 1e9 // coarsest) + 1,
        rules=replayed,
        notes=list(dict.fromkeys(notes)),
    )


def replay_rule(prometheus: Prometheus, rule: Rule, span_unix_ns: tuple[int, int], step_s: float) -> tuple[Replayed, list[str]]:
    """One rule, evaluated every ``step_s``, and the server's warnings. Raises ``PrometheusError``."""
    series, warnings = values_of(prometheus, rule.query, span_unix_ns, step_s)
    spells = [spell for each in series for spell in spells_of(each, rule, step_s=step_s, end_unix_ns=span_unix_ns[1])]
    result = Replayed(
        rule=rule.name,
        source="prometheus",
        policy=_policy(rule, step_s),
        expression=rule.query,
        spells=sorted(spells, key=lambda spell: spell.pending_unix_ns),
    )
    return result, warnings


def _asked(prometheus: Prometheus, groups: Sequence[RuleGroup], names: Sequence[str]) -> list[tuple[Rule, float]]:
    """The rules to replay, and the seconds between two evaluations of each; one name may be that of several."""
    there = [(rule, group.interval or DEFAULT_INTERVAL_S) for group in groups for rule in group.rules if rule.type == "alerting"]
    known = list(dict.fromkeys(rule.name for rule, _ in there))
    missing = [name for name in names if name not in known]
    wanted = set(names or runbooks())
    asked = [(rule, interval_s) for rule, interval_s in there if rule.name in wanted]
    if missing or not asked:
        raise PrometheusError(
            prometheus.name,
            f"evaluates no alert {', '.join(missing) or 'of rankscope'}; it has {first_of(known, _NAMED) or 'none'}. "
            "`rankscope alerts rules export` writes rankscope's, --rule NAME picks others",
        )
    return asked


def values_of(
    prometheus: Prometheus, expression: str, span_unix_ns: tuple[int, int], step_s: float, *, at_once: int = MAX_POINTS
) -> tuple[list[Series], list[str]]:
    """All values of an expression, asked for ``at_once`` points of each series at a time, and the server's warnings.

    Raises ``PrometheusError``.
    """
    first, last = span_unix_ns
    step = int(step_s * 1e9)
    parts: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    warnings: list[str] = []
    while first <= last:
        until = min(last, first + (min(at_once, MAX_POINTS) - 1) * step)
        answer = prometheus.query_range(expression, span_unix_ns=(first, until), step_s=step_s)
        warnings += answer.warnings
        for one in answer.series:
            parts.setdefault(tuple(sorted(one.labels.items())), []).append(one)
        first = until + step
    joined = [
        Series(dict(labels), np.concatenate([part.unix_ns for part in some]), np.concatenate([part.values for part in some]))
        for labels, some in parts.items()
    ]
    return joined, warnings


def _policy(rule: Rule, step_s: float) -> str:
    keeps = f" and {rule.keep_firing_for:g} s more" if rule.keep_firing_for else ""
    return (
        f"fires after {rule.duration:g} s with a value of the expression; ends without one{keeps}; evaluated every {step_s:g} s"
    )
