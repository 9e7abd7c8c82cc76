"""Liveness of the ranks of each followed run, on the watcher's own monotonic clock."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss, Subject
from rankscope.alerts.watch.conditions.step_past import StepPast
from rankscope.alerts.watch.liveness.attempt_liveness import AttemptLiveness, WatchedTime
from rankscope.alerts.watch.liveness.dumps import Dumps
from rankscope.alerts.watch.liveness.liveness_alerts import LivenessAlerts
from rankscope.alerts.watch.liveness.outage import LastSteps, Outage, find_outage, shortest_wait_s
from rankscope.alerts.watch.run_snapshots import RunSnapshot
from rankscope.alerts.watcher_alerts import HANG, RANK_LOST
from rankscope.analysis.evidence.liveness import patience_s
from rankscope.analysis.hang.activity import Activities, read_activities
from rankscope.base.errors import InputError
from rankscope.runs.reader import RunReader
from rankscope.runs.silence import SILENT_SECONDS, SILENT_STEPS
from rankscope.runs.world_size import LARGEST_WORLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time without a step after which a rank is silent or a run is stalled: the maximum of several limits."""

    silent_after_s: float = SILENT_SECONDS
    silent_steps: float = SILENT_STEPS
    """Limit in median step times. Another limit is twice the longest checkpoint, evaluation or repeated long step so far."""

    def seconds(self, past: StepPast | None) -> float | None:
        """Return the patience with a run; ``None`` before its first step, because a job may take any time to start."""
        usual = None if past is None else past.usual_us()
        if past is None or usual is None:
            return None
        return patience_s(usual, past.longest_us(), silent_seconds=self.silent_after_s, silent_steps=self.silent_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessReport:
    """Result of one check of an active run."""

    candidates: list[Candidate]
    decided_names: set[str]
    """Names of the alerts that were decided, found or not."""
    unknown: Collection[int]
    """Ranks for which nothing was decided."""
    moved: bool
    """The run has made a step since the watcher started."""
    unconfirmed: Collection[str] = ()
    """Names of alerts in ``candidates`` that do not fire yet."""


class LivenessMonitor:
    """Liveness of all followed runs. ``elapsed`` returns seconds of a monotonic clock, ``clock`` Unix nanoseconds."""

    def __init__(
        self, *, patience: Patience, interval_s: float, dumps: Dumps, elapsed: Callable[[], float], clock: Callable[[], int]
    ) -> None:
        self._patience = patience
        self._dumps = dumps
        self._elapsed = elapsed
        self._clock = clock
        self._time = WatchedTime(interval_s)
        self._attempts: dict[Path, tuple[AttemptLiveness, LastSteps]] = {}

    def tick(self) -> None:
        """Begin an evaluation."""
        self._time.tick(self._elapsed())

    def check(self, run: Path, snapshot: RunSnapshot, past: StepPast | None, *, subject: Subject, news: bool) -> LivenessReport:
        """Check a run. ``news``: report also what happened before the watcher started."""
        now_s = self._time.s
        liveness, last_steps = self._attempt(run, snapshot.attempt)
        liveness.observe(snapshot.ranks, now_s)
        patience_s = self._patience.seconds(past)
        verdict = liveness.judge(snapshot.ranks, float("inf") if patience_s is None else patience_s, now_s, news=news)
        alerts = LivenessAlerts(
            run=run,
            subject=subject,
            infos=snapshot.infos,
            usual_us=None if past is None else past.usual_us(),
            gpus=gpus_of(snapshot),
        )
        if verdict.stalled is False:
            self._dumps.over(run)
        outage = None
        if verdict.ended and patience_s is not None:
            outage = find_outage(run, snapshot, verdict.live, last_steps)
        quiet = outage is not None and outage.is_within(verdict.quiet)
        stalled = bool(verdict.stalled) and (news or liveness.moved)
        hung, missing, activities = None, None, None
        if quiet or stalled:
            activities = self._activities(run, snapshot)
            # A stopped process cannot write a dump.
            stopped = {rank for rank, row in activities.doing.items() if row.process == "stopped"} if activities else set()
            # Without a reason why dumps are missing, they may still arrive.
            hung, missing = self._dumps.look(run, snapshot.attempt, [rank for rank in verdict.live if rank not in stopped], now_s)
        decided = quiet and missing is not None and bool(verdict.dead)
        if outage is not None and not decided and outage.waited_s >= shortest_wait_s(past, dumps_asked=True):
            # Whether the ranks without an end are silent shows later, as does an elastic restart.
            candidates = alerts.lost(verdict.silent)
            return LivenessReport(
                candidates=candidates,
                decided_names={RANK_LOST.alertname},
                unknown=verdict.unknown | {*verdict.dead},
                moved=liveness.moved,
            )
        lost, first = self._lost(run, outage, past) if outage is not None and decided else (None, False)
        candidates, decided_names = alerts.lost(verdict.silent, {} if first else verdict.dead), {RANK_LOST.alertname}
        if lost is not None:
            candidates += alerts.outage(lost, {rank: liveness.silence_s(rank, now_s) for rank in lost.silent}, first=first)
        if verdict.stalled is False or (lost is not None and lost.silent.keys() >= {*verdict.live}):
            decided_names.add(HANG.alertname)
        elif stalled and (missing is not None or outage is None):
            candidates.append(alerts.hang(verdict, hung, missing=missing or "", activities=activities))
            decided_names.add(HANG.alertname)
        # The evaluations that an alert needs to fire count while dumps may still arrive.
        unconfirmed = {HANG.alertname} if stalled and missing is None else set[str]()
        return LivenessReport(
            candidates=candidates,
            decided_names=decided_names,
            unknown=verdict.unknown,
            moved=liveness.moved,
            unconfirmed=unconfirmed,
        )

    def _activities(self, run: Path, snapshot: RunSnapshot) -> Activities | None:
        """Return what the ranks of a stalled run are doing; ``None``: not known."""
        try:
            return read_activities(RunReader(run), snapshot.attempt, snapshot.infos, now_unix_ns=self._clock())
        except InputError:
            return None  # removed since

    def _attempt(self, run: Path, attempt: int) -> tuple[AttemptLiveness, LastSteps]:
        watched = self._attempts.get(run)
        if watched is None or watched[0].attempt != attempt:
            watched = self._attempts[run] = (AttemptLiveness(attempt), LastSteps())
            self._dumps.over(run)
        return watched

    def _lost(self, run: Path, outage: Outage, past: StepPast | None) -> tuple[Outage | None, bool]:
        """Return the quiet ranks that are lost, if any, and whether that is why the others ended."""
        answered = self._dumps.answering_ranks(run, outage.silent)
        first = outage.waited_s >= shortest_wait_s(past, dumps_asked=answered is not None)
        lost = outage.without(answered) if answered is not None else outage if first else None
        return lost, lost is not None and first

    def keep(self, runs: Collection[Path]) -> None:
        """Forget all other runs."""
        for run in self._attempts.keys() - set(runs):
            del self._attempts[run]
            self._dumps.over(run)


def gpus_of(snapshot: RunSnapshot) -> ConditionLoss | None:
    """Cost of all GPUs of a run while they do nothing; ``None`` for a run on CPUs without a price."""
    infos = snapshot.infos.values()
    price = snapshot.info.price_per_gpu_hour
    if price is None and all(info.device_kind == "cpu" for info in infos):
        return None
    world = min(LARGEST_WORLD, max((info.world_size for info in infos), default=0))
    return ConditionLoss(gpu_hours=0.0, per_hour=float(world), price=price, currency=snapshot.info.currency)
