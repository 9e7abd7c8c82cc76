"""The line at which a named rank stalls, added to the verdict on a run, or the reason why no stack was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import msgspec

from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.inference.reasons.stalled_line import evenly, line_of_run
from rankscope.analysis.result.analysis import Finding, StalledLine, Verdict
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions

_NOT_OF_CODE: Final[frozenset[Cause | None]] = frozenset({"imbalance", "communication"})
_OF_CODE: Final = frozenset({"more_calls", "other_code"})
"""Explanations of an imbalance that a line of code can show."""
_WAITS: Final[frozenset[Cause | None]] = frozenset({"host", "unknown"})
"""Causes for which the next action is to look at stacks."""


_BESIDE: Final = {
    "background_thread": (" in a background thread", "the training thread waits for it in "),
    "worker_process": (" in a worker process", "the training thread waits for it in "),
}


def with_stalled_line(verdict: Verdict, findings: list[Finding], run: RunEvidence) -> tuple[Verdict, list[Finding]]:
    """Add the line at which the named rank stalls to a verdict on a straggler and its finding, if there is one."""
    rank = verdict.rank
    if verdict.kind != "straggler" or rank is None or not findings:
        return verdict, findings
    if verdict.cause in _NOT_OF_CODE and verdict.explained_by not in _OF_CODE:
        return verdict, findings
    if verdict.cause == "compute" and rank in run.infos and run.infos[rank].device_kind != "cpu":
        return verdict, findings  # its host waits for the device, at any line
    cost = 0.0 if verdict.slowdown is None else 1 - 1 / verdict.slowdown
    line, reason = line_of_run(run, rank, _healthy(verdict, run), verdict.steps, cost_share=cost)
    if line is None and (reason is None or verdict.cause not in _WAITS):
        return verdict, findings
    note = f"Its Python stack was not sampled: {reason}." if line is None else f"The extra time is spent {described(line)}."
    summary = f"{verdict.summary} {note}"
    if line is not None:
        ranks = [rank, *(other for other in verdict.ranks if other != rank)]
        subject = AdviceSubject(run.path, ranks, run.hosts, whole_hosts=verdict.hosts, stalls_at=place(line))
        actions = next_actions("straggler", subject, cause=verdict.cause, reason=verdict.explained_by)
        verdict = msgspec.structs.replace(verdict, next=actions)
    findings_with_line = [msgspec.structs.replace(findings[0], summary=summary), *findings[1:]]
    return msgspec.structs.replace(verdict, summary=summary, stalls_at=line), findings_with_line


def _healthy(verdict: Verdict, run: RunEvidence) -> Sequence[int]:
    """Return the ranks to compare: those that do the same work and are not named, evenly chosen."""
    peers = next((judged.ranks for judged in run.compared if verdict.rank in judged.ranks), run.ranks)
    return evenly([rank for rank in peers if rank not in verdict.ranks])


def place(line: StalledLine) -> str:
    """Return the line for people, such as "train.py:88 `time.sleep`"."""
    return f"{PurePath(line.file).name}:{line.line} `{line.call or line.function}`"


def described(line: StalledLine) -> str:
    """Return the line with its evidence: "in forward, at train.py:88 `time.sleep` (84% of 50 samples; healthy ranks 3%)"."""
    phase = "" if line.phase is None else f"in {line.phase}, "
    reached = "" if line.healthy_share else ", which never reach it"
    runs_in, waits = _BESIDE.get(line.runs_in, ("", ""))
    shares = f"{waits}{line.share:.0%} of {line.samples} samples; healthy ranks {line.healthy_share:.0%}{reached}"
    return f"{phase}at {place(line)}{runs_in} ({shares})"
