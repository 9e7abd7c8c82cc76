"""Addresses and errors fit for a message: user, password, path and query may be secrets."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_THROUGH: Final = ", through the proxy "


def through(error: Exception, proxy: str) -> str:
    """The error's own words, and the proxy that they may be about; it is named without its password."""
    return f"{error}{_THROUGH}{redact(proxy)}"


def plain_words(error: Exception, url: str, *, late: bool = False) -> str:
    """The error's own words, unless they quote the address; ``late``: that it took too long. The proxy stays in them."""
    text, said, proxy = str(error).partition(_THROUGH)
    parts = urlsplit(url)
    secrets = [part for part in (parts.path.strip("/"), parts.query, parts.username, parts.password) if part]
    if not text or any(secret in text for secret in secrets):
        text = type(error).__name__
    return ("no answer in time" if late else text) + said + proxy


def redact(url: str) -> str:
    """An address fit for a log: scheme, host and port. User, path and query may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = f":{parts.port}" if parts.port is not None else ""
    rest = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{rest}"
