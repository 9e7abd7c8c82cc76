"""Ends of ranks that no helper recorded, because it was killed with its rank, as Ray kills a worker and its children."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rankscope.profiler.starts import is_over
from rankscope.runs.follow import last_rows
from rankscope.runs.paths import rank_dir, rank_file
from rankscope.runs.reader import RunReader, is_run
from rankscope.runs.records import EndReason, RankInfo
from rankscope.runs.small_files import write_record

_DIED: Final = ("crash", "killed")


def complete_ends(run_dir: Path, ranks: frozenset[tuple[int, int]], status: int) -> None:
    """Record the ends of those of ``ranks`` (attempt and rank) that have none and whose processes on this host are gone.

    ``status``: exit status of the job. If it is 0, ranks of the last attempt ended well, unless one of that attempt died; all
    others were killed. Never raises ``OSError``.
    """
    if not is_run(run_dir):
        return
    reader, host = RunReader(run_dir), socket.gethostname()
    infos = {place: info for place in ranks if (info := reader.rank(*place)) is not None}
    last = max((attempt for attempt, _ in infos), default=0)
    died = {attempt for (attempt, _), info in infos.items() if info.end_reason in _DIED}
    for (attempt, rank), info in infos.items():
        if info.end_reason is not None or not is_over(info, host):
            continue
        reason: EndReason = "killed" if status or attempt != last or attempt in died else "exit"
        ended = msgspec.structs.replace(info, end_unix_ns=_last_sign_ns(reader.path, attempt, info), end_reason=reason)
        with suppress(OSError):
            write_record(rank_file(run_dir, attempt, rank), ended)


def _last_sign_ns(run_dir: Path, attempt: int, info: RankInfo) -> int:
    """Return the end of the last recorded step, which is the last known sign of life of a rank."""
    with suppress(OSError):
        rows = last_rows(rank_dir(run_dir, attempt, info.rank), 1)
        if len(rows):
            return int(rows["start_unix_ns"][-1]) + int(rows["wall_us"][-1] * 1000)
    return info.start_unix_ns
