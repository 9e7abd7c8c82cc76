"""Ranks of the processes whose logs NCCL Inspector wrote: a log has ranks in communicators, and none in the job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.collectives.world import connected
from rankscope.analysis.durations.logs import ProcessLog
from rankscope.analysis.result.text import counted

MISSING: Final = -1
"""Stands for the members of a communicator whose logs are missing."""


@dataclass(slots=True)
class LogsByRank:
    """Logs by rank."""

    ranks: dict[int, ProcessLog]
    world_size: int
    names: dict[int, str] = field(default_factory=dict)
    """Process of each rank, where ranks are numbers that only this analysis gives."""

    def members(self) -> dict[str, list[int]]:
        """Return the ranks of each communicator, with ``MISSING`` where not all are known."""
        ranks: dict[str, dict[int, int]] = {}
        sizes: dict[str, int] = {}
        for rank, log in self.ranks.items():
            for name, group in log.groups.items():
                ranks.setdefault(name, {})[group.place or 0] = rank
                sizes[name] = group.size or 1
        return {
            name: [places[place] for place in sorted(places)] + [MISSING] * (len(places) < sizes[name])
            for name, places in ranks.items()
        }


def logs_by_rank(logs: Sequence[ProcessLog], warnings: list[str]) -> LogsByRank:
    """Return the rank of each process: its rank in the largest communicator, if that is the same for all of them.

    Otherwise processes are numbered by host and process id, with a warning. Of several jobs one after the other, only the last
    counts.
    """
    chosen = _last_job(_newest(logs, warnings), warnings)
    largest = max(group.size or 1 for log in chosen for group in log.groups.values())
    ranks: dict[int, ProcessLog] = {}
    shared = set.intersection(*(set(log.groups) for log in chosen))
    if any(log.groups[name].size == largest for log in chosen for name in shared):
        for log in chosen:
            places = {group.place or 0 for group in log.groups.values() if group.size == largest}
            if len(places) == 1:
                ranks.setdefault(places.pop(), log)
        if len(ranks) == len(chosen):
            return LogsByRank(dict(sorted(ranks.items())), largest)
    ordered = sorted(chosen, key=lambda log: (_natural(log.host), log.pid))
    warnings.append(
        "no communicator has all processes, so ranks are numbered by host and process id; the job may number them otherwise"
    )
    names = {rank: f"process {log.pid} on {log.host}" for rank, log in enumerate(ordered)}
    return LogsByRank(dict(enumerate(ordered)), max(largest, len(ordered)), names)


def _newest(logs: Sequence[ProcessLog], warnings: list[str]) -> list[ProcessLog]:
    """Return one log per process."""
    newest: dict[tuple[str, int], ProcessLog] = {}
    for log in sorted(logs, key=lambda log: (log.last_us, log.path)):
        before = newest.get((log.host, log.pid))
        if before is not None:
            warnings.append(f"two logs of process {log.pid} on {log.host}; {log.path} is read, {before.path} is not")
        newest[log.host, log.pid] = log
    return list(newest.values())


def _last_job(logs: Sequence[ProcessLog], warnings: list[str]) -> list[ProcessLog]:
    """Return the logs of the last job. Processes that share no communicator are of different jobs if one ended before."""
    number = connected(log.groups for log in logs)
    jobs: dict[int, list[ProcessLog]] = {}
    for log in logs:
        jobs.setdefault(number[next(iter(log.groups))], []).append(log)
    last = max(jobs.values(), key=lambda job: max(log.last_us for log in job))
    began = min(log.first_us for log in last)
    last_logs = [log for job in jobs.values() if max(log.last_us for log in job) >= began for log in job]
    if len(last_logs) < len(logs):
        warnings.append(f"{counted(len(logs) - len(last_logs), 'log')} left out, of jobs that ended before the last one began")
    return last_logs


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``node2`` before ``node10``."""
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in re.split(r"(\d{1,18})", name)]
