"""Metric families as Prometheus text 0.0.4 and OpenMetrics 1.0.

The renderer of the client library is not used for three reasons. Recorder and alerts do not install it. It requires ``_total``,
which DCGM's counters lack. And the exporter's page has a thousand series, of which most have the value of the page before: here,
a line is rendered once for each value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Generic, Literal, TypeVar

V = TypeVar("V")
Labels = tuple[tuple[str, str], ...]

Kind = Literal["gauge", "counter", "histogram"]

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Larger whole numbers are shorter with an exponent, and not exact beyond 2**53 anyway.
_LARGEST_PLAIN: Final = 10**15
_QUALITY: Final = re.compile(r"[01](?:\.[0-9]{0,3})?")


class Point:
    """One series of a family: labels in the order of the page, and value."""

    __slots__ = ("labels", "line", "name", "prefix", "value")

    def __init__(self, labels: Labels, value: float, name: str = "") -> None:
        self.labels = labels
        self.value = value
        self.name = name
        """Name of the series, if it may differ from the family's: for parts of a histogram."""
        self.prefix = ""
        """The rendered line up to the value; empty before the first rendering."""
        self.line = ""
        """The rendered line; empty before the first rendering."""


@dataclass(slots=True)
class Family:
    """One metric: its name in the text format, base unit or "", and its series, which must be distinct.

    The series of a histogram are adjacent: its buckets in ascending order of their bounds, then sum and count.
    """

    name: str
    type: Kind
    help: str
    unit: str = ""
    points: list[Point] = field(default_factory=list)

    def add(self, labels: Labels, value: float) -> None:
        """Add a series."""
        self.points.append(Point(labels, value))


def exposition_text(families: Iterable[Family]) -> bytes:
    """Render the families as Prometheus text 0.0.4."""
    lines: list[str] = []
    for family in families:
        help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.type}\n")
        lines += [point.line or _line(point, family) for point in family.points]
    return _encoded(lines)


def openmetrics(families: Iterable[Family]) -> bytes:
    """Render the families as OpenMetrics 1.0; their names must be distinct there (see ``has_unique_openmetrics_names``)."""
    lines: list[str] = []
    for family in families:
        name = family.name.removesuffix("_total")
        lines.append(f"# HELP {name} {escaped(family.help)}\n# TYPE {name} {family.type}\n")
        if family.unit and name.endswith(f"_{family.unit}"):
            lines.append(f"# UNIT {name} {family.unit}\n")
        lines += [point.line or _line(point, family) for point in family.points]
    lines.append("# EOF\n")
    return _encoded(lines)


class PointSource(Generic[V]):
    """Points of one source of values, converted by ``point_of``. Thread-safe.

    A series keeps its rendered labels from page to page, and its line while the value stays. Without that, the exporter exceeds
    its budgets (benchmarks/exporter/page_caches.py).
    """

    def __init__(self, point_of: Callable[[V], Point]) -> None:
        self._point_of = point_of
        self._last: tuple[Sequence[V], list[Point]] = ((), [])

    def points(self, values: Sequence[V]) -> list[Point]:
        """Return a point for each value; of a duplicate series only the last, because a duplicate makes the scrape fail."""
        points = self._of_same_series(values)
        if points is None:
            pairs = [(value, self._point_of(value)) for value in values]
            once = {(point.name, point.labels): (value, point) for value, point in pairs}
            values, points = [value for value, _ in once.values()], [point for _, point in once.values()]
        self._last = values, points
        return points

    def _of_same_series(self, values: Sequence[V]) -> list[Point] | None:
        """Return the points if the series are the same as on the last page, else None."""
        before, points = self._last
        if len(values) != len(before):
            return None
        points = points.copy()
        for index, (value, old) in enumerate(zip(values, before, strict=True)):
            if value is not old:
                point, earlier = self._point_of(value), points[index]
                if point.labels != earlier.labels or point.name != earlier.name:
                    return None
                if point.value != earlier.value:
                    point.prefix = earlier.prefix
                    points[index] = point
        return points


def number(value: float) -> str:
    """Format a value for both formats: whole numbers without a fraction, other values exactly."""
    if value - value != 0:
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"  # noqa: PLR0124  only NaN differs from itself
    integer = int(value)
    return str(integer) if integer == value and -_LARGEST_PLAIN < integer < _LARGEST_PLAIN else repr(float(value))


def has_unique_openmetrics_names(families: Iterable[Family]) -> bool:
    """Return whether the names are distinct in OpenMetrics, where a counter ``x_total`` and a gauge ``x`` share a name."""
    names = [family.name.removesuffix("_total") for family in families]
    return len(set(names)) == len(names)


@lru_cache(16)  # a scraper always sends the same header
def prefers_openmetrics(accept: str) -> bool:
    """Return whether an Accept header gives OpenMetrics 1.0 at least the weight of text."""
    openmetrics = text = 0.0
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        parameter_values = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = float(parameter_values["q"]) if _QUALITY.fullmatch(parameter_values.get("q", "")) else 1.0
        if media_type == "application/openmetrics-text" and parameter_values.get("version", "1.0.0") == "1.0.0":
            openmetrics = max(openmetrics, quality)
        elif media_type in ("text/plain", "text/*"):
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def _encoded(lines: list[str]) -> bytes:
    # A lone surrogate (from a file name that is not UTF-8, for example) must not make the page fail.
    return "".join(lines).encode("utf-8", "replace")


def _line(point: Point, family: Family) -> str:
    if not point.prefix:
        inside = ",".join(f'{label}="{escaped(value)}"' for label, value in point.labels)
        name = point.name or family.name
        point.prefix = f"{name}{{{inside}}} " if inside else f"{name} "
    point.line = f"{point.prefix}{number(point.value)}\n"
    return point.line


def escaped(text: str) -> str:
    """Return ``text`` escaped for use between the quotes of a label value."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
