"""Programs that we start end with us. Needs no extra."""

from __future__ import annotations

import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """In a new child: let the kernel end it when its parent is killed and cannot do so itself (Linux only)."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
