"""Parsers for values of command-line options and configuration files, and options shared by several commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

LONGEST_S: Final = 36_500 * 86400.0
"""Longest duration in seconds (100 years): in nanoseconds it fits 64 bits, and added to today it is a valid date."""

_UNIT_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_SIZE_UNITS: Final = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_SMALLEST_SIZE: Final = 1024 * 1024
"""Minimum size: with less, nothing works; records would be removed faster than they can be read."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def parse_duration(text: str, *, zero: bool = False, needs_unit: bool = False) -> float:
    """Return the seconds of ``500ms``, ``1s``, ``5m``, ``24h``, ``2d``; a bare number is seconds unless ``needs_unit``.

    Raises ``ValueError`` for anything else, for more than ``LONGEST_S``, and for 0 unless ``zero`` is set.
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", text, re.ASCII)
    seconds = None if match is None else float(match[1]) * _UNIT_S[match[2] or "s"]
    if match is None or seconds is None or seconds > LONGEST_S:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 5s, 2m or 24h, at most 36500d")
    if needs_unit and match[2] is None:
        raise ValueError(f"{text!r} is a duration without its unit, as in {text}s or {text}m")
    if seconds == 0 and not zero:
        raise ValueError(f"{text} is too small: more than 0 is needed")
    return seconds


def parse_rate(text: str) -> tuple[int, float]:
    """Parse a rate such as ``30/min`` or ``1/10min`` to (number, seconds). Raises ``ValueError``."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{0,6})(s|min|m|h|d)", text)
    if match is None or (match[2] and not int(match[2])):
        raise ValueError(f"{text!r} is not a rate such as 1/10min or 30/h")
    return int(match[1]), float(match[2] or 1) * (60.0 if match[3] == "min" else _UNIT_S[match[3]])


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Duration between two bounds, which are durations such as ``100ms``; the value is in seconds.

    Without a lower bound it must be more than 0.
    """

    name = "duration"

    def __init__(self, at_least: str | None = None, at_most: str | None = None) -> None:
        self._at_least = at_least
        self._at_most = at_most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value, zero=self._at_least is not None)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._at_least is not None and seconds < parse_duration(self._at_least, zero=True):
            self.fail(f"{value} is too small: {self._at_least} at least", param, ctx)
        if self._at_most is not None and seconds > parse_duration(self._at_most):
            self.fail(f"{value} is too large: {self._at_most} at most", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """Size in bytes: ``4GiB``, ``500 MB``; with ``or_all``, also ``all``, which is ``None``."""

    name = "size"

    def __init__(self, *, or_all: bool = False) -> None:
        self._or_all = or_all

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the size in bytes; ``None`` for ``all``."""
        text = str(value).strip().lower()
        if self._or_all and text == "all":
            return None
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text)
        if match is None or match[2] not in _SIZE_UNITS:
            self.fail(f"{value!r} is no size; write 4GiB{', 500MB or all' if self._or_all else ' or 500MB'}", param, ctx)
        size = int(float(match[1]) * _SIZE_UNITS[match[2]])
        if not _SMALLEST_SIZE <= size < 2**60:
            self.fail(f"{value!r} is not between 1 MiB and 1 EiB", param, ctx)
        return size


class ListenAddress(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """Address to listen on: ``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for all addresses; the value is (host, port)."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return host and port."""
        if isinstance(value, tuple):
            return value[0], value[1]
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^%\[\]]+)?)\]|([^:\[\]]*)):([0-9]{1,5})", str(value), re.ASCII)
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, :PORT or [IPV6]:PORT", param, ctx)
        return match[1] or match[2] or "::", int(match[3])


def http_url(text: str) -> str:
    """Check an http or https URL and return it unchanged.

    Raises ``click.BadParameter``; the message omits the URL, which may contain a secret.
    """
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or " " in text:
        raise click.BadParameter("expected an address like https://host:port/path")
    return text


def link_url(text: str) -> str:
    """Check a URL as ``http_url`` for a link that is published; it must not contain a user. Raises ``click.BadParameter``."""
    if "@" in urlsplit(http_url(text)).netloc:
        raise click.BadParameter("has a user in it, which every reader would see: leave out what is before the @")
    return text


def format_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds ``--format text|json`` (default: text); ``help_text`` is the option's help."""
    return click.option(
        "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True, help=help_text
    )
