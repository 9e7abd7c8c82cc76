"""Colours, thresholds, mappings and texts with the same meaning on every board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsMode, ValueMap, ValueMappingResult

GOOD: Final = "green"
WARNING: Final = "orange"
BAD: Final = "red"
PLAIN: Final = "blue"
UNKNOWN: Final = "#8e8e8e"

NOT_AVAILABLE: Final = -1_000_000
"""Value of a single figure that is not among the collected metrics; shown as text, never as a number."""

NO_DATA: Final = "collection dead, or nothing chosen"
"""Text of a panel with neither a value nor a reason for its absence."""

NOTHING: Final = "–"
"""Text of an empty table cell (not measured, or not applicable), and of a table without rows."""

NO_SIGNAL: Final = "not available: the recorder has no signal for this, or nothing is chosen"
"""``NO_DATA`` for ranks: unsupported signals are absent; the legend names ranks that are silent or disabled."""

STATES: Final = {
    "unavailable": (1, "no answer", "dark-red"),
    "suspected_hang": (2, "hang suspected", "red"),
    "throttled": (3, "throttled", "orange"),
    "allocated_idle": (4, "allocated, idle", "purple"),
    "communication_wait": (5, "waits for others", "yellow"),
    "computing": (6, "computing", "green"),
    "idle": (7, "idle", "semi-dark-blue"),
    "unknown": (8, "unknown", "#8e8e8e"),
}
"""State of a GPU to its number in a state timeline, its text and its colour."""


def steps(*limits: tuple[float | None, str]) -> ThresholdsConfig:
    """Return thresholds from (value, colour); the first value is ``None``."""
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps([Threshold(value, color) for value, color in limits])


ANY_IS_BAD: Final = ((None, GOOD), (1, BAD))
ANY_IS_A_WARNING: Final = ((None, GOOD), (1, WARNING))
ALL_IS_GOOD: Final = ((None, BAD), (1, GOOD))
DEGREES_LEFT: Final = ((None, BAD), (1, WARNING), (5, GOOD))
"""Thresholds of the margin to the device's own slowdown limit; at zero the GPU is already slowed down."""
SHARE_OF_LIMIT: Final = ((None, GOOD), (0.95, WARNING), (1.0, BAD))
"""Thresholds of a share of the device's own limit."""


def words(texts: Mapping[float, tuple[str, str]]) -> ValueMap:
    """Return a mapping of numbers to (text, colour)."""
    options = {
        f"{number:g}" if abs(number) < 1e6 else f"{number:.0f}": ValueMappingResult(text=text, color=color, index=index)
        for index, (number, (text, color)) in enumerate(texts.items())
    }
    return ValueMap(options)


NOT_AVAILABLE_WORDS: Final = words({NOT_AVAILABLE: ("not available", UNKNOWN)})
STATE_WORDS: Final = words({number: (text, color) for number, text, color in STATES.values()})
YES_NO: Final = words({0: ("no", BAD), 1: ("yes", GOOD)})


def or_not_available(expr: str, alive: str) -> str:
    """Return the value of a single figure; without one ``NOT_AVAILABLE`` if ``alive`` has series, else nothing."""
    return f"{expr}\nor on ()\n(0 * count({alive}) + {NOT_AVAILABLE})"


def none_is_zero(expr: str, among: str) -> str:
    """Return a count of series found ``among`` existing ones: 0 if none is found, nothing if no such series exist."""
    return f"{expr}\nor\n0 * count({among})"


def code_words(names: Sequence[tuple[str, str]]) -> ValueMap:
    """Return a mapping of label values to texts, from (label, text)."""
    return ValueMap({label: ValueMappingResult(text=text, index=index) for index, (label, text) in enumerate(names)})
