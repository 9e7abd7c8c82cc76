"""Names chosen by users as label values: of bounded length, without characters for which an exporter would reject the file."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MAX_BYTES: Final = 128
"""Limit of a label value; short, because every line of a rank's file contains the name of the run."""


def label_text(name: str, max_bytes: int = MAX_BYTES) -> str:
    """Return the name, cut to ``max_bytes``, without control characters and truncated characters."""
    # A lone surrogate (from a file name that is not UTF-8) cannot be encoded.
    encoded = name.encode(errors="replace")[:max_bytes]
    return _CONTROL.sub("?", encoded.decode(errors="ignore"))


def escaped(text: str) -> str:
    """Return ``text`` escaped for use between the quotes of a label value."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
