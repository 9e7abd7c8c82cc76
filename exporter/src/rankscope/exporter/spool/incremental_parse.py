"""Fast reader of a file of which only values changed since the last reading, as most files of ranks do every second.

Parsing the whole file takes ten times as long, and a node has eight or more ranks.
"""

from __future__ import annotations

import re
from typing import Final

from rankscope.exporter.source import Series
from rankscope.exporter.spool.file import checked
from rankscope.exporter.spool.series import SpoolContent

_VALUE: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?|NaN|[+-]?Inf")


class SpoolTemplate:
    """Lines of an accepted file: comments as a whole, and series up to the value."""

    __slots__ = ("_lines",)

    def __init__(self, lines: tuple[tuple[str, bool], ...]) -> None:
        self._lines = lines

    @classmethod
    def of(cls, content: bytes, file: SpoolContent) -> SpoolTemplate | None:
        """Create a template from a file's content and its parsed form; None if the file is not formatted as by a rank."""
        lines: list[tuple[str, bool]] = []
        series = (sample for family in file.families for sample in family.series)
        for line in content.decode("utf-8").split("\n"):
            if not line or line.startswith("#"):
                lines.append((line, False))
                continue
            before, _, value = line.rpartition(" ")
            sample = next(series, None)
            if sample is None or not before.startswith(f"{sample.metric}{{") or not _VALUE.fullmatch(value):
                return None
            if not before.endswith("}") or repr(float(value)) != repr(sample.value):  # NaN differs from itself
                return None
            lines.append((f"{before} ", True))
        return cls(tuple(lines)) if next(series, None) is None else None

    def read(self, content: bytes, before: SpoolContent) -> SpoolContent | None:
        """Return ``before`` with the values of ``content``; unchanged families and series are the same objects.

        None if more than values changed. Raises ``RejectedError`` for invalid values.
        """
        try:
            lines = content.decode("utf-8").split("\n")
        except UnicodeDecodeError:
            return None
        if len(lines) != len(self._lines):
            return None
        values: list[float] = []
        for line, (template_line, has_value) in zip(lines, self._lines, strict=True):
            if not has_value:
                if line != template_line:
                    return None
            elif line.startswith(template_line) and _VALUE.fullmatch(line, len(template_line)):
                values.append(float(line[len(template_line) :]))
            else:
                return None
        return _with_values(before, values)


def _with_values(before: SpoolContent, values: list[float]) -> SpoolContent:
    families, start = list(before.families), 0
    for index, family in enumerate(before.families):
        own = values[start : start + len(family.series)]
        start += len(own)
        if own != [sample.value for sample in family.series]:
            series = tuple(
                sample if sample.value == value else Series(sample.metric, value, sample.labels)
                for sample, value in zip(family.series, own, strict=True)
            )
            families[index] = type(family)(family.name, family.type, family.help, series)
    return checked(before.key, tuple(families))
