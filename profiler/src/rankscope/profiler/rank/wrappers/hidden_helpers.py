"""Helpers are children of the rank that the script did not start: waiting for any child must not wait for them.

A script may wait for its children until it has none. The helper ends after the rank, so that would never be.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from rankscope.base.process import children_of

HELPERS: Final[set[int]] = set()
"""Process ids of the helpers that this process has started and that it has not waited for."""
_ANY: Final = -1


def hide_helpers() -> None:
    """Make the functions of ``os`` that wait for any child ignore the helpers. To be called once in a process."""
    _hide("wait", lambda: True)
    _hide("wait3", lambda *_: True)
    _hide("waitpid", lambda pid, *_: pid == _ANY)
    _hide("wait4", lambda pid, *_: pid == _ANY)
    _hide("waitid", lambda kind, *_: kind == os.P_ALL)
    os.register_at_fork(after_in_child=HELPERS.clear)


def _hide(name: str, waits_for_any: Callable[..., bool]) -> None:
    original = getattr(os, name, None)
    if original is None:
        return

    @wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if not HELPERS or not waits_for_any(*args, **kwargs):
            return original(*args, **kwargs)
        while True:
            if _has_only_helpers():
                raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
            result = original(*args, **kwargs)
            pid = getattr(result, "si_pid", None) if name == "waitid" else result[0]
            if pid not in HELPERS:
                return result
            HELPERS.discard(pid)

    setattr(os, name, wait)


def _has_only_helpers() -> bool:
    """Return whether this process has helpers and no other children; false where the system does not list them."""
    children = children_of("self")
    return bool(children) and children <= HELPERS
