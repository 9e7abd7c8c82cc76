"""Telling a script that ended by an exception from one that ended well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from rankscope.profiler.ring import End


def note_crashes(close: Callable[[End], None]) -> Callable[[], None]:
    """Call ``close`` when an exception ends the script: a crash, unless it is Ctrl-C. Returns how to stop noting."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        close(End.EXIT if issubclass(kind, KeyboardInterrupt) else End.CRASH)
        previous(kind, error, trace)

    def forget() -> None:
        # Whoever came after us may call our hook.
        if sys.excepthook is hook:
            sys.excepthook = previous

    sys.excepthook = hook
    return forget
