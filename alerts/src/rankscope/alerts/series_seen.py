"""Whether a server has the series that a rule rests on, and for which part of a time.

A rule over series that are not there has no value, as one over series that are well; only of the second may be said that it would
not have fired.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from rankscope.alerts.alert import rfc3339
from rankscope.alerts.prometheus import Prometheus, PrometheusDownError, PrometheusError, Rule
from rankscope.analysis.wording import first_of

PARTS: Final = 200
"""Of the time that is looked at: so exactly is it known when something was there."""
_NAMED: Final = 20
_LEAST_S: Final = 60.0
_LOOKBACK_S: Final = 300.0
"""For so long an expression takes what was there before."""

# What is left of an expression without these are functions, words and names of series. Strings first: in them may stand anything.
_STRINGS: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`|\#.*""")
_NO_NAMES: Final = re.compile(
    r"\{[^{}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", re.IGNORECASE
)
_NAME: Final = re.compile(r"(?<![\w:.])[a-zA-Z_:][\w:]*\b(?!\s*\()")
_IDENTITY: Final = re.compile(r"_info(?::|$)")
_WORDS: Final = frozenset(
    {"and", "or", "unless", "atan2", "bool", "offset", "inf", "nan"}
    | {"by", "without", "on", "ignoring", "group_left", "group_right"}  # where no list follows
)


def series_in(expression: str) -> set[str]:
    """Names of the series that an expression selects; a selector without a name is left out."""
    rest = _NO_NAMES.sub(" ", _STRINGS.sub(" ", expression))
    return {name for name in _NAME.findall(rest) if name.lower() not in _WORDS}


def telling(names: Collection[str]) -> set[str]:
    """Those of ``names`` that say how something is; the others, ``gpu_info`` and what is recorded of it, only what it is."""
    return {name for name in names if not _IDENTITY.search(name)} or set(names)


def rests_on(names: Collection[str], recorded: Mapping[str, Collection[str]]) -> tuple[set[str], set[str]]:
    """All series behind ``names``: those that somebody publishes, and those ``recorded`` by these expressions."""
    seen: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        seen.add(name)
        left |= {behind for expression in recorded.get(name, ()) for behind in series_in(expression)} - seen
    return {name for name in seen if name not in recorded}, {name for name in seen if name in recorded}


class SeriesSeen:
    """What a server remembers of one time; each series is asked for once. All methods raise ``PrometheusError``."""

    def __init__(self, prometheus: Prometheus, span_unix_ns: tuple[int, int], recorded: Mapping[str, Collection[str]]) -> None:
        """``recorded``: name of a series that the server records to the expressions that it records it by."""
        self._prometheus = prometheus
        self._span = span_unix_ns
        self._recorded = recorded
        self._step_s = max(_LEAST_S, (span_unix_ns[1] - span_unix_ns[0]) / 1e9 / PARTS)
        self._unclear_ns = int(max(2 * self._step_s, _LOOKBACK_S) * 1e9)
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._gaps: dict[str, int | None] = {}
        self._covered: dict[tuple[int, int], list[str]] = defaultdict(list)
        self._begun: dict[int, list[str]] = defaultdict(list)
        self._missing: dict[str, None] = {}

    def obstacle(self, rule: Rule, *, silent: bool) -> str | None:
        """Why nothing can be said of a rule, which had no value in this time (``silent``); ``notes`` has what else is known."""
        names = series_in(rule.query)
        published, _ = rests_on(telling(names), self._recorded)
        _, recorded = rests_on(names, self._recorded)
        times = [time for name in sorted(published) if (time := self._between(name)) is not None]
        gaps = {name: until for name in sorted(recorded) if (until := self._unrecorded(name)) is not None}
        if silent and published and not times:  # what tells of series that are absent has a value
            return f"no such series is remembered of this time: it rests on {first_of(sorted(published), _NAMED)}"
        if silent and self._span[1] in gaps.values():
            name = next(name for name, until in gaps.items() if until == self._span[1])
            return f"it rests on {name}, which was not recorded in this time, though it would have had values"
        if times:
            covered = min(first for first, _ in times), max(last for _, last in times)
            if max(covered[0] - self._span[0], self._span[1] - covered[1]) > self._unclear_ns:
                self._covered[covered].append(rule.name)
        if gaps:
            self._begun[max(gaps.values())].append(rule.name)
        self._missing |= dict.fromkeys(name for name in sorted(published) if self._between(name) is None)
        return None

    def notes(self) -> list[str]:
        """What there were no data of, about rules without an obstacle."""
        missing = f"nothing is remembered of {first_of([*self._missing], _NAMED)}: what rests on that alone could not be told of"
        return [
            *(
                f"there are data for {first_of(rules, _NAMED)} from {rfc3339(first)} to {rfc3339(last)} only"
                for (first, last), rules in self._covered.items()
            ),
            *(
                f"what {first_of(rules, _NAMED)} rests on was recorded in part before {rfc3339(until)}: too little is told"
                for until, rules in self._begun.items()
            ),
            *([missing] if self._missing else []),
        ]

    def _between(self, name: str) -> tuple[int, int] | None:
        """From when to when, in unix ns, it was there; ``None``: never."""
        if name not in self._seen:
            self._seen[name] = self._there(self._present(name))
        return self._seen[name]

    def _unrecorded(self, name: str) -> int | None:
        """Until when, in unix ns, it was not recorded though its expressions had values; ``None``: as far as is known, never."""
        if name not in self._gaps:
            valued = [between for text in self._recorded[name] if (between := self._values(text)) is not None]
            there = self._there(self._present(name)) if valued else None
            begun = self._span[1] if there is None else there[0]
            late = bool(valued) and begun - min(first for first, _ in valued) > self._unclear_ns
            self._gaps[name] = begun if late else None
        return self._gaps[name]

    def _values(self, expression: str) -> tuple[int, int] | None:
        try:
            return self._there(f"group({expression})")
        except PrometheusDownError:
            raise
        except PrometheusError:  # a rule that could not be evaluated then recorded nothing either
            return None

    def _present(self, name: str) -> str:
        return f"group(present_over_time({name}[{int(self._step_s * 1e3)}ms]))"

    def _there(self, expression: str) -> tuple[int, int] | None:
        step = int(self._step_s * 1e9)
        first, last = self._span
        span = first + (last - first) % step, last
        answer = self._prometheus.query_range(expression, span_unix_ns=span, step_s=self._step_s)
        moments = [int(moment) for series in answer.series for moment in series.unix_ns]
        return (max(first, min(moments) - step), max(moments)) if moments else None
