"""One report from what NCCL RAS and the Flight Recorder dumps show: who is missing or behind, and in which call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.ras.asking import WAIT_SECONDS, Answers, is_of, kept_answers, live_answers, runs_here
from rankscope.analysis.hang.ras.judging import Judgement, Suspect, differing, judge
from rankscope.analysis.hang.ras.wording import detail_of, names_of, summary_of
from rankscope.analysis.hang.result import MOST_LISTED, Culprit, HangReport, Operation, RasReport
from rankscope.analysis.hang.wording import advice, operation_text
from rankscope.analysis.result.text import counted
from rankscope.base.errors import InputError
from rankscope.runs.named import NamedRun, named_run
from rankscope.runs.ras import default_address
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo
from rankscope.runs.world_size import told_world_size

_UNCOUNTED: Final = (
    "NCCL RAS counts no sends and receives (nor all-to-all, which is made of them), and no collectives in CUDA graphs: a rank "
    "that is behind may itself wait in one"
)


@dataclass(slots=True)
class _Job:
    """A job, its run if it has one, and what NCCL RAS showed of it."""

    run: str | None = None
    attempt: int | None = None
    infos: Mapping[int, RankInfo] = field(default_factory=dict)
    world_size: int | None = None
    judgement: Judgement | None = None
    ras: RasReport | None = None
    error: InputError | None = None
    """Reason for having no answer, where one was expected."""
    warnings: list[str] = field(default_factory=list)

    def take(self, answers: Answers) -> None:
        """Judge the answers."""
        before = answers.snapshots[0] if len(answers.snapshots) > 1 else None
        latest, given = answers.snapshots[-1], answers.given[-1]
        pids = {rank: info.pid for rank, info in self.infos.items()}
        judgement = judge(latest, before, world_size=self.world_size, pids=pids)
        self.judgement, self.warnings = judgement, self.warnings + answers.warnings
        self.world_size = judgement.ranks.world_size
        self.ras = RasReport(
            address=given.address,
            live=answers.live,
            asked_unix_ns=given.asked_unix_ns,
            answers=len(answers.given),
            interval_s=answers.interval_s,
            moved=judgement.moved,
            nccl_version=latest.nccl_version,
            format=given.format,
            communicators=latest.total,
            gpus=latest.gpus,
            timeouts=latest.timeouts,
            kind=judgement.kind,
            cause=judgement.cause,
            culprits=sorted(_by_rank(judgement.named)),
            certain=judgement.certain,
            summary=summary_of(judgement, latest, answers.interval_s),
            differing=differing(judgement),
        )


def analyze_job(paths: Sequence[Path], *, address: str | None = None, wait_s: float = WAIT_SECONDS) -> HangReport:
    """Find the ranks that hung a job, from NCCL RAS and from dumps.

    NCCL RAS is asked at ``address``; without it, at NCCL's own where there are no ``paths``, or where they are a run whose job is
    on this host. Else the answers kept in the run count. Raises ``InputError`` if there is nothing to judge by.
    """
    if not paths:
        job = _Job()
        job.take(live_answers(address or default_address(), wait_s=wait_s))
        return _by_ras(job)
    job = _job_of(named_run(paths[0]) if len(paths) == 1 else None, address, wait_s)
    try:
        report = analyze_hang(paths)
    except InputError as error:
        if job.ras is None:
            raise job.error or InputError(error.path, "; ".join([error.reason, *job.warnings]), place=error.place) from error
        return _by_ras(job)
    if job.ras is not None and job.attempt is not None and report.attempt != job.attempt:
        job.warnings.append(f"dumps of attempt {report.attempt}, an earlier one, are left out")
        return _by_ras(job)
    report = msgspec.structs.replace(report, warnings=report.warnings + job.warnings)
    return _joined(report, job)


def _job_of(run: NamedRun | None, address: str | None, wait_s: float) -> _Job:
    """Ask for the job of a run (``None``: only dumps are known), or take the answers kept in it."""
    job = _Job()
    here = False
    if run is not None:
        reader = RunReader(run.path)
        attempts = reader.attempts()
        job.run, job.attempt = os.fspath(run.path), run.chosen(attempts)
        job.infos = reader.infos(job.attempt)
        job.world_size = told_world_size(reader.attempt(job.attempt), job.infos.values())
        here = job.attempt in attempts[-1:] and runs_here(reader, job.attempt)
    try:
        if address is not None or here:
            job.take(_live(job, address, wait_s))
            return job
    except InputError as error:
        job.error = error if address is not None else None
        job.warnings.append(f"no answer of NCCL RAS: {error}")
    if run is not None and job.attempt is not None:
        try:
            if (kept := kept_answers(run.path, job.attempt)) is not None and is_of(kept, job.infos):
                job.take(kept)
        except InputError as error:
            job.warnings.append(f"left out: {error}")
    return job


def _live(job: _Job, address: str | None, wait_s: float) -> Answers:
    answers = live_answers(address or default_address(), wait_s=wait_s)
    if not is_of(answers, job.infos):
        raise InputError(answers.given[-1].address, "NCCL RAS of another job: none of its processes is in this run")
    return answers


def _by_ras(job: _Job) -> HangReport:
    """Return the report on a job without dumps."""
    assert job.ras is not None
    assert job.judgement is not None
    report = HangReport(
        kind=job.ras.kind,
        cause=job.ras.cause,
        culprits=job.ras.culprits,
        suspects=[] if job.ras.kind == "hang" else sorted(_by_rank(job.judgement.suspects))[:MOST_LISTED],
        collective=None,
        group=None,
        chain=[],
        waiting=[],
        evidence=_evidence(job, None),
        mismatches=[],
        summary=job.ras.summary,
        path=job.run or job.ras.address,
        ranks=0,
        world_size=job.world_size,
        attempt=job.attempt,
        coverage=None,
        warnings=[*job.warnings, *_limits(job)],
        next=[],
        ras=job.ras,
    )
    return msgspec.structs.replace(report, next=_advice(report, job))


def _joined(report: HangReport, job: _Job) -> HangReport:
    """Add what NCCL RAS showed to the report on the dumps.

    Dumps that name the ranks stand, because they show calls. Where they name none, or only ranks without a dump, RAS does. A live
    job that goes on does not hang.
    """
    ras = job.ras
    if ras is None:
        return report
    report = msgspec.structs.replace(report, ras=ras)
    if ras.live and ras.kind == "no_hang" and report.kind == "hang":
        return _gone_on(report, job)
    if ras.kind != "hang":
        return report
    if report.kind != "hang" or report.cause in ("no_dump", "stuck"):
        return _named_by_ras(report, job)
    if set(ras.culprits) <= set(report.culprits):
        return report
    return msgspec.structs.replace(report, warnings=[*report.warnings, f"NCCL RAS names other ranks: {ras.summary}"])


def _gone_on(report: HangReport, job: _Job) -> HangReport:
    """Return the report on a live job that goes on, although its dumps show a hang."""
    earlier = f"the dumps show a hang, but are older than the answers of NCCL RAS: {report.summary}"
    passed = _by_ras(job)
    return msgspec.structs.replace(
        passed,
        ranks=report.ranks,
        coverage=report.coverage,
        world_size=report.world_size,
        path=report.path,
        warnings=[*report.warnings, earlier],
    )


def _named_by_ras(report: HangReport, job: _Job) -> HangReport:
    """Return the report on dumps that name no rank, with the ranks that RAS names and the call in which the others wait."""
    assert job.ras is not None
    place = report.collective or _place(report)
    wait = ""
    if place is not None:
        inside = sum(_key(row.operation) == _key(place) for row in report.waiting)
        wait = f" By the dumps, {counted(inside, 'rank')} waited in {operation_text(place)}."
    report = msgspec.structs.replace(
        report,
        kind="hang",
        cause=job.ras.cause,
        culprits=job.ras.culprits,
        suspects=[one for one in report.suspects if one not in job.ras.culprits],
        collective=place,
        chain=[],
        evidence=_evidence(job, place),
        summary=job.ras.summary + wait,
        warnings=[*report.warnings, *_limits(job)],
    )
    return msgspec.structs.replace(report, next=_advice(report, job))


def _place(report: HangReport) -> Operation | None:
    """Return the operation in which most ranks wait."""
    places = Counter(_key(row.operation) for row in report.waiting)
    return max((row.operation for row in report.waiting), key=lambda one: places[_key(one)], default=None)


def _key(operation: Operation) -> tuple[str, int, str]:
    return operation.group, operation.sequence, operation.op


def _evidence(job: _Job, place: Operation | None) -> list[Culprit]:
    judgement = job.judgement
    assert judgement is not None
    return [
        Culprit(
            rank=rank,
            host=job.infos[rank].host if rank in job.infos else suspect.row.host,
            cause=judgement.cause or "not_arrived",
            certain=judgement.certain,
            awaited_in=place,
            awaited_by=[],
            last_sequence=None,
            last=None,
            detail=detail_of(judgement, suspect),
        )
        for rank, suspect in sorted(_by_rank(judgement.named).items())
    ]


def _by_rank(suspects: Sequence[Suspect]) -> dict[int, Suspect]:
    """Return the suspects whose global rank is known, each in the first communicator."""
    known: dict[int, Suspect] = {}
    for suspect in suspects:
        if suspect.row.global_rank is not None:
            known.setdefault(suspect.row.global_rank, suspect)
    return known


def _limits(job: _Job) -> list[str]:
    assert job.judgement is not None
    return [_UNCOUNTED] if any(suspect.row.why == "behind" for suspect in job.judgement.named) else []


def _advice(report: HangReport, job: _Job) -> list[str]:
    assert job.judgement is not None
    hosts = {rank: info.host for rank, info in job.infos.items()}
    return advice(report, run=job.run, hosts=hosts, named=names_of(job.judgement, hosts))
