"""Liveness of the ranks of each followed run, on the watcher's own monotonic clock."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.alerts.owners import HANG, RANK_LOST
from rankscope.alerts.watch.candidate import Candidate, Loss, Subject
from rankscope.alerts.watch.dumps import Dumps
from rankscope.alerts.watch.regressions import StepPast
from rankscope.alerts.watch.runs import Glance
from rankscope.alerts.watch.signs import Life, Signs, WatchedTime
from rankscope.alerts.watch.standstill import Standing

SILENT_AFTER_S: Final = 120.0
"""Longer than the caches of file servers show old sizes, typically a minute."""
SILENT_STEPS: Final = 10.0
LARGEST_WORLD: Final = 1_000_000
"""Largest plausible world size; larger values in a file are capped."""
_TIMES_LONGEST: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time without a step after which a rank is silent or a run is stalled: the maximum of several limits."""

    silent_after_s: float = SILENT_AFTER_S
    silent_steps: float = SILENT_STEPS
    """Limit in median step times. Another limit is twice the longest checkpoint, evaluation or repeated long step so far."""

    def seconds(self, past: StepPast | None) -> float | None:
        """Return the patience with a run; ``None`` before its first step, because a job may take any time to start."""
        usual = None if past is None else past.usual_us()
        if past is None or usual is None:
            return None
        return max(self.silent_after_s, self.silent_steps * usual / 1e6, _TIMES_LONGEST * past.longest_us() / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeReport:
    """Result of one look at an active run."""

    found: list[Candidate]
    of: set[str]
    """Names of the alerts that were decided, found or not."""
    unknown: Collection[int]
    """Ranks for which nothing was decided."""
    moved: bool
    """The run has made a step since the watcher started."""


class Lives:
    """Liveness of all followed runs. ``elapsed`` returns seconds of a monotonic clock."""

    def __init__(self, *, patience: Patience, interval_s: float, dumps: Dumps, elapsed: Callable[[], float]) -> None:
        self._patience = patience
        self._dumps = dumps
        self._elapsed = elapsed
        self._time = WatchedTime(interval_s)
        self._lives: dict[Path, Life] = {}

    def tick(self) -> None:
        """Begin an evaluation."""
        self._time.tick(self._elapsed())

    def look(self, run: Path, seen: Glance, past: StepPast | None, *, subject: Subject, news: bool) -> LifeReport:
        """Look at a run. ``news``: report also what happened before the watcher started."""
        now_s = self._time.s
        life = self._lives.get(run)
        if life is None or life.attempt != seen.attempt:
            life = self._lives[run] = Life(seen.attempt)
            self._dumps.over(run)
        life.look(seen.ranks, now_s)
        patience_s = self._patience.seconds(past)
        signs = life.judge(seen.ranks, float("inf") if patience_s is None else patience_s, now_s, news=news)
        standing = Standing(
            run=run,
            subject=subject,
            infos=seen.infos,
            usual_us=None if past is None else past.usual_us(),
            gpus=gpus_of(seen),
        )
        found, of = standing.lost(signs), {RANK_LOST.alertname}
        if signs.stalled is False:
            self._dumps.over(run)
            of.add(HANG.alertname)
        elif signs.stalled and (news or life.moved) and (stalled := self._stalled(run, seen, signs, standing)) is not None:
            found.append(stalled)
            of.add(HANG.alertname)
        return LifeReport(found=found, of=of, unknown=signs.unknown, moved=life.moved)

    def _stalled(self, run: Path, seen: Glance, signs: Signs, standing: Standing) -> Candidate | None:
        """Return the alert about a stalled run; ``None`` while dumps that name the culprit may still arrive."""
        report, missing = self._dumps.look(run, seen.attempt, signs.live, self._time.s)
        return None if missing is None else standing.hang(signs, report, missing=missing)

    def keep(self, runs: Collection[Path]) -> None:
        """Forget all other runs."""
        for run in self._lives.keys() - set(runs):
            del self._lives[run]
            self._dumps.over(run)


def gpus_of(seen: Glance) -> Loss | None:
    """Cost of all GPUs of a run while they do nothing; ``None`` for a run on CPUs without a price."""
    infos = seen.infos.values()
    price = seen.info.price_per_gpu_hour
    if price is None and all(info.device_kind == "cpu" for info in infos):
        return None
    world = min(LARGEST_WORLD, max((info.world_size for info in infos), default=0))
    return Loss(gpu_hours=0.0, per_hour=float(world), price=price, currency=seen.info.currency)
