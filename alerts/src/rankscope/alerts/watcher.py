"""Follows runs: analyses them again and again, turns lasting findings into alerts, and has them delivered.

Whatever goes wrong with one run is reported in one line and costs only that run, only this time: its alerts stay as they are,
because what cannot be read is neither well nor ill.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from rankscope.alerts.delivery import Delivery
from rankscope.alerts.events import Event
from rankscope.alerts.findings import Candidate, candidates
from rankscope.alerts.findings_log import FINDING_SCHEMA, FindingRecord, append_finding
from rankscope.alerts.hysteresis import Policy
from rankscope.alerts.ledger import Entry, Ledger, Status
from rankscope.alerts.watched_run import Glance, discover, glance, last_attempt, ranks_within, why_unreadable
from rankscope.analysis.result import Analysis
from rankscope.runs.errors import InputError, RankscopeError

FINAL_TRIES: Final = 5
"""So often is a run that is over evaluated when that fails, one evaluation after the other: a file server may be back soon."""
SHOWN: Final = 5
"""Of the files of a run that cannot be read; when a file server is away they are thousands."""
FORGET_AFTER_S: Final = 3600.0
"""Alerts of a run that has been gone, unreadable or without a new record for this long are ended: nothing else would end them."""


class Analyse(Protocol):
    """``rankscope.analysis.engine.analyze``, as far as the watcher is concerned. Raises ``RankscopeError``."""

    def __call__(self, paths: Sequence[Path], /) -> Analysis:
        """Analyse one run."""


class Follow(Protocol):
    """``rankscope.alerts.following.Following``: analyses of runs that go on. Raises ``RankscopeError``."""

    def update(self, run: Path) -> Analysis:
        """Analyse a run, of which only what is new need be read."""

    def keep(self, runs: Collection[Path]) -> None:
        """These go on; nothing of any other run need be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to watch. ``dashboard_url`` and ``runbook_url`` are the bases of the links in alerts."""

    policy: Policy = field(default_factory=Policy)
    once: bool = False
    """Evaluate everything there is, also runs that are over, and end no alert because its run is over."""
    dashboard_url: str | None = None
    runbook_url: str = "runbooks"


class Watcher:
    """Follows ``path``: one run, or a folder of runs that come and go.

    Runs that go on are analysed by ``follow``, those that are over as a whole by ``analyse``.
    ``report`` takes problems, one line each; ``emit`` takes events; ``save`` persists the ledger.
    """

    def __init__(
        self,
        path: Path,
        *,
        analyse: Analyse,
        follow: Follow,
        delivery: Delivery,
        ledger: Ledger,
        options: Options,
        report: Callable[[str], None],
        emit: Callable[[Event], None],
        save: Callable[[Ledger], None],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._path = path
        self._analyse = analyse
        self._follow = follow
        self._delivery = delivery
        self.ledger = ledger
        self._options = options
        self._report = report
        self._emit = emit
        self._save = save
        self._clock = clock
        self._seen: dict[Path, Glance] = {}
        self._over: dict[Path, Glance] = {}
        self._final_failures: Counter[Path] = Counter()
        self._trouble: dict[tuple[str, Path], str] = {}
        self._fresh_unix_ns: dict[str, int] = {}
        self._unreadable: dict[Path, frozenset[str]] = {}
        self._log_failed: set[Path] = set()
        self._single: Path | None = None

    def evaluate(self) -> bool:
        """One evaluation of everything. Returns whether there is nothing left to follow: a single run that is over."""
        runs = self._runs()
        ended = [run for run in runs if self._evaluate_run(run)]
        self._follow.keep([run for run in runs if run not in self._over])
        self._forget_lost()
        # Deliver before ending anything: who is told of an end must have heard of the beginning.
        self._deliver()
        if ended and not self._options.once:
            for run in ended:
                self._announce(self.ledger.resolve(str(run), now_unix_ns=self._clock()))
            self._deliver()
        self._save(self.ledger)
        return self._single is not None and self._single in self._over

    @property
    def troubled(self) -> bool:
        """Whether a run could not be evaluated the last time it was tried."""
        return bool(self._trouble)

    def remember(self) -> None:
        """Save what is known so far, before an untimely end."""
        self._save(self.ledger)

    def flush(self) -> list[str]:
        """Deliver what is still outstanding; returns the names of the receivers that could not be told."""
        self._deliver()
        self._save(self.ledger)
        return self._delivery.undelivered(self.ledger)

    def _runs(self) -> list[Path]:
        try:
            runs = discover(self._path)
        except OSError as error:
            self._complain("list", self._path, f"{self._path}: {error.strerror or error}")
            return []
        if runs == [self._path]:
            self._single = self._path
        if self._single is not None and not runs:
            self._complain("list", self._path, f"{self._path}: the run is gone; its alerts stay as they are")
        else:
            self._trouble.pop(("list", self._path), None)
        if self._options.once and not runs:
            raise InputError(self._path, "no run in it (no run.json)")
        return runs

    def _evaluate_run(self, run: Path) -> bool:
        """Evaluate one run; returns whether it is over, and was not before. Never raises for what a run can do wrong."""
        now = self._clock()
        seen = self._glance(run, now)
        if seen is None:
            return False
        followed = run == self._single or str(run) in self._fresh_unix_ns or str(run) in self.ledger.runs()
        if seen.ended and not followed and not self._options.once:
            # It was over before anybody watched it: history, not news.
            self._over[run] = seen
            return False
        if self._seen.get(run) != seen:
            self._fresh_unix_ns[str(run)] = now
        if seen.ended or self._seen.get(run) != seen:
            if self._judge(run, final=seen.ended):
                self._trouble.pop(("analyse", run), None)
                self._seen[run] = seen
            elif seen.ended:
                self._final_failures[run] += 1
                if self._final_failures[run] < FINAL_TRIES:
                    return False
        if seen.ended:
            self._over[run] = seen
            self._seen.pop(run, None)
            del self._final_failures[run]
        return seen.ended

    def _glance(self, run: Path, now_unix_ns: int) -> Glance | None:
        """Look at a run; ``None`` when it cannot be read, or was over before and still is."""
        try:
            # One that is over wakes up only by a new attempt; its many files need no second look.
            if run in self._over and last_attempt(run) == self._over[run].content[0]:
                return None
            seen = glance(run, now_unix_ns=now_unix_ns)
        except (RankscopeError, OSError) as error:
            problem = InputError(run, error.strerror or str(error)) if isinstance(error, OSError) else error
            self._complain("read", run, str(problem), problem)
            return None
        self._trouble.pop(("read", run), None)
        return seen

    def _judge(self, run: Path, *, final: bool) -> bool:
        """Analyse a run and take in what was found; returns whether that worked."""
        try:
            analysis = self._analyse([run]) if final or self._options.once else self._follow.update(run)
        except RankscopeError as error:
            self._complain("analyse", run, str(error), error)
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours in one run must not end the watch over the others
            self._complain("analyse", run, f"{run}: cannot be analysed: {type(error).__name__}: {error}")
            return False
        self._take_in(run, analysis, final=final)
        return True

    def _report_unreadable(self, run: Path, paths: Sequence[str]) -> None:
        """Say once of everything that cannot be read what it is, and why; again when it could be read in between."""
        known = self._unreadable.get(run, frozenset())
        everything = set(paths)
        new = [path for path in paths if path not in known and everything.isdisjoint(map(str, Path(path).parents))]
        for path in new[:SHOWN]:
            self._report(f"{run / path}: {why_unreadable(run / path)}; left out, the rest of the run is followed")
        if len(new) > SHOWN:
            self._report(f"{run}: {len(new) - SHOWN} more files and folders cannot be read, and are left out")
        self._unreadable[run] = frozenset(paths)

    def _take_in(self, run: Path, analysis: Analysis, *, final: bool) -> None:
        now = self._clock()
        self._report_unreadable(run, analysis.source.unreadable)
        if final or self._options.once:
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
        if analysis.verdict.kind == "insufficient_data":
            return
        found = candidates(analysis, dashboard_url=self._options.dashboard_url, runbook_url=self._options.runbook_url)
        policy = self._options.policy
        if final:
            # All evidence is in: nothing can become clearer by waiting.
            policy = Policy(fire_after=1, resolve_after=policy.resolve_after)
        attempt = analysis.ranks[0].attempt if analysis.ranks else 0
        unknown = ranks_within(run, attempt, analysis.source.unreadable)
        self._announce(self.ledger.update(str(run), found, now_unix_ns=now, policy=policy, unknown=unknown), found)

    def _announce(self, changed: Sequence[Entry], found: Sequence[Candidate] = ()) -> None:
        findings = {candidate.fingerprint: candidate.finding for candidate in found}
        for entry in changed:
            status: Status = "resolved" if entry.ends_at_unix_ns is not None else "firing"
            now = self._clock()
            alert = entry.alert
            self._emit(
                Event(
                    event=status,
                    time_unix_ns=now,
                    run=entry.run,
                    run_id=alert.labels["run_id"],
                    summary=alert.annotations.get("summary", ""),
                    fingerprint=entry.fingerprint,
                    labels=alert.labels,
                    annotations=alert.annotations,
                )
            )
            self._log(
                Path(entry.run),
                FindingRecord(
                    schema=FINDING_SCHEMA,
                    time_unix_ns=now,
                    status=status,
                    fingerprint=entry.fingerprint,
                    labels=alert.labels,
                    annotations=alert.annotations,
                    finding=findings.get(entry.fingerprint),
                ),
            )

    def _log(self, run: Path, record: FindingRecord) -> None:
        try:
            append_finding(run, record)
        except OSError as error:
            # Of a run that has been removed nobody expects it.
            if run not in self._log_failed and not isinstance(error, FileNotFoundError):
                self._report(f"{run}: findings.jsonl cannot be written: {error.strerror or error}; alerts are not affected")
            self._log_failed.add(run)

    def _deliver(self) -> None:
        # Saved before anybody is told: killed in between, we must tell of the same alert, not of another that began later.
        self._save(self.ledger)
        self._delivery.deliver(self.ledger, now_unix_ns=self._clock())

    def _complain(self, doing: str, path: Path, reason: str, error: RankscopeError | None = None) -> None:
        """Report trouble once, and again when it changes; evaluating one run once, trouble is the result."""
        if error is not None and self._options.once and path == self._path:
            raise error
        if self._trouble.get((doing, path)) != reason:
            self._trouble[doing, path] = reason
            self._report(reason)

    def _forget_lost(self) -> None:
        """End the alerts of runs that have been gone, unreadable or without a new record for too long."""
        now = self._clock()
        for run in self.ledger.runs():
            if now - self._fresh_unix_ns.setdefault(run, now) >= FORGET_AFTER_S * 1e9:
                self._report(f"{run}: nothing new for {FORGET_AFTER_S / 3600:.0f} h; its alerts are ended")
                self._announce(self.ledger.resolve(run, now_unix_ns=now))
