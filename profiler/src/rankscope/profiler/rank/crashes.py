"""Telling a script that ended by an exception from one that ended well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from rankscope.profiler.ring import End


def end_of(error: BaseException | None) -> End:
    """How a script ended that was left by ``error``: a crash, unless it is Ctrl-C or a ``sys.exit`` that says all is well."""
    if isinstance(error, SystemExit):
        return End.CRASH if error.code else End.EXIT
    return End.EXIT if error is None or isinstance(error, KeyboardInterrupt) else End.CRASH


def note_crashes(close: Callable[[End], None]) -> Callable[[], None]:
    """Call ``close`` when an exception ends the script. Returns how to stop noting."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        close(end_of(error))
        previous(kind, error, trace)

    def forget() -> None:
        # Whoever came after us may call our hook.
        if sys.excepthook is hook:
            sys.excepthook = previous

    sys.excepthook = hook
    return forget
