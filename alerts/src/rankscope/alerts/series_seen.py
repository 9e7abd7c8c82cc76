"""Whether a server has the series that a rule rests on, and for which part of a time.

A rule over series that are not there has no value, as one over series that are well; only of the second may be said that it would
not have fired.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from rankscope.alerts.prometheus import Prometheus

PARTS: Final = 200
"""Of the time that is looked at: so exactly is it known when something was there."""
_LEAST_S: Final = 60.0

# What is left of an expression without these are functions, words and names of series. Strings first: in them may stand anything.
_STRINGS: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`|\#.*""")
_NO_NAMES: Final = re.compile(
    r"\{[^{}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", re.IGNORECASE
)
_NAME: Final = re.compile(r"(?<![\w:.])[a-zA-Z_:][\w:]*\b(?!\s*\()")
_WORDS: Final = frozenset(
    {"and", "or", "unless", "atan2", "bool", "offset", "inf", "nan"}
    | {"by", "without", "on", "ignoring", "group_left", "group_right"}  # where no list follows
)


def series_in(expression: str) -> set[str]:
    """Names of the series that an expression selects; a selector without a name is left out."""
    rest = _NO_NAMES.sub(" ", _STRINGS.sub(" ", expression))
    return {name for name in _NAME.findall(rest) if name.lower() not in _WORDS}


def rests_on(expression: str, recorded: Mapping[str, Collection[str]]) -> set[str]:
    """Names of the series that somebody publishes, for those that are ``recorded`` (by which expressions) those behind them."""
    published: set[str] = set()
    seen: set[str] = set()
    left = [expression]
    while left:
        for name in series_in(left.pop()) - seen:
            seen.add(name)
            if name in recorded:
                left += recorded[name]
            else:
                published.add(name)
    return published


class SeriesSeen:
    """Asks each name once."""

    def __init__(self, prometheus: Prometheus, span_unix_ns: tuple[int, int]) -> None:
        self._prometheus = prometheus
        self._span = span_unix_ns
        first, last = span_unix_ns
        self._step_s = max(_LEAST_S, (last - first) / 1e9 / PARTS)
        self._known: dict[str, tuple[int, int] | None] = {}

    def between(self, names: Collection[str]) -> tuple[int, int] | None:
        """From when to when, in unix ns, any of ``names`` was there; ``None``: never. Raises ``PrometheusError``."""
        seen = [between for name in sorted(names) if (between := self._between(name)) is not None]
        return (min(first for first, _ in seen), max(last for _, last in seen)) if seen else None

    def missing(self) -> list[str]:
        """Names that were asked for, and never there."""
        return [name for name, between in self._known.items() if between is None]

    def covers(self, between: tuple[int, int]) -> bool:
        """Whether something that was there ``between`` two moments was there all the time, but for what cannot be told."""
        unclear = int(2 * self._step_s * 1e9)
        return between[0] - self._span[0] <= unclear and self._span[1] - between[1] <= unclear

    def _between(self, name: str) -> tuple[int, int] | None:
        if name not in self._known:
            step = int(self._step_s * 1e9)
            first, last = self._span
            answer = self._prometheus.query_range(
                f"group(present_over_time({name}[{int(self._step_s * 1e3)}ms]))",
                span_unix_ns=(first + (last - first) % step, last),
                step_s=self._step_s,
            )
            moments = [int(moment) for series in answer.series for moment in series.unix_ns]
            self._known[name] = (max(first, min(moments) - step), max(moments)) if moments else None
        return self._known[name]
