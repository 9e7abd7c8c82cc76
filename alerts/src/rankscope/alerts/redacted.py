"""Addresses and errors fit for a message: user, password, path and query may be secrets."""

from __future__ import annotations

from urllib.parse import urlsplit


def plain_words(error: Exception, url: str) -> str:
    """The error's own words, unless they quote the address."""
    text = str(error)
    parts = urlsplit(url)
    secrets = [part for part in (parts.path.strip("/"), parts.query, parts.username, parts.password) if part]
    return type(error).__name__ if not text or any(secret in text for secret in secrets) else text


def redact(url: str) -> str:
    """An address fit for a log: scheme, host and port. User, path and query may be secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = f":{parts.port}" if parts.port is not None else ""
    rest = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{rest}"
