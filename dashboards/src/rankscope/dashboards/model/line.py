"""Inline of a line of text: plain text, emphasis, links, badges. Texts are plain: both writers escape them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rankscope.dashboards.words.inert import MAX_TEXT, sanitize

MAX_BADGE: Final = 80
"""Maximum characters of a badge or link. A longer text is in its title."""
_OPTION: Final = r"(?<!\S)--?[a-z][a-z-]*"
_OPTIONS: Final = re.compile(f"({_OPTION})")
_MARKED: Final = re.compile(f"(`[^`]+`|{_OPTION})")
"""Pattern of code in backticks, and of a command-line option."""


@dataclass(frozen=True, slots=True)
class Span:
    """Text with an emphasis. ``option``: no line break inside, for command-line options."""

    text: str
    kind: Literal["code", "strong", "b", "small", "span", "option"] = "span"
    title: str | None = None
    style: str = ""


@dataclass(frozen=True, slots=True)
class PageLink:
    """Link to an address of the dashboard. The report links only within the run. ``elsewhere``: a page outside, in a new tab."""

    text: str
    href: str
    title: str | None = None
    style: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Badge:
    """Label. Tones: plain, emphasis, good, fair, bad, unknown, live, simulated; each has a sign besides its colour."""

    text: str
    tone: str = "plain"
    title: str | None = None


Piece = str | Span | PageLink | Badge
Line = Piece | Sequence[Piece]


def badge(text: str, *, tone: str = "plain", title: str | None = None) -> Badge:
    """Return a badge with at most ``MAX_BADGE`` characters."""
    short = sanitize(text, MAX_BADGE)
    return Badge(short, tone, title or (None if short == text else sanitize(text, MAX_TEXT)))


def named_link(name: str, href: str) -> PageLink:
    """Return a link whose long name is cut off, to leave room for a table's other columns."""
    short = sanitize(name, MAX_BADGE)
    return PageLink(short, href, None if short == name else sanitize(name, MAX_TEXT))


def pieces(line: Line) -> list[Span | PageLink | Badge]:
    """Return the pieces of a line. In plain text, code in backticks and command-line options become pieces of their own."""
    parts: list[Span | PageLink | Badge] = []
    for piece in [line] if isinstance(line, (str, Span, PageLink, Badge)) else line:
        parts += _spans(piece) if isinstance(piece, str) else [piece]
    return parts


def _spans(text: str) -> list[Span]:
    parts = enumerate(_MARKED.split(text))
    return [Span(part.strip("`"), "code" if part[0] == "`" else "option") if at % 2 else Span(part) for at, part in parts if part]


def code_pieces(text: str) -> list[Span]:
    """Return the pieces of code: its command-line options, and the text between them."""
    return [Span(part, "option" if at % 2 else "span") for at, part in enumerate(_OPTIONS.split(text)) if part]


def first_pieces(items: Sequence[Piece], most: int) -> list[Piece]:
    """Return the first ``most`` items as ``a, b and 3 more``."""
    parts: list[Piece] = []
    for index, item in enumerate(items[:most]):
        parts += [", " if index else "", item]
    return [*parts, *([f" and {len(items) - most:,} more"] if len(items) > most else [])]
