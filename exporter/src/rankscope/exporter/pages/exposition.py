"""Metric families as Prometheus text 0.0.4 and OpenMetrics 1.0.

Our own renderer, because DCGM's counters lack ``_total``, which the client library does not allow, and because a page has a
thousand series: what a line has before its value is rendered once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Generic, Literal, TypeVar

from rankscope.exporter.source import Labels

V = TypeVar("V")

Kind = Literal["gauge", "counter", "histogram"]

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Beyond this, whole numbers are not exact anyway and shorter with an exponent.
_LARGEST_PLAIN: Final = 10**15
_QUALITY: Final = re.compile(r"[01](?:\.[0-9]{0,3})?")


class Point:
    """One series of a family: labels in their order, and value."""

    __slots__ = ("beginning", "labels", "name", "value")

    def __init__(self, labels: Labels, value: float, name: str = "") -> None:
        self.labels = labels
        self.value = value
        self.name = name
        """That of the series, where it may differ from the family's: a part of a histogram."""
        self.beginning = ""
        """The line up to the value, once it was rendered."""


@dataclass(slots=True)
class Family:
    """One metric: its name as on the text page, base unit or "", and its series, none of them twice.

    Those of a histogram stand together: its buckets, the least bound first, sum and count.
    """

    name: str
    type: Kind
    help: str
    unit: str = ""
    points: list[Point] = field(default_factory=list)

    def add(self, labels: Labels, value: float) -> None:
        """One more series."""
        self.points.append(Point(labels, value))


def text(families: Iterable[Family]) -> bytes:
    """Prometheus text 0.0.4."""
    lines: list[str] = []
    for family in families:
        help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.type}\n")
        lines += [f"{point.beginning or _beginning(point, family)}{number(point.value)}\n" for point in family.points]
    return _encoded(lines)


def openmetrics(families: Iterable[Family]) -> bytes:
    """OpenMetrics 1.0; of the families, no two may be the same one to it (see ``openmetrics_can_say``)."""
    lines: list[str] = []
    for family in families:
        name = family.name.removesuffix("_total")
        lines.append(f"# HELP {name} {_escaped(family.help)}\n# TYPE {name} {family.type}\n")
        if family.unit and name.endswith(f"_{family.unit}"):
            lines.append(f"# UNIT {name} {family.unit}\n")
        lines += [f"{point.beginning or _beginning(point, family)}{number(point.value)}\n" for point in family.points]
    lines.append("# EOF\n")
    return _encoded(lines)


class PointSource(Generic[V]):
    """Points of one source of values, which ``point_of`` makes; any thread may ask.

    A series keeps its rendered labels from page to page. Without that, the exporter's CPU and the latency of a scrape break their
    budgets (benchmarks/page_caches.py).
    """

    def __init__(self, point_of: Callable[[V], Point]) -> None:
        self._point_of = point_of
        self._last: tuple[Sequence[V], list[Point]] = ((), [])

    def points(self, values: Sequence[V]) -> list[Point]:
        """A point for each value; of a series that is there twice, which would cost the whole page, only the last."""
        points = self._of_same_series(values)
        if points is None:
            made = [(value, self._point_of(value)) for value in values]
            once = {(point.name, point.labels): (value, point) for value, point in made}
            values, points = [value for value, _ in once.values()], [point for _, point in once.values()]
        self._last = values, points
        return points

    def _of_same_series(self, values: Sequence[V]) -> list[Point] | None:
        """None when the series are others than on the page before."""
        before, points = self._last
        if len(values) != len(before):
            return None
        points = points.copy()
        for place, (value, old) in enumerate(zip(values, before, strict=True)):
            if value is not old:
                point, known = self._point_of(value), points[place]
                if point.labels != known.labels or point.name != known.name:
                    return None
                if point.value != known.value:
                    point.beginning = known.beginning
                    points[place] = point
        return points


def number(value: float) -> str:
    """A value as every reader of the formats understands it, whole numbers short, others exact."""
    if value - value != 0:
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"  # noqa: PLR0124  only NaN differs from itself
    whole = int(value)
    return str(whole) if whole == value and -_LARGEST_PLAIN < whole < _LARGEST_PLAIN else repr(float(value))


def openmetrics_can_say(families: Iterable[Family]) -> bool:
    """Whether the families stay distinct there, where a counter ``x_total`` and a gauge ``x`` have one name."""
    names = [family.name.removesuffix("_total") for family in families]
    return len(set(names)) == len(names)


@lru_cache(16)  # a scraper always says the same
def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header asks for OpenMetrics 1.0 at least as much as for text."""
    openmetrics = text = 0.0
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = float(given["q"]) if _QUALITY.fullmatch(given.get("q", "")) else 1.0
        if media_type == "application/openmetrics-text" and given.get("version", "1.0.0") == "1.0.0":
            openmetrics = max(openmetrics, quality)
        elif media_type in ("text/plain", "text/*"):
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def _encoded(lines: list[str]) -> bytes:
    # Half a character (a file name, say, that is not UTF-8) must not cost the page.
    return "".join(lines).encode("utf-8", "replace")


def _beginning(point: Point, family: Family) -> str:
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in point.labels)
    name = point.name or family.name
    point.beginning = f"{name}{{{inside}}} " if inside else f"{name} "
    return point.beginning


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
