"""Distinction of scripts that end by an exception from scripts that end cleanly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from rankscope.profiler.ring import End


def end_of(error: BaseException | None) -> End:
    """Return the end state of a script that ``error`` ended: a crash, unless it is Ctrl-C or a ``sys.exit`` with success."""
    if isinstance(error, SystemExit):
        return End.CRASH if error.code else End.EXIT
    return End.EXIT if error is None or isinstance(error, KeyboardInterrupt) else End.CRASH


def note_crashes(close: Callable[[End], None]) -> Callable[[], None]:
    """Call ``close`` when an exception ends the script. Returns a function that undoes this."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        close(end_of(error))
        previous(kind, error, trace)

    def forget() -> None:
        # A hook that was installed later may call this one.
        if sys.excepthook is hook:
            sys.excepthook = previous

    sys.excepthook = hook
    return forget
