"""Of all runs that are watched: who has fallen silent, and what stands still."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rankscope.alerts.owners import DISABLED, SILENT, STALLED
from rankscope.alerts.watch.candidate import Candidate, Loss, Subject
from rankscope.alerts.watch.dumps import Dumps
from rankscope.alerts.watch.past import StepPast
from rankscope.alerts.watch.runs import RESTART_GRACE_S, Glance, RankSeen
from rankscope.alerts.watch.standstill import Standing

LONGEST_LOOK_S: Final = 30.0
"""As much time passes between two looks at most, or two intervals: what is beyond was no watching."""
GOING: Final = 0.25
"""Who has grown within this share of the patience goes on."""


class WatchedTime:
    """Seconds that were watched, of a monotonic clock."""

    def __init__(self, interval_s: float) -> None:
        self._most_s = max(LONGEST_LOOK_S, 2 * interval_s)
        self._last_s: float | None = None
        self.s = 0.0

    def tick(self, monotonic_s: float) -> None:
        """A look is taken."""
        if self._last_s is not None:
            self.s += max(0.0, min(self._most_s, monotonic_s - self._last_s))
        self._last_s = monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What can be told of the ranks of a run that has not ended."""

    stalled: bool | None
    """No rank has finished a step for longer than the patience; ``None``: not known (yet)."""
    standing_s: float
    """How long all of them have been seen without a step."""
    silent: list[int]
    """Without a step for longer than that, while others go on."""
    gone: dict[int, str]
    """Ranks that crashed or were killed while others have not ended, and how."""
    unknown: frozenset[int]
    """Ranks of which it cannot be told."""
    live: list[int]
    """Ranks that have not ended and are observed."""


@dataclass(slots=True)
class _Rank:
    steps: tuple[str, int] | None
    moved_s: float
    """Watched time when its steps grew last, or when it was seen first."""
    moved: bool = False
    gone_s: float | None = None


@dataclass(slots=True)
class Life:
    """The ranks of one attempt while they are watched."""

    attempt: int
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    moved: bool = False
    """Whether any rank has made a step meanwhile."""

    def look(self, seen: Mapping[int, RankSeen], now_s: float) -> None:
        """Take in what is there at ``now_s`` of the watched time."""
        for rank, one in seen.items():
            known = self._ranks.get(rank)
            if known is None:
                known = self._ranks[rank] = _Rank(one.steps, now_s)
            elif one.steps != known.steps:
                known.steps, known.moved_s = one.steps, now_s
                known.moved = self.moved = True
            if known.gone_s is None and _is_gone(one):
                known.gone_s = now_s

    def judge(self, seen: Mapping[int, RankSeen], patience_s: float, now_s: float) -> Signs:
        """Who is silent; ``seen`` as last looked at."""
        live = [rank for rank, one in seen.items() if _is_live(one)]
        there = [rank for rank in live if seen[rank].readable]
        silence = {rank: now_s - self._ranks[rank].moved_s for rank in there}
        going = [rank for rank in there if self._ranks[rank].moved and silence[rank] <= GOING * patience_s]
        quiet = [rank for rank in there if silence[rank] >= patience_s]
        standing = min(silence.values(), default=0.0)
        stalled: bool | None = None
        if any(self._ranks[rank].moved and silence[rank] < patience_s for rank in there):
            stalled = False
        elif live and len(quiet) == len(live):
            # That none has ever made a step is a job that starts, however long it takes.
            stalled = True if any(seen[rank].steps is not None for rank in live) else None
        gone = {
            rank: str(one.info.end_reason)
            for rank, one in seen.items()
            if live and one.info is not None and _is_gone(one) and now_s - (self._ranks[rank].gone_s or now_s) >= RESTART_GRACE_S
        }
        silent = quiet if going else []
        others = (rank for rank, one in seen.items() if one.info is not None and not _is_live(one) and not _is_gone(one))
        certain = {*going, *silent, *gone, *others}
        return Signs(
            stalled=stalled,
            standing_s=standing,
            silent=silent,
            gone=gone,
            unknown=frozenset(seen.keys() - certain),
            live=live,
        )


def _is_gone(one: RankSeen) -> bool:
    return one.info is not None and one.info.end_reason in ("crash", "killed")


