"""Waiting in tests for what another thread or process does."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 180.0
"""Far more than anything takes on a machine that has ten times as much to do as cores."""
POLL_S = 0.02


def wait_until(
    condition: Callable[..., Any],
    *,
    timeout: float = DEADLINE_S,
    process: subprocess.Popen[Any] | None = None,
    details: Callable[[], object] = str,
    poll_s: float = POLL_S,
) -> Any:
    """Call ``condition`` until its result is true, and return that result; fail with its source after ``timeout`` seconds.

    The end of ``process`` is a failure at once. ``details``: what a failure also prints, such as the log of a process.
    """
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        ended = None if process is None else process.poll()
        assert ended is None, f"the process ended with status {ended} before: {_source(condition)}\n{details()}"
        assert time.monotonic() < deadline, f"still {result!r} after {timeout:.0f} s: {_source(condition)}\n{details()}"
        time.sleep(poll_s)
    return result


async def wait_in_loop(condition: Callable[[], Any]) -> Any:
    """Like ``wait_until``, in a running event loop, which goes on meanwhile."""
    deadline = time.monotonic() + DEADLINE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, f"still {result!r} after {DEADLINE_S:.0f} s: {_source(condition)}"
        await asyncio.sleep(POLL_S)
    return result


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
