"""An address on the command line. Needs no extra."""

from __future__ import annotations

from urllib.parse import urlsplit

import click


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