def _is_live(one: RankSeen) -> bool:
    """Neither ended nor without a recorder. One that has left no word yet who it is may be anything."""
    info = one.info
    return info is not None and info.end_unix_ns is None and info.end_reason is None and info.disabled_reason is None


SILENT_AFTER_S: Final = 120.0
"""Longer than file servers show what is old, which is a minute as a rule."""
SILENT_STEPS: Final = 10.0
LARGEST_WORLD: Final = 1_000_000
"""What a file claims beyond is not believed."""
_TIMES_LONGEST: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long nobody need be seen to make a step: the longest of all these."""

    silent_after_s: float = SILENT_AFTER_S
    silent_steps: float = SILENT_STEPS
    """Times the usual step. Besides, twice what a checkpoint, an evaluation or another step that takes long has taken before."""

    def seconds(self, past: StepPast | None) -> float | None:
        """``None`` before the first step: how long a job takes to start nobody knows."""
        usual = None if past is None else past.usual_us()
        if past is None or usual is None:
            return None
        return max(self.silent_after_s, self.silent_steps * usual / 1e6, _TIMES_LONGEST * past.longest_us() / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one look tells."""

    found: list[Candidate]
    of: set[str]
    """Names of the alerts that it tells of."""
    unknown: Collection[int]
    """Ranks of which it tells nothing."""
    moved: bool
    """Whether the run has made a step since it is watched."""


class Lives:
    """Looks at runs again and again. ``elapsed``: a monotonic clock, in seconds."""

    def __init__(self, *, patience: Patience, interval_s: float, dumps: Dumps, elapsed: Callable[[], float]) -> None:
        self._patience = patience
        self._dumps = dumps
        self._elapsed = elapsed
        self._time = WatchedTime(interval_s)
        self._lives: dict[Path, Life] = {}

    def tick(self) -> None:
        """An evaluation begins."""
        self._time.tick(self._elapsed())

    def look(self, run: Path, seen: Glance, past: StepPast | None, *, subject: Subject, news: bool) -> Told:
        """``news``: that nobody makes a step is news, for somebody was seen to before."""
        now_s = self._time.s
        life = self._lives.get(run)
        if life is None or life.attempt != seen.attempt:
            life = self._lives[run] = Life(seen.attempt)
            self._dumps.over(run)
        life.look(seen.ranks, now_s)
        patience_s = self._patience.seconds(past)
        signs = life.judge(seen.ranks, float("inf") if patience_s is None else patience_s, now_s)
        standing = Standing(
            run=run,
            subject=subject,
            infos=seen.infos,
            usual_us=None if past is None else past.usual_us(),
            gpus=gpus_of(seen),
        )
        found, of = [*standing.silent(signs), *standing.disabled()], {SILENT.alertname, DISABLED.alertname}
        if signs.stalled is False:
            self._dumps.over(run)
            of.add(STALLED.alertname)
        elif signs.stalled and (news or life.moved) and (stalled := self._stalled(run, seen, signs, standing)) is not None:
            found.append(stalled)
            of.add(STALLED.alertname)
        return Told(found=found, of=of, unknown=signs.unknown, moved=life.moved)

    def _stalled(self, run: Path, seen: Glance, signs: Signs, standing: Standing) -> Candidate | None:
        """``None`` while dumps may still come that tell who it is."""
        report, missing = self._dumps.look(run, seen.attempt, signs.live, self._time.s)
        return None if missing is None else standing.stalled(signs, report, missing=missing)

    def keep(self, runs: Collection[Path]) -> None:
        """Remember nothing of other runs than these."""
        for run in self._lives.keys() - set(runs):
            del self._lives[run]
            self._dumps.over(run)


def gpus_of(seen: Glance) -> Loss | None:
    """What all GPUs of a run cost while they do nothing; ``None`` where there are none and nobody has priced the ranks."""
    infos = seen.infos.values()
    price = seen.info.price_per_gpu_hour
    if price is None and all(info.device_kind == "cpu" for info in infos):
        return None
    world = min(LARGEST_WORLD, max((info.world_size for info in infos), default=0))
    return Loss(gpu_hours=0.0, per_hour=float(world), price=price, currency=seen.info.currency)
