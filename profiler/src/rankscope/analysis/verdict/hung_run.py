"""Verdict on a job that hangs, from Flight Recorder dumps, in a run directory or elsewhere."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from rankscope.analysis.hang.activity import hang_by_activity, with_activity
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.hang_result import BEFORE_NS, HangReport
from rankscope.analysis.inference.reasons.run_evidence import RunEvidence
from rankscope.analysis.result.analysis import Evidence, Finding, Verdict
from rankscope.base.errors import InputError
from rankscope.runs.paths import flight_dir

_PACKAGE: Final = Path(__file__).parents[2]
_LIBRARY: Final = re.compile(rf"/(?:site|dist)-packages/|{re.escape(str(_PACKAGE))}/|/lib/python3|<frozen ")
"""Pattern of frames outside of the training script; the package's own folder matters in a checkout."""


def hung_report(run: RunEvidence, *, fresh: bool = False) -> HangReport | None:
    """Return the report on the hang that the dumps of the analysed attempt show, or ``None``.

    ``None``: there are no usable dumps or they show no hang, a rank made a step after the dumps were taken, or all ranks exited
    normally. ``fresh``: the caller knows that no rank has made a step since the dumps.
    """
    folder = flight_dir(run.reader.path, run.table.attempt)
    if not folder.is_dir() or _ended_well(run):
        return None
    report = _report(run.reader.path, _files(folder))
    if report is None or report.kind != "hang" or report.attempt != run.table.attempt:
        return None
    return None if not fresh and _went_on(run, report) else report


@lru_cache(maxsize=16)
def _report(run: Path, _files: frozenset[tuple[str, int, int]]) -> HangReport | None:
    """Analyse the dumps once per state of their files: those of a thousand ranks take a minute to read.

    Callers that follow a run ask for its verdict repeatedly.
    """
    try:
        return analyze_hang([run])
    except InputError:
        return None  # `rankscope hang` reports why they cannot be read


def _files(folder: Path) -> frozenset[tuple[str, int, int]]:
    files: set[tuple[str, int, int]] = set()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat()
                files.add((entry.name, status.st_size, status.st_mtime_ns))
    return frozenset(files)


def hung_verdict(run: RunEvidence) -> tuple[Verdict, Finding] | None:
    """Return the verdict and the finding of a run that hangs, by its dumps and by what its ranks are doing; else ``None``."""
    report = hung_report(run)
    if run.activities is not None and run.liveness == "silent":
        report = hang_by_activity(run.activities) if report is None else with_activity(report, run.activities)
    return None if report is None or report.kind != "hang" else hang_verdict(report, shlex.quote(run.path))


def hang_verdict(report: HangReport, paths: str) -> tuple[Verdict, Finding]:
    """Return the verdict and the finding of a report on a hang. ``paths``: arguments of `rankscope hang`, quoted for a shell."""
    alone = report.culprits[0] if len(report.culprits) == 1 else None
    group = None if report.group is None else report.group.description or report.group.name
    action = f"See who waits in what: rankscope hang {paths}"
    summary = f"{report.summary}{_last_call(report)}"
    verdict = Verdict(
        kind="hang",
        rank=alone,
        ranks=report.culprits,
        group=group,
        summary=summary,
        next=[action, *(row for row in report.next if not row.startswith("rankscope analyze"))],
    )
    finding = Finding(
        kind="hang",
        rank=alone,
        host=next((culprit.host for culprit in report.evidence if culprit.rank == alone), None),
        summary=summary,
        evidence=_evidence(report),
    )
    return verdict, finding


def _last_call(report: HangReport) -> str:
    """Return where the script of the only culprit enqueued its last operation; empty where the dumps do not tell."""
    last = report.evidence[0].last if len(report.evidence) == 1 else None
    frame = None if last is None else next((each for each in last.frames if not _LIBRARY.search(each)), None)
    if last is None or frame is None:
        return ""
    return f" Its last call, {last.op} {last.sequence}, came from {frame.rpartition('/')[2]}."


def _ended_well(run: RunEvidence) -> bool:
    return run.liveness == "over" and all(info.end_reason == "exit" for info in run.infos.values())


def _went_on(run: RunEvidence, report: HangReport) -> bool:
    """Return whether any rank ended a step after the dumps were taken, so that the run no longer hangs."""
    if report.dumped_unix_ns is None:
        # The time of the dumps is unknown: a run that still makes steps does not hang.
        return run.liveness == "live"
    return run.table.last_end_unix_ns > report.dumped_unix_ns + BEFORE_NS


def _evidence(report: HangReport) -> list[Evidence]:
    doing = () if report.activity is None else report.activity.ranks
    waiting = len(report.waiting) or sum(bool(row.waiting) for row in doing)
    rows = [Evidence(name="waiting", value=float(waiting), unit="ranks")]
    if (waited := max((row.waited_s for row in report.waiting if row.waited_s is not None), default=None)) is not None:
        rows.append(Evidence(name="waited", value=waited, unit="s", detail="the longest, when the dumps were taken"))
    if report.collective is not None:
        detail = f"{report.collective.op} of group {report.collective.group}"
        rows.append(Evidence(name="sequence", value=float(report.collective.sequence), unit="number", detail=detail))
    if report.coverage is not None:
        rows.append(Evidence(name="coverage", value=report.coverage, unit="ratio", detail="of ranks with a dump"))
    return rows
