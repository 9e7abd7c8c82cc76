"""Which ranks still record steps, by the growth of their files on the watcher's own clock, never by the times in them.

Clocks of hosts may be hours apart, and a file server may show sizes that are a minute old. Time during which the watcher itself
was suspended, as on a laptop or in a virtual machine, does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rankscope.alerts.watch.run_snapshots import RESTART_GRACE_S, RankSnapshot

LONGEST_LOOK_S: Final = 30.0
"""Most watched time between two looks, or two intervals if that is longer."""
GOING: Final = 0.25
"""Share of the patience within which an active rank has recorded a step."""


class WatchedTime:
    """Seconds of a monotonic clock during which the watcher was running."""

    def __init__(self, interval_s: float) -> None:
        self._most_s = max(LONGEST_LOOK_S, 2 * interval_s)
        self._last_s: float | None = None
        self.s = 0.0

    def tick(self, monotonic_s: float) -> None:
        """Count the time since the last look."""
        if self._last_s is not None:
            self.s += max(0.0, min(self._most_s, monotonic_s - self._last_s))
        self._last_s = monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessVerdict:
    """State of the ranks of a run that has not ended."""

    stalled: bool | None
    """No rank has finished a step for longer than the patience; ``None``: not known (yet)."""
    stalled_s: float
    """Watched seconds since the last step of any rank."""
    silent: list[int]
    """Ranks without a step for longer than the patience, while others are active."""
    quiet: list[int]
    """Ranks without a step for longer than the patience, whether or not others are active."""
    dead: dict[int, str]
    """Ranks that crashed or were killed while others have not ended, and how."""
    ended: bool
    """A rank crashed or was killed while others have not ended; it may still be replaced by an elastic restart."""
    unknown: frozenset[int]
    """Ranks whose state is not known."""
    live: list[int]
    """Ranks that have not ended and are observed."""


@dataclass(slots=True)
class _Rank:
    steps: tuple[str, int] | None
    moved_s: float
    """Watched time when its steps last grew, or when it was first seen."""
    moved: bool = False
    died_s: float | None = None
    dead_at_first_look: bool = False


@dataclass(slots=True)
class AttemptLiveness:
    """The ranks of one attempt while they are watched."""

    attempt: int
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    moved: bool = False
    """A rank has made a step since the first look."""

    def observe(self, snapshots: Mapping[int, RankSnapshot], now_s: float) -> None:
        """Record the state of the ranks at ``now_s`` of the watched time."""
        for rank, state in snapshots.items():
            watched = self._ranks.get(rank)
            if watched is None:
                watched = self._ranks[rank] = _Rank(state.steps, now_s, dead_at_first_look=_is_dead(state))
            elif state.steps != watched.steps:
                watched.steps, watched.moved_s = state.steps, now_s
                watched.moved = self.moved = True
            if watched.died_s is None and _is_dead(state):
                watched.died_s = now_s

    def judge(
        self, snapshots: Mapping[int, RankSnapshot], patience_s: float, now_s: float, *, news: bool = True
    ) -> LivenessVerdict:
        """Judge which ranks are silent or dead; ``snapshots``: the last one at each rank.

        ``news``: report events before the first look even if no rank has made a step since.
        """
        live = [rank for rank, state in snapshots.items() if _is_live(state)]
        readable = [rank for rank in live if snapshots[rank].readable]
        silence = {rank: now_s - self._ranks[rank].moved_s for rank in readable}
        going = [rank for rank in readable if self._ranks[rank].moved and silence[rank] <= GOING * patience_s]
        quiet = [rank for rank in readable if silence[rank] >= patience_s]
        stalled_s = min(silence.values(), default=0.0)
        stalled: bool | None = None
        if any(self._ranks[rank].moved and silence[rank] < patience_s for rank in readable):
            stalled = False
        elif live and len(quiet) == len(live):
            # A job without any step is still starting, however long that takes.
            stalled = True if any(snapshots[rank].steps is not None for rank in live) else None
        dead = {
            rank: str(state.info.end_reason)
            for rank, state in snapshots.items()
            if live and state.info is not None and self._is_dead_for_good(rank, now_s, news=news or self.moved)
        }
        silent = quiet if going else []
        ended = bool(live) and any(self._is_news(rank, news=news or self.moved) for rank in snapshots)
        others = (
            rank for rank, state in snapshots.items() if state.info is not None and not _is_live(state) and not _is_dead(state)
        )
        certain = {*going, *silent, *dead, *others}
        return LivenessVerdict(
            stalled=stalled,
            stalled_s=stalled_s,
            silent=silent,
            quiet=quiet,
            dead=dead,
            ended=ended,
            unknown=frozenset(snapshots.keys() - certain),
            live=live,
        )

    def silence_s(self, rank: int, now_s: float) -> float:
        """Watched seconds since the last step of a rank, or since it was first seen."""
        return now_s - self._ranks[rank].moved_s

    def _is_news(self, rank: int, *, news: bool) -> bool:
        """Return whether a rank died; without ``news``, only if it died after the first look."""
        watched = self._ranks[rank]
        return watched.died_s is not None and (news or not watched.dead_at_first_look)

    def _is_dead_for_good(self, rank: int, now_s: float, *, news: bool) -> bool:
        """Return whether a rank died and had the time to be replaced by an elastic restart."""
        died_s = self._ranks[rank].died_s
        return died_s is not None and now_s - died_s >= RESTART_GRACE_S and self._is_news(rank, news=news)


def _is_dead(state: RankSnapshot) -> bool:
    return state.info is not None and state.info.end_reason in ("crash", "killed")


def _is_live(state: RankSnapshot) -> bool:
    """Return whether a rank has a ``rank.json``, has not ended, and its recorder is not disabled."""
    info = state.info
    return info is not None and info.end_unix_ns is None and info.end_reason is None and info.disabled_reason is None
