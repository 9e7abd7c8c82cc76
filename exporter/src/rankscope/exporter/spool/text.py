"""The Prometheus text format, as strict as a rank's file has to be and as quick as many files a second need."""

from __future__ import annotations

import re
from typing import Final

import msgspec

Labels = tuple[tuple[str, str], ...]


class TextError(ValueError):
    """It is not the text format."""


_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t]+(-?[0-9]+))?[ \t]*")
_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\[\\"n])*)"[ \t]*(,|$)')
_COMMENT: Final = re.compile(r"#[ \t]+(HELP|TYPE)[ \t]+([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]+(.*))?")
_TYPES: Final = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?[Ii]nf|NaN|nan")
_ESCAPED: Final = re.compile(r"\\([\\\"n])")
_PLAIN: Final = {"\\": "\\", '"': '"', "n": "\n"}


class Sample(msgspec.Struct, frozen=True):
    """One line: labels sorted by name; whether it has an explicit time."""

    labels: Labels
    value: float
    timed: bool


class Metric(msgspec.Struct):
    """All samples of one name; ``type`` is empty where the text says none."""

    name: str
    type: str = ""
    help: str = ""
    samples: list[Sample] = []


def metrics(text: str) -> list[Metric]:
    """All metrics of a text, by name and in their order; raises ``TextError`` for what is not the text format."""
    found: dict[str, Metric] = {}
    known_labels: dict[str | None, Labels] = {None: (), "": ()}  # most lines of a rank have the same
    for line in text.split("\n"):
        if line.startswith("#"):
            _comment(line, found)
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            if line.strip(" \t"):
                raise TextError("not a sample")
            continue
        name, inside, number, time = sample.groups()
        labels = known_labels.get(inside)
        if labels is None:
            labels = known_labels[inside] = _labels(inside)
        metric = found.get(name)
        if metric is None:
            metric = found[name] = Metric(name)
        metric.samples.append(Sample(labels, _number(number), time is not None))
    return list(found.values())


def _comment(line: str, found: dict[str, Metric]) -> None:
    comment = _COMMENT.fullmatch(line)
    if comment is None:
        if re.match(r"#[ \t]+(HELP|TYPE)\b", line):
            raise TextError("a HELP or TYPE without a name")
        return
    metric = found.setdefault(comment[2], Metric(comment[2]))
    if comment[1] == "HELP":
        metric.help = _unescape(comment[3] or "")
    elif (kind := (comment[3] or "").strip()) not in _TYPES or metric.type not in {"", kind}:
        raise TextError("no type, or a second one")
    else:
        metric.type = kind


def _labels(inside: str) -> Labels:
    labels: dict[str, str] = {}
    at, end = 0, len(inside)
    while at < end:
        label = _LABEL.match(inside, at)
        if label is None or label[1] in labels:
            raise TextError("not labels")
        labels[label[1]] = _unescape(label[2])
        at = label.end()
    return tuple(sorted(labels.items()))


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: _PLAIN[match[1]], text) if "\\" in text else text


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise TextError("not a number")
    value = float(text)
    if value in {float("inf"), float("-inf")} and "nf" not in text:
        raise TextError("a number beyond all bounds")
    return value
