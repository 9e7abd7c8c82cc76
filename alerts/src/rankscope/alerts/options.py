"""Values and options that several commands have. Needs no extra."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

_UNIT_S: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S: Final = 36_500 * 86400.0
"""A time that is so far away can still be counted in nanoseconds, and written as a date."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def http_url(text: str) -> str:
    """An http or https address, unchanged. Raises ``click.BadParameter`` without repeating it: it may hold a secret."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or " " in text:
        raise click.BadParameter("expected an address like https://host:port/path")
    return text


def link_url(text: str) -> str:
    """As ``http_url``, without a user: it stands in every alert. Raises ``click.BadParameter``."""
    if "@" in urlsplit(http_url(text)).netloc:
        raise click.BadParameter("has a user in it, who would stand in every alert: leave out what is before the @")
    return text


def seconds(text: str) -> float:
    """``5``, ``5s``, ``500ms``, ``2m``, ``1h``, ``1d`` in seconds; more than nothing. Raises ``click.BadParameter``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", text)
    found = 0.0 if match is None else float(match[1]) * _UNIT_S[match[2] or "s"]
    if not 0 < found <= _LONGEST_S:
        raise click.BadParameter(f"{text!r} is not a duration such as 5s, 500ms or 2m, of at most 36500d")
    return found


def rate(text: str) -> tuple[int, float]:
    """``30/min``, ``1/10min``: how many in how many seconds. Raises ``ValueError``."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{0,6})(s|min|m|h|d)", text)
    if match is None or (match[2] and not int(match[2])):
        raise ValueError(f"{text!r} is not a rate such as 1/10min or 30/h")
    return int(match[1]), float(match[2] or 1) * (60.0 if match[3] == "min" else _UNIT_S[match[3]])


def format_option(help_text: str) -> Callable[[_Command], _Command]:
    """``--format``, of which text is the default; ``help_text`` says what json gives."""
    return click.option(
        "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True, help=help_text
    )


def prometheus_access(command: _Command) -> _Command:
    """``--prometheus-token-file`` and ``--prometheus-ca``: how a Prometheus lets us in."""
    file = click.Path(path_type=Path, dir_okay=False)
    words = "One line: a bearer token, or USER:PASSWORD.  [default: $RANKSCOPE_PROMETHEUS_TOKEN]"
    ca = click.option("--prometheus-ca", type=file, help="Certificate of the authority of an https address.")
    return click.option("--prometheus-token-file", type=file, help=words)(ca(command))


def targets_option(command: _Command) -> _Command:
    """``--config``: the operator's targets."""
    file = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", type=file, metavar="FILE", help="Targets to send to, in TOML: see docs/webhooks.md.")(command)
