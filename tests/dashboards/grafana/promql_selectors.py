"""Selectors of a PromQL expression and the functions around them: enough of the language to check boards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<matchers>\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})"""
    r"""|(?P<variable>\$\w+)|(?P<number>\d[\w.]*)|(?P<name>[A-Za-z_:][\w:]*)|(?P<sign>[-+*/%^=!<>~(),@])"""
)
_LABELS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "NaN", "Inf"}
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector. ``function`` is the innermost one around it; ``range`` has no brackets and is empty for none."""

    metric: str
    matchers: dict[str, tuple[str, str]]
    range: str
    function: str


def functions(expr: str) -> set[str]:
    """Return the functions and aggregations of an expression."""
    tokens = list(_tokens(expr))
    return {text for kind, text, after in tokens if kind == "name" and after in ("(", "by") and text not in _LABELS | _WORDS}


def selectors(expr: str) -> list[Selector]:  # noqa: C901  # one branch per kind of token
    """Return every selector, in order. Raises ``ValueError`` for invalid PromQL, as far as this parser detects it."""
    collected: list[Selector] = []
    around: list[str] = []
    opening = ""
    labels = False
    before = ""
    for kind, text, after in _tokens(expr):
        if labels:
            labels = text != ")"
        elif kind == "name" and text in _LABELS:
            labels = after == "("
        elif kind == "name" and text not in _WORDS:
            if after in ("(", "by"):
                opening = text
            else:
                collected.append(Selector(text, {}, "", around[-1] if around else ""))
        elif kind == "matchers":
            last = collected.pop()
            pairs = {name: (operator, value) for name, operator, value in _MATCHER.findall(text)}
            collected.append(Selector(last.metric, pairs, last.range, last.function))
        elif kind == "range":
            if before != ")" and collected and (opening or around):  # after a bracket it belongs to a subquery
                last = collected.pop()
                collected.append(Selector(last.metric, last.matchers, text[1:-1], last.function))
        elif text == "(":
            around.append(opening)
            opening = ""
        elif text == ")":
            around.pop()
        before = text
    if around:
        raise ValueError(f"a bracket stays open: {expr}")
    return collected


def _tokens(expr: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, text, and the text of the next token."""
    collected: list[tuple[str, str]] = []
    place = 0
    while place < len(expr):
        match = _TOKEN.match(expr, place)
        if match is None:
            raise ValueError(f"what is {expr[place : place + 20]!r} in {expr}")
        place = match.end()
        if match.lastgroup != "space":
            collected.append((str(match.lastgroup), match[0]))
    for index, (kind, text) in enumerate(collected):
        yield kind, text, collected[index + 1][1] if index + 1 < len(collected) else ""
