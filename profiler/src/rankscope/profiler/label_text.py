"""Names that people chose, as the content of a label: of bounded length, and nothing an exporter would refuse a file for."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
MAX_BYTES: Final = 128
"""Every line of a rank's file has the name of the run."""


def label_text(name: str, max_bytes: int = MAX_BYTES) -> str:
    """The name, cut where it is too long, without control characters and half characters."""
    # A lone surrogate (a file name that is not UTF-8) cannot be written at all.
    encoded = name.encode(errors="replace")[:max_bytes]
    return _CONTROL.sub("?", encoded.decode(errors="ignore"))


def escaped(text: str) -> str:
    """As it stands between the quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
