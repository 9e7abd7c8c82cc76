"""Metric families as Prometheus text 0.0.4 and OpenMetrics 1.0.

Our own renderer, because DCGM's counters lack ``_total``, which the client library does not allow, and because every scraper asks
for a page of a thousand series: what does not change between pages is not made anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from rankscope.exporter.source import Labels

Kind = Literal["gauge", "counter", "histogram"]

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Beyond this, whole numbers are not exact anyway and shorter with an exponent.
_LARGEST_PLAIN: Final = 10**15
_FEW_LINES: Final = 4096
_QUALITY: Final = re.compile(r"[01](?:\.[0-9]{0,3})?")


class Point:
    """One series of a family: labels in their order, the value, and, once it was written, its line.

    Whoever keeps a point from page to page, because nothing about it has changed, saves the line. Points do not change.
    """

    __slots__ = ("beginning", "labels", "line", "name", "value")

    def __init__(self, labels: Labels, value: float, name: str = "", beginning: str = "") -> None:
        self.labels = labels
        self.value = value
        self.name = name
        """That of the series, where it is not the family's: a part of a histogram."""
        self.beginning = beginning
        """The line up to the value, once it was written; who makes a new point for a new value may hand it on."""
        self.line = ""


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


class Renderer:
    """Turns families into text; remembers lines, at most about twice as many as the largest page had.

    Any number of threads may use one.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[Labels, tuple[float, str, str]]] = {}
        self._remembered = 0
        self._limit = _FEW_LINES

    def text(self, families: Iterable[Family]) -> bytes:
        """Prometheus text 0.0.4."""
        lines: list[str] = []
        for family in families:
            help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
            lines.append(f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.type}\n")
            self._add_series(lines, family)
        return self._finish(lines)

    def openmetrics(self, families: Iterable[Family]) -> bytes:
        """OpenMetrics 1.0; of the families, no two may be the same one to it (see ``openmetrics_can_say``)."""
        lines: list[str] = []
        for family in families:
            name = family.name.removesuffix("_total")
            lines.append(f"# HELP {name} {_escaped(family.help)}\n# TYPE {name} {family.type}\n")
            if family.unit and name.endswith(f"_{family.unit}"):
                lines.append(f"# UNIT {name} {family.unit}\n")
            self._add_series(lines, family)
        lines.append("# EOF\n")
        return self._finish(lines)

    def _add_series(self, lines: list[str], family: Family) -> None:
        lines += [point.line or self._line(point.name or family.name, point) for point in family.points]

    def _line(self, name: str, point: Point) -> str:
        if point.beginning:
            point.line = f"{point.beginning}{number(point.value)}\n"
            return point.line
        known = self._lines.setdefault(name, {})
        last = known.get(point.labels)
        if last is not None and last[0] == point.value:  # most values are those of the page before
            point.beginning, point.line = last[1], last[2]
            return point.line
        if last is None:
            self._remembered += 1
            beginning = _beginning(name, point.labels)
        else:
            beginning = last[1]
        point.beginning, point.line = beginning, f"{beginning}{number(point.value)}\n"
        known[point.labels] = point.value, beginning, point.line
        return point.line

    def _finish(self, lines: list[str]) -> bytes:
        self._limit = max(self._limit, 2 * len(lines))
        if self._remembered > self._limit:
            self._lines, self._remembered = {}, 0
        # Half a character (a file name, say, that is not UTF-8) must not cost the page.
        return "".join(lines).encode("utf-8", "replace")


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


def _beginning(name: str, labels: Labels) -> str:
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels)
    return f"{name}{{{inside}}} " if inside else f"{name} "


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
