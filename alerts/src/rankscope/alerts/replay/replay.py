"""Replay of the watcher over a recorded run, which grows as it did when it was recorded.

The replay runs the real watcher with a simulated clock. It delivers nothing and writes nothing into the run.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from rankscope.alerts.output import Event
from rankscope.alerts.replay.growing_run import GrowingRun
from rankscope.alerts.replay.replay_result import Replay, RuleHistory, Spell
from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.alerts.watch.delivery import Delivery
from rankscope.alerts.watch.followed_runs import FollowedRuns
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watch.run_snapshots import RESTART_GRACE_S
from rankscope.alerts.watch.unreadable_files import why_unreadable
from rankscope.alerts.watch.watcher import FORGET_AFTER_S, Watcher
from rankscope.alerts.watch.watcher_settings import WatcherSettings
from rankscope.alerts.watcher_alerts import WATCHER_ALERTS
from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis, Evidence, Finding
from rankscope.base.errors import InputError

DEFAULTS: Final = WatcherSettings(policy=FiringPolicy(least_firing_s=60.0))
"""Settings of the watcher, with the defaults of ``rankscope alerts watch``."""
IDLE_S: Final = 1200.0
"""Time without growth after which evaluations are skipped until the run grows or a timeout of the watcher expires."""


def replay_run(
    run: Path,
    rules: Sequence[str] = (),
    *,
    options: WatcherSettings = DEFAULTS,
    progress: Callable[[int], None] = lambda _percent: None,
) -> Replay:
    """Replay the watcher's alerts ``rules`` over a run (default: all). Raises ``RankscopeError``.

    ``progress`` receives the replayed share of the run in percent.
    """
    with naming_the_folder(), tempfile.TemporaryDirectory(prefix="rankscope-replay-") as folder:
        growing = GrowingRun(run, Path(folder), latest_unix_ns=time.time_ns())
        replaying = _Replay(run, growing, options, progress)
        replaying.go()
    return replaying.result(rules or tuple(WATCHER_ALERTS))


@contextmanager
def naming_the_folder() -> Iterator[None]:
    """Convert ``OSError``, such as a full disk, to ``InputError`` with the path of the copy."""
    try:
        yield
    except OSError as error:
        raise InputError(
            error.filename or tempfile.gettempdir(),
            f"{error.strerror or error}; the replay needs a copy of the run there; TMPDIR names another folder",
        ) from error


class _Replay:
    """A watcher, its simulated clock, and the spells so far."""

    def __init__(self, run: Path, growing: GrowingRun, options: WatcherSettings, progress: Callable[[int], None]) -> None:
        self._run = run
        self._growing = growing
        self._options = options
        self._progress = progress
        self._interval_ns = int(options.interval_s * 1e9)
        self._start_unix_ns = self._now = min(growing.info.start_unix_ns, growing.next_unix_ns or growing.info.start_unix_ns)
        self._evaluations = 0
        self._spells: dict[str, list[Spell]] = {}
        """Fingerprint to its spells; the last one may not have ended."""
        self._findings: dict[str, Finding] = {}
        self._judged = False
        self._grown_unix_ns = self._now
        """Time at which the run last grew."""
        self._notes: dict[str, None] = {}
        self._watcher = Watcher(
            growing.path,
            analyse=self._analyse,
            follow=_ObservedRuns(lambda: self._now / 1e9, self._remember),
            delivery=Delivery(interval_s=options.interval_s, report=self._note),
            ledger=AlertLedger(),
            options=replace(options, ask_for_dumps=False),
            report=self._note,
            emit=self._take,
            save=lambda _ledger: None,
            clock=lambda: self._now,
            elapsed=lambda: self._now / 1e9,
        )

    def go(self) -> None:
        """Replay from the first record to the last, and then for as long as the watcher waits for more."""
        over = False
        while not over or self._growing.next_unix_ns is not None:
            moment = self._next_moment()
            if moment is None:
                return
            self._now = moment
            if (grows := self._growing.next_unix_ns) is not None and grows <= moment:
                self._grown_unix_ns = moment
            self._growing.advance(moment)
            over = self._watcher.evaluate()
            self._evaluations += 1
            self._look_at_pending()
            self._progress(self._percent())

    def result(self, rules: Sequence[str]) -> Replay:
        """Return the result for the alerts ``rules``."""
        policy = self._options.policy
        least = f" and at least {policy.least_firing_s:g} s" if policy.least_firing_s else ""
        described = (
            f"fires after {policy.fire_after} evaluations in a row with the finding, {self._options.interval_s:g} s apart; "
            f"ends after {policy.resolve_after} without it{least}, or with the run"
        )
        info = self._growing.info
        spells = sorted((spell for each in self._spells.values() for spell in each), key=lambda spell: spell.pending_unix_ns)
        self._note_unreadable(self._growing.unreadable)
        if not self._judged:
            self._note("nothing could be judged: too few steps of too few ranks are recorded")
        return Replay(
            path=str(self._run),
            run_id=info.run_id,
            simulated=info.simulated,
            start_unix_ns=self._start_unix_ns,
            end_unix_ns=self._now,
            interval_s=self._options.interval_s,
            evaluations=self._evaluations,
            rules=[
                RuleHistory(
                    rule=rule,
                    policy=described,
                    spells=[spell for spell in spells if spell.labels["alertname"] == rule],
                )
                for rule in rules
            ],
            notes=list(self._notes),
        )

    def _percent(self) -> int:
        """Replayed share in percent, at most 99: the watcher waits for more after the last record."""
        replay_ns = max(1, self._growing.end_unix_ns - self._start_unix_ns)
        return max(0, min(99, 100 * (self._now - self._start_unix_ns) // replay_ns))

    def _next_moment(self) -> int | None:
        """Time of the next evaluation that can change anything; ``None`` after the last."""
        grows = self._growing.next_unix_ns
        if grows is not None and grows <= self._now + self._interval_ns:
            return self._now + self._interval_ns
        if self._now - self._grown_unix_ns < IDLE_S * 1e9 and self._now + self._interval_ns <= time.time_ns():
            return self._now + self._interval_ns  # lack of growth can itself raise an alert
        waits = [self._grown_unix_ns + int(seconds * 1e9) for seconds in (RESTART_GRACE_S, FORGET_AFTER_S)]
        moments = [moment for moment in waits if self._now < moment <= time.time_ns()]
        if grows is not None:
            moments.append(grows)
        if not moments:
            return None
        evaluations = -(-(min(moments) - self._start_unix_ns) // self._interval_ns)
        return max(self._now + self._interval_ns, self._start_unix_ns + evaluations * self._interval_ns)

    def _analyse(self, paths: Sequence[Path]) -> Analysis:
        """Analyse the original run if the copy is complete, else the copy, as when another attempt follows."""
        if self._growing.next_unix_ns is not None:
            return self._remember(analyze(paths))
        full_analysis = analyze([self._run])
        # The watcher would look for unreadable files in the copy, which lacks them.
        self._note_unreadable([self._run / path for path in full_analysis.source.unreadable])
        source = msgspec.structs.replace(full_analysis.source, unreadable=[])
        return self._remember(msgspec.structs.replace(full_analysis, source=source))

    def _remember(self, analysis: Analysis) -> Analysis:
        self._judged = self._judged or analysis.verdict.kind != "insufficient_data"
        self._findings = {
            candidate.fingerprint: candidate.finding for candidate in candidates(analysis) if candidate.finding is not None
        }
        return analysis

    def _take(self, event: Event) -> None:
        if event.fingerprint is None:
            return  # a verdict
        spells = self._spells.setdefault(event.fingerprint, [])
        if event.event == "resolved":
            spells[-1] = msgspec.structs.replace(spells[-1], ended_unix_ns=self._now)
            return
        began = spells.pop().pending_unix_ns if spells and spells[-1].ended_unix_ns is None else self._now
        finding = self._findings.get(event.fingerprint)
        spells.append(
            Spell(
                labels=event.labels,
                annotations=self._in_place(event.annotations),
                pending_unix_ns=began,
                fired_unix_ns=self._now,
                values=[] if finding is None else _values(finding),
            )
        )

    def _look_at_pending(self) -> None:
        pending = {entry.fingerprint: entry.alert for entry in self._watcher.ledger.entries if entry.track.state == "pending"}
        for fingerprint, alert in pending.items():
            spells = self._spells.setdefault(fingerprint, [])
            if not spells or spells[-1].ended_unix_ns is not None:
                spells.append(
                    Spell(labels=alert.labels, annotations=self._in_place(alert.annotations), pending_unix_ns=self._now)
                )
        for fingerprint, spells in self._spells.items():
            last = spells[-1]
            if last.fired_unix_ns is None and last.ended_unix_ns is None and fingerprint not in pending:
                spells[-1] = msgspec.structs.replace(last, ended_unix_ns=self._now)

    def _in_place(self, annotations: dict[str, str]) -> dict[str, str]:
        return {name: self._of_run(text) for name, text in annotations.items()}

    def _note_unreadable(self, paths: Sequence[Path]) -> None:
        everything = set(paths)
        for path in paths:
            if everything.isdisjoint(path.parents):
                self._note(f"{path}: {why_unreadable(path)}; left out")

    def _note(self, line: str) -> None:
        self._notes[self._of_run(line)] = None

    def _of_run(self, text: str) -> str:
        """Replace the path of the temporary copy by that of the run, in commands and messages."""
        growing, run = str(self._growing.path), str(self._run)
        return text.replace(shlex.quote(growing), shlex.quote(run)).replace(growing, run)


class _ObservedRuns(FollowedRuns):
    """``FollowedRuns`` that passes every analysis to ``seen``."""

    def __init__(self, clock: Callable[[], float], observe: Callable[[Analysis], Analysis]) -> None:
        super().__init__(clock=clock)
        self._observe = observe

    def update(self, run: Path) -> Analysis:
        """Analyse the run as the watcher does."""
        return self._observe(super().update(run))


def _values(finding: Finding) -> list[Evidence]:
    numbers = (
        ("slowdown", finding.slowdown, "x"),
        ("gpu_hours_lost", finding.gpu_hours_lost, "GPU-hours"),
        ("confidence", finding.confidence, "ratio"),
    )
    return [Evidence(name=name, value=value, unit=unit) for name, value, unit in numbers if value is not None] + finding.evidence
