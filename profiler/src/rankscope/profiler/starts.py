"""Assignment of the ranks of a job that starts several times to attempts.

Ranks whose process group has a store of its own agree there on an id of their start (``rank/identity.py``). The store that an
elastic agent lends to its workers is the same in all starts, and the agent counts only the restarts of its own workers. The
ranks of one start may therefore have different counts, and nothing in their environment distinguishes one start from the next.
Two facts do: in each start every rank takes its place in an attempt once, and no process of a later start begins before the
first step of an earlier one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from rankscope.base.process import stat_fields
from rankscope.runs.records import AttemptInfo, RankInfo

_SKEW_NS: Final = 10 * 10**9
"""Largest assumed difference between the clocks of two hosts."""


def start_key(environment: Mapping[str, str]) -> str | None:
    """Return a key that distinguishes the job of an elastic agent from others in the same folder; ``None`` without an agent.

    The key leaves out the master address: the agents of one job may know the same host by different names.
    """
    job = environment.get("TORCHELASTIC_RUN_ID")
    if job is None:
        return None
    text = f"{job}\0{environment.get('MASTER_PORT', '')}"
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def process_start_unix_ns(pid: int | None = None) -> int | None:
    """Return when a process of this host (``None``: this process) began, to a hundredth of a second.

    Returns ``None`` if the process has ended or its start is not known.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = stat_fields("self" if pid is None else pid)
        if fields[0] not in ("Z", "X"):
            since_boot_ns = int(fields[19]) * (10**9 // os.sysconf("SC_CLK_TCK"))
            return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns
    return None


def is_same_job(own: AttemptInfo, other: AttemptInfo) -> bool:
    """Return whether both attempts belong to the same job and have the same number of ranks."""
    return (other.start_key, other.world_size) == (own.start_key, own.world_size)


def is_same_start(own: AttemptInfo, other: AttemptInfo) -> bool | None:
    """Return whether both ranks began in the same start; ``None`` where the id of a start is not known."""
    return None if own.start_id is None or other.start_id is None else own.start_id == other.start_id


def is_earlier(attempt: AttemptInfo, others: Iterable[RankInfo], *, host: str, began_unix_ns: int | None) -> bool:
    """Return whether ``attempt``, with its ranks ``others``, was under way before a process on ``host`` began."""
    if began_unix_ns is None:
        return False
    for other in others:
        if other.end_unix_ns is not None and other.end_unix_ns < began_unix_ns:
            return True
        if other.host == host and other.start_unix_ns < began_unix_ns:
            return True
    return attempt.start_unix_ns + _SKEW_NS < began_unix_ns


def is_alive(rank: RankInfo, host: str) -> bool:
    """Return whether the process of ``rank`` is on ``host`` and has not ended: then this is not a later start."""
    if rank.host != host or rank.end_unix_ns is not None:
        return False
    began = process_start_unix_ns(rank.pid)
    # A process that began after the rank's first step is another one with a reused pid.
    return began is not None and began <= rank.start_unix_ns


def is_over(rank: RankInfo, host: str) -> bool:
    """Return whether the process of ``rank`` is known to have ended: it has a recorded end, or it was on ``host`` and is gone."""
    return rank.end_unix_ns is not None or (rank.host == host and not is_alive(rank, host))
