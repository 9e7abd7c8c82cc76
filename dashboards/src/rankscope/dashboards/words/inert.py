"""Sanitizing of names, paths and messages of a run, which are untrusted, before they are shown.

Pages escape HTML themselves. This module handles the rest: text that reorders or hides its surroundings, overlong text, the HTML
that Plotly interprets, and cells that a spreadsheet takes for formulas.
"""

from __future__ import annotations

import unicodedata
from html import escape
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from rankscope.base.text import shortened

MAX_NAME: Final = 200
"""Most characters of a name."""
MAX_TEXT: Final = 2_000
"""Most characters of a sentence, which may contain a name."""
MAX_ADDRESS: Final = 2_000
"""Most characters of the address of a link."""
MAX_CELL: Final = 32_000
"""Most characters of a cell; spreadsheets allow 32,767."""

_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""Characters that begin a formula; the last four are full-width forms, which some spreadsheets treat alike."""
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_ISOLATED: Final = "\u2068{}\u2069"

Record = TypeVar("Record", bound=msgspec.Struct)


def sanitize(text: str, limit: int = MAX_NAME) -> str:
    r"""Return ``text`` in one line of at most ``limit`` characters. Invisible characters (line breaks, bidi controls, zero width,
    surrogates) are written as escapes: ``\u202e``.
    """
    text = shortened(text, limit)
    if text.isprintable():
        return text
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return shortened(text, limit)


def plotly_text(text: str, limit: int = MAX_NAME) -> str:
    """Return ``sanitize`` text that Plotly takes literally: no HTML (``<b>``, ``<a href>``) and no templates (``%{x}``)."""
    text = sanitize(text, limit)
    isolated = any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text)
    text = escape(text, quote=False).replace("%{", "%&#123;")
    return _ISOLATED.format(text) if isolated else text


def is_web_address(url: str) -> bool:
    """Return whether an untrusted address may be linked: ``http`` or ``https``, with a host, not overlong."""
    # Browsers end the host at a backslash, urlsplit does not.
    if len(url) > MAX_ADDRESS or not url.lower().startswith(("https://", "http://")) or "\\" in url or not url.isprintable():
        return False
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


def safe_cell(value: object) -> object:
    """Return a cell of a CSV file: text that a spreadsheet would take for a formula gets an apostrophe, as OWASP advises.

    Numbers are unchanged, and ``None`` becomes an empty cell.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = sanitize(value, MAX_CELL)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def inert_record(record: Record) -> Record:
    """Return the record with every string sanitized by ``sanitize``."""
    return msgspec.convert(_inert(msgspec.to_builtins(record)), type(record))


def _inert(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize(value, MAX_TEXT)
    if isinstance(value, dict):
        return {sanitize(key, MAX_TEXT): _inert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_inert(item) for item in value]
    return value
