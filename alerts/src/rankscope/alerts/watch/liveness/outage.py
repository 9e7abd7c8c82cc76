"""Ranks that fell silent before the others ended, as on a host that lost power: they are the culprits, not those that crashed.

When a host disappears, its ranks record no end. The others wait for them in a collective until their connections time out, and
then crash, or their launcher kills them. No two hosts' clocks are compared:

- A rank that failed by itself ends within a step of its own last one. A rank that waited ends much later, by its own clock.
- A rank that fell silent before the others ended has made no more steps than they have, by the number of its last step.
- A rank whose recorder answers a request of the watcher is not silent: it waits, too.

A container that is killed with all its processes resets its connections, and the others crash within the step. Then it remains
open who was first, and ranks that neither ended nor answer are reported in addition to those that crashed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rankscope.alerts.watch.conditions.step_past import StepPast
from rankscope.alerts.watch.run_snapshots import RankSnapshot, RunSnapshot
from rankscope.analysis.trace.possible import are_possible_steps
from rankscope.runs.follow import last_rows
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import RankInfo
from rankscope.runs.run_files import real_run

WAITED_S: Final = 10.0
"""Shortest wait before its end of a rank that did not fail by itself: cleaning up after an exception takes seconds, too."""
WAITED_STEPS: Final = 2.0
"""The same in usual steps: a failure ends a rank in the middle of a step."""
STEPS_AHEAD: Final = 1
"""Most steps by which a rank may be ahead of those that wait for it: a pipeline's stages do not end a step together."""
TAIL_ROWS: Final = 1024
"""Last rows in which the last intact one is searched."""


class LastStep(NamedTuple):
    """Last recorded step of a rank."""

    step: int
    start_unix_ns: int
    wall_us: float

    @property
    def end_unix_ns(self) -> int:
        """End of the step by the clock of the rank's host."""
        return self.start_unix_ns + int(self.wall_us * 1e3)


class LastSteps:
    """Last step of each rank of an attempt; a file is read again only after it has grown."""

    def __init__(self) -> None:
        self._cached_steps: dict[int, tuple[tuple[str, int], LastStep | None]] = {}

    def read(self, run: Path, attempt: int, rank: int, snapshot: RankSnapshot) -> LastStep | None:
        """Return the last step of a rank; ``None`` if it has none that can be read."""
        if snapshot.steps is None:
            return None
        cached = self._cached_steps.get(rank)
        if cached is None or cached[0] != snapshot.steps:
            cached = self._cached_steps[rank] = (snapshot.steps, _last_step(rank_dir(real_run(run), attempt, rank)))
        return cached[1]


def _last_step(folder: Path) -> LastStep | None:
    try:
        rows = last_rows(folder, TAIL_ROWS)
    except OSError:
        return None  # the analysis reports why
    rows = rows[are_possible_steps(rows)]
    if not len(rows):
        return None
    return LastStep(int(rows["step"][-1]), int(rows["start_unix_ns"][-1]), float(rows["wall_us"][-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Ranks without an end that made no step after others had crashed or were killed."""

    silent: dict[int, LastStep | None]
    """Last steps of the ranks that have not ended; ``None``: no step is known."""
    ended: dict[int, str]
    """Ranks that crashed or were killed, and how."""
    waited_s: float
    """Shortest time between the last step and the end of one of these, by its own clock; 0 if that is unknown."""

    def is_within(self, quiet: Collection[int]) -> bool:
        """Return whether silent ranks are known, and all of them are ``quiet``."""
        return bool(self.silent) and self.silent.keys() <= {*quiet}

    def without(self, answered: Collection[int]) -> Outage | None:
        """Leave out ranks whose recorder answered; ``None`` if no other is left."""
        silent = {rank: last for rank, last in self.silent.items() if rank not in answered}
        return Outage(silent=silent, ended=self.ended, waited_s=self.waited_s) if silent else None


def find_outage(run: Path, snapshot: RunSnapshot, live: Collection[int], last_steps: LastSteps) -> Outage | None:
    """Return the ranks of ``live`` that may be lost, with those that ended; ``None`` if one of them went on after these.

    ``live``: ranks that have not ended; those that cannot be read now are left out. Their silence is not judged here.
    """
    last = {rank: last_steps.read(run, snapshot.attempt, rank, state) for rank, state in snapshot.ranks.items()}
    ended = {rank: info for rank, info in sorted(snapshot.infos.items()) if info.end_reason in ("crash", "killed")}
    furthest = max((step.step for rank in ended if (step := last[rank]) is not None), default=0)
    if any(step.step > furthest + STEPS_AHEAD for rank in live if (step := last[rank]) is not None):
        return None
    return Outage(
        silent={rank: last[rank] for rank in sorted(live) if snapshot.ranks[rank].readable},
        ended={rank: str(info.end_reason) for rank, info in ended.items()},
        waited_s=min((_waited_s(info, last[rank]) for rank, info in ended.items()), default=0.0),
    )


def _waited_s(info: RankInfo, last: LastStep | None) -> float:
    """Time between the last step of a rank and its end, both by the clock of its host; 0 if unknown."""
    return 0.0 if last is None or info.end_unix_ns is None else max(0.0, (info.end_unix_ns - last.end_unix_ns) / 1e9)


def shortest_wait_s(past: StepPast | None, *, dumps_asked: bool) -> float:
    """Wait after which a rank did not fail by itself. ``dumps_asked``: the silent ranks were asked for an answer, and gave none.

    Without an answer to expect, a rank may as well have failed in a checkpoint or evaluation as long as the longest so far.
    """
    usual_us = 0.0 if past is None else past.usual_us() or 0.0
    longest_us = 0.0 if past is None or dumps_asked else past.longest_us()
    return max(WAITED_S, WAITED_STEPS * usual_us / 1e6, longest_us / 1e6)
