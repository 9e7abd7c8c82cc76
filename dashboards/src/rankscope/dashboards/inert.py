"""What is safe to show of names, paths and messages that anybody may have written into a run.

Pages escape HTML by themselves. What is left: text that reorders or hides what stands around it, text without end, the HTML that
Plotly understands, and cells that a spreadsheet takes for formulas.
"""

from __future__ import annotations

import unicodedata
from html import escape
from typing import Any, Final, TypeVar

import msgspec

MAX_NAME: Final = 200
"""Characters of a name."""
MAX_TEXT: Final = 2_000
"""Characters of a sentence, which may hold a name."""
MAX_CELL: Final = 32_000
"""Characters of a cell; spreadsheets end at 32,767."""

_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""The last four are wide forms of the first, which some spreadsheets take for the same."""
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_ISOLATED: Final = "\u2068{}\u2069"

Record = TypeVar("Record", bound=msgspec.Struct)


def shown(text: str, limit: int = MAX_NAME) -> str:
    r"""``text`` in one line of at most ``limit`` characters; whatever is not seen (line breaks, bidi controls, zero width,
    halves of characters) is written as an escape: ``\u202e``.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plotly_text(text: str, limit: int = MAX_NAME) -> str:
    """The same for texts of a figure: neither its HTML (``<b>``, ``<a href>``) nor its templates (``%{x}``) are understood."""
    text = shown(text, limit)
    isolated = any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text)
    text = escape(text, quote=False).replace("%{", "%&#123;")
    return _ISOLATED.format(text) if isolated else text


def safe_cell(value: object) -> object:
    """A cell of a CSV file: text that a spreadsheet would take for a formula begins with an apostrophe, as OWASP advises.

    Numbers stay as they are, and what is not known (``None``) is empty.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = shown(value, MAX_CELL)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def inert_record(record: Record) -> Record:
    """The same record with every text in it as ``shown``."""
    return msgspec.convert(_inert(msgspec.to_builtins(record)), type(record))


def _inert(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value, MAX_TEXT)
    if isinstance(value, dict):
        return {shown(key, MAX_TEXT): _inert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_inert(item) for item in value]
    return value
