"""The watcher: evaluates runs once per interval, raises alerts for lasting findings, and has them delivered.

A failure of one run is reported in one line and affects neither other runs nor the next evaluation. The alerts of that run stay
unchanged, because its state is unknown.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from rankscope.alerts.output import Event
from rankscope.alerts.watch.announcements import Announcer
from rankscope.alerts.watch.conditions.candidate import Candidate, Subject
from rankscope.alerts.watch.conditions.confirmation import Confirmation
from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.alerts.watch.conditions.regressions import Regressions
from rankscope.alerts.watch.delivery import Delivery
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watch.liveness.dumps import Dumps
from rankscope.alerts.watch.liveness.liveness_alerts import LivenessAlerts
from rankscope.alerts.watch.liveness.monitor import LivenessMonitor, gpus_of
from rankscope.alerts.watch.run_snapshots import RunObserver, RunSnapshot
from rankscope.alerts.watch.unreadable_files import UnreadableFiles, ranks_within
from rankscope.alerts.watch.watcher_page import Evaluation, WatcherPage
from rankscope.alerts.watch.watcher_settings import WatcherSettings
from rankscope.alerts.watcher_alerts import CRASHED, HISTORY_ALERTS, LIVENESS_ALERTS, RECORD_ALERTS
from rankscope.analysis.online import RECENT_STEPS
from rankscope.analysis.result.analysis import Analysis, Cost
from rankscope.base.errors import InputError, RankscopeError
from rankscope.base.problems import ProblemLog
from rankscope.base.text import span
from rankscope.runs.named import runs_in

logger = logging.getLogger(__name__)

FINAL_TRIES: Final = 5
"""Attempts at the last evaluation of a run that is over, one per interval: a file server may recover soon."""
FORGET_AFTER_S: Final = 3600.0
"""Time after which alerts of a run that is removed, unreadable or without new records end; nothing else would end them."""
FORGET_LIVENESS_AFTER_S: Final = 24 * 3600.0
"""The same for ``LIVENESS_ALERTS``, which are about a lack of records."""
CRASH_FIRING_S: Final = 600.0
"""Time for which an alert about a crash fires, so that a person sees it."""


class Watcher:
    """Watcher of ``path``: one run, or a folder in which runs appear and disappear.

    ``follow`` analyses active runs; ``analyse`` analyses runs that are over, as a whole, and raises ``RankscopeError``.
    ``report`` takes problems, one line each; ``emit`` takes events; ``save`` persists the ledger.
    ``clock`` returns unix nanoseconds, ``elapsed`` seconds of a monotonic clock.
    """

    def __init__(
        self,
        path: Path,
        *,
        analyse: Callable[[Sequence[Path]], Analysis],
        follow: FollowedRuns,
        delivery: Delivery,
        ledger: AlertLedger,
        options: WatcherSettings,
        report: Callable[[str], None],
        emit: Callable[[Event], None],
        save: Callable[[AlertLedger], None],
        clock: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], float] = time.monotonic,
        interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._path = path
        self._interruptible = interruptible
        self._analyse = analyse
        self._follow = follow
        self._delivery = delivery
        self.ledger = ledger
        self._options = options
        self._report = report
        self._emit = emit
        self._save = save
        self._clock = clock
        self._elapsed = elapsed
        self.page = WatcherPage()
        """Metrics and health of this watcher."""
        self._announcer = Announcer(ledger, emit=emit, report=report, save=save)
        self._observer = RunObserver()
        dumps = Dumps(follow.hang, ask=options.ask_for_dumps, report=report)
        self._liveness = LivenessMonitor(
            patience=options.patience, interval_s=options.interval_s, dumps=dumps, elapsed=elapsed, clock=clock
        )
        self._last_snapshots: dict[Path, RunSnapshot] = {}
        self._over: dict[Path, RunSnapshot] = {}
        self._final_failures: Counter[Path] = Counter()
        self._problems = ProblemLog(report)
        self._fresh_s: dict[str, float] = {}
        """Time of the last change seen in a run, by ``elapsed``."""
        self._unreadable = UnreadableFiles(report)
        self._single: Path | None = None

    def evaluate(self) -> bool:
        """Evaluate all runs once; return whether the watch is complete, which is so when its single run is over."""
        self._announcer.announce()  # left over from a watcher that was killed
        self._liveness.tick()
        runs = self._runs()
        ended = [run for run in runs if self._evaluate_run(run, runs)]
        going = {run for run in runs if run not in self._over}
        for component in (self._follow, self._observer, self._liveness, self._options.pace, self._unreadable):
            component.keep(going)
        self._forget_lost()
        # Deliver before ending anything: a receiver must get the beginning before the end.
        self._announcer.announce()
        self._deliver()
        if ended and not self._options.once:
            for run in ended:
                crashed = CRASHED.alertname in self.ledger.names(str(run))
                because = "the run ended early" if crashed else "the run is over"
                self.ledger.resolve(str(run), now_unix_ns=self._clock(), because=because, except_names=[CRASHED.alertname])
            self._announcer.announce()
            self._deliver()
        self._save(self.ledger)
        self.page.evaluated(
            Evaluation(
                runs=len(going),
                firing=sum(entry.track.state == "firing" for entry in self.ledger.entries),
                problems=len(self._problems),
                undelivered=len(self._delivery.undelivered(self.ledger)),
            )
        )
        return self._single is not None and self._single in self._over

    @property
    def has_problems(self) -> bool:
        """True if the last attempt to evaluate a run failed."""
        return bool(self._problems)

    def save(self) -> None:
        """Save the ledger before an early exit."""
        self._save(self.ledger)

    def flush(self) -> list[str]:
        """Deliver outstanding alerts; return the names of the receivers that have not accepted them."""
        self._deliver()
        self._save(self.ledger)
        return self._delivery.undelivered(self.ledger)

    def _runs(self) -> list[Path]:
        try:
            runs = runs_in(self._path)
        except OSError as error:
            self._report_problem("list", self._path, f"{self._path}: {error.strerror or error}")
            return []
        if runs == [self._path]:
            self._single = self._path
        if self._single is not None and not runs:
            self._report_problem("list", self._path, f"{self._path}: the run has disappeared; its alerts stay unchanged")
        elif ("list", self._path) in self._problems:
            self._problems.report(None, ("list", self._path))
            logger.info("%s: readable again", self._path)
        if self._options.once and not runs:
            raise InputError(self._path, "no run in it (no run.json)")
        return runs

    def _evaluate_run(self, run: Path, runs: Sequence[Path]) -> bool:
        """Evaluate one run; return whether it has just ended.

        Problems are reported; only those of a single run with ``once`` are raised.
        """
        snapshot = self._snapshot(run)
        if snapshot is None:
            return False
        remembered = str(run) in self.ledger.active or not self.ledger.names(str(run)) <= {CRASHED.alertname}
        followed = run == self._single or str(run) in self._fresh_s or remembered
        if snapshot.ended and not followed and not self._options.once:
            # It was over before the watcher started: not reported.
            self._over[run] = snapshot
            return False
        before = self._last_snapshots.get(run)
        if before is not None and before.attempt != snapshot.attempt:
            self.ledger.restart(str(run))
        changed = before != snapshot
        if changed:
            self._fresh_s[str(run)] = self._elapsed()
        if (snapshot.ended or (changed and self._due(run, runs))) and not self._judged(run, snapshot):
            return False
        if snapshot.ended:
            self._over[run] = snapshot
            self._last_snapshots.pop(run, None)
            del self._final_failures[run]
            self._set_active(run, active=False)
        elif not self._options.once:
            self._check_liveness(run, snapshot, news=run == self._single or remembered)
        return snapshot.ended

    def _judged(self, run: Path, snapshot: RunSnapshot) -> bool:
        """Judge a run; return whether to proceed with it. A run that is over gets ``FINAL_TRIES`` attempts."""
        if self._judge(run, snapshot):
            self._problems.report(None, ("analyse", run))
            self._last_snapshots[run] = snapshot
        elif snapshot.ended:
            self._final_failures[run] += 1
            return self._final_failures[run] >= FINAL_TRIES
        return True

    def _due(self, run: Path, runs: Sequence[Path]) -> bool:
        going = max(1, len(runs) - len(self._over))
        return self._options.pace.due(run, self._elapsed(), runs=going, pending=self.ledger.has_pending(str(run)))

    def _snapshot(self, run: Path) -> RunSnapshot | None:
        """Look at a run; ``None`` when it cannot be read, or was over before and still is."""
        try:
            # Only a new attempt revives a run that is over, so its files need no further look.
            if run in self._over and self._observer.is_resting(run, self._over[run].attempt):
                return None
            snapshot = self._observer.snapshot(run, now_unix_ns=self._clock(), elapsed_s=self._elapsed())
        except (RankscopeError, OSError) as error:
            problem = InputError(run, error.strerror or str(error)) if isinstance(error, OSError) else error
            self._report_problem("read", run, str(problem), problem)
            return None
        self._over.pop(run, None)
        self._problems.report(None, ("read", run))
        return snapshot

    def _judge(self, run: Path, snapshot: RunSnapshot) -> bool:
        """Analyse a run and update its alerts; return whether that succeeded."""
        began = time.process_time()
        try:
            # Only here: an interruption anywhere else could cut a change of the ledger or the store in two.
            with self._interruptible():
                analysis = self._analyse([run]) if snapshot.ended or self._options.once else self._follow.update(run)
        except RankscopeError as error:
            self._report_problem("analyse", run, str(error), error)
            return False
        except Exception as error:  # noqa: BLE001 - a bug triggered by one run must not stop the watch of the others
            self._report_problem("analyse", run, f"{run}: cannot be analysed: {type(error).__name__}: {error}")
            return False
        self._apply(run, analysis, snapshot)
        self._options.pace.analysed(run, self._elapsed(), time.process_time() - began)
        return True

    def _apply(self, run: Path, analysis: Analysis, snapshot: RunSnapshot) -> None:
        now = self._clock()
        self._unreadable.report(run, analysis.source.unreadable)
        if snapshot.ended or self._options.once:
            self._emit(
                Event(
                    event="verdict",
                    time_unix_ns=now,
                    run=str(run),
                    run_id=analysis.source.run_id or str(run),
                    summary=("[simulated GPUs] " if analysis.source.simulated else "") + analysis.verdict.summary,
                    kind=analysis.verdict.kind,
                )
            )
        conditions, decided = self._conditions(run, analysis, snapshot)
        if not snapshot.ended and not self._options.once:
            # For an active run, ``_check_liveness`` decides these, which is faster.
            conditions = [candidate for candidate in conditions if candidate.name not in LIVENESS_ALERTS]
        policy = self._options.policy
        if snapshot.ended:
            # All evidence is available: waiting adds nothing.
            policy = FiringPolicy(fire_after=1, resolve_after=policy.resolve_after, least_firing_s=policy.least_firing_s)
        attempt = analysis.ranks[0].attempt if analysis.ranks else 0
        unknown = ranks_within(run, attempt, analysis.source.unreadable)
        decided |= {candidate.name for candidate in conditions}
        confirmation = self._confirmation(run, analysis, snapshot)
        self.ledger.update(
            str(run),
            conditions,
            now_unix_ns=self._clock(),
            policy=policy,
            unknown=unknown,
            decided_names=decided,
            confirmation=confirmation,
        )

    def _confirmation(self, run: Path, analysis: Analysis, snapshot: RunSnapshot) -> Confirmation | None:
        """Return the confirmation of stragglers on new steps; ``None`` for a single look and for a verdict from windows."""
        verdict = analysis.verdict
        if snapshot.ended or self._options.once or verdict.evidence_source != "steps" or verdict.steps is None:
            return None
        return Confirmation(
            analysis.ranks[0].attempt if analysis.ranks else 0,
            verdict.steps[1],
            lambda since, at_least: self._follow.judge_since(run, since, at_least=at_least),
        )

    def _conditions(self, run: Path, analysis: Analysis, snapshot: RunSnapshot) -> tuple[list[Candidate], set[str]]:
        """Return the alerts that the records support, and the names of all alerts that the records can decide."""
        options, price = self._options, snapshot.info.price_per_gpu_hour
        subject = self._subject(snapshot)
        conditions: list[Candidate] = []
        decided = {CRASHED.alertname}
        read_all = snapshot.ended or options.once
        past = self._follow.past(run, read=read_all)
        if analysis.verdict.kind != "insufficient_data":
            decided |= {*RECORD_ALERTS} - {*HISTORY_ALERTS}
            conditions += candidates(
                analysis,
                subject,
                budgets=options.budgets,
                price=None if price is None else Cost(amount=price, currency=snapshot.info.currency or "USD"),
                # Of the steps that the analysis is about.
                rare_share=0.0 if past is None else past.rare_share(None if read_all else RECENT_STEPS),
            )
        regressions = Regressions(run=run, subject=subject, gpus=gpus_of(snapshot))
        slower = None if past is None else regressions.candidates(past, at_least=options.budgets.slower)
        if slower is not None:
            decided |= {*HISTORY_ALERTS}
            conditions += slower
        alerts = LivenessAlerts(run=run, subject=subject, infos=snapshot.infos)
        if snapshot.ended and (crashed := alerts.crashed()) is not None:
            conditions.append(crashed)
        return conditions, decided

    def _check_liveness(self, run: Path, snapshot: RunSnapshot, *, news: bool) -> None:
        try:
            report = self._liveness.check(run, snapshot, self._follow.past(run), subject=self._subject(snapshot), news=news)
        except Exception as error:  # noqa: BLE001 - as in ``_judge``
            self._report_problem("look", run, f"{run}: cannot be looked at: {type(error).__name__}: {error}")
            return
        self._problems.report(None, ("look", run))
        if report.moved:
            self._set_active(run, active=True)
        self.ledger.update(
            str(run),
            report.candidates,
            now_unix_ns=self._clock(),
            policy=self._options.policy,
            unknown=report.unknown,
            decided_names=report.decided_names,
            unconfirmed=report.unconfirmed,
        )

    def _subject(self, snapshot: RunSnapshot) -> Subject:
        return Subject(
            run_id=snapshot.run_id,
            name=snapshot.info.name,
            simulated=snapshot.info.simulated,
            dashboard_url=self._options.dashboard_url,
            runbook_url=self._options.runbook_url,
        )

    def _set_active(self, run: Path, *, active: bool) -> None:
        listed = str(run) in self.ledger.active
        if active and not listed:
            self.ledger.active.append(str(run))
        elif listed and not active:
            self.ledger.active.remove(str(run))

    def _deliver(self) -> None:
        # Save before delivery: after a crash in between, the same alert must be sent, not one with a later start.
        self._save(self.ledger)
        self._delivery.deliver(self.ledger, now_unix_ns=self._clock())

    def _report_problem(self, doing: str, path: Path, reason: str, error: RankscopeError | None = None) -> None:
        """Report a problem once, and again when it changes. With ``once`` and a single run, raise ``error`` instead."""
        if error is not None and self._options.once and path == self._path:
            raise error
        self._problems.report(reason, (doing, path))

    def _forget_lost(self) -> None:
        """End the alerts of runs that have been gone, unreadable or without a new record for too long."""
        now_s = self._elapsed()
        for run in self.ledger.runs() | set(self.ledger.active):
            silent_s = now_s - self._fresh_s.setdefault(run, now_s)
            alertnames = self.ledger.names(run)
            if silent_s >= FORGET_LIVENESS_AFTER_S:
                over = alertnames
                self._set_active(Path(run), active=False)
            elif silent_s >= FORGET_AFTER_S:
                over = alertnames - set(LIVENESS_ALERTS)
            else:
                over = alertnames & {CRASHED.alertname} if Path(run) in self._over and silent_s >= CRASH_FIRING_S else set()
            if over:
                because = f"no new record for {span(silent_s)}"
                self._report(f"{run}: {because}; ended its alerts {', '.join(sorted(over))}")
                self.ledger.resolve(run, now_unix_ns=self._clock(), because=because, names=over)
