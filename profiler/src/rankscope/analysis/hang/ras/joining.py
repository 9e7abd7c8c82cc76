"""One report from NCCL RAS, Flight Recorder dumps and what the ranks are doing: who is missing or behind, and in which call."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.hang.activity import Activities, hang_by_activity, read_activities, with_activity
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.hang_result import BEFORE_NS, MOST_LISTED, Culprit, HangReport, Operation, RasReport
from rankscope.analysis.hang.hang_wording import advice, operation_text
from rankscope.analysis.hang.ras.answers import (
    WAIT_SECONDS,
    RasAnswers,
    can_be_of_run,
    has_local_rank,
    kept_answers,
    live_answers,
)
from rankscope.analysis.hang.ras.ras_judgement import RasJudgement, Suspect, differing, judge
from rankscope.analysis.hang.ras.wording import detail_of, names_of, summary_of
from rankscope.analysis.result.text import counted
from rankscope.base.errors import InputError
from rankscope.base.text import span
from rankscope.runs.follow import last_rows
from rankscope.runs.named import NamedRun, named_run
from rankscope.runs.paths import rank_dir
from rankscope.runs.ras import default_address
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankInfo
from rankscope.runs.world_size import recorded_world_size

_UNCOUNTED: Final = (
    "NCCL RAS counts no sends and receives (nor all-to-all, which is made of them), and no collectives in CUDA graphs: a rank "
    "that is behind may itself wait in one"
)


@dataclass(slots=True)
class _RasJob:
    """A job, and its run if it has one."""

    run: str | None = None
    attempt: int | None = None
    infos: Mapping[int, RankInfo] = field(default_factory=dict)
    world_size: int | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ras:
    """What NCCL RAS showed of a job."""

    job: _RasJob
    judgement: RasJudgement
    report: RasReport

    def culprits(self, place: Operation | None) -> list[Culprit]:
        """Return the evidence against the named ranks, for which the others wait in ``place``."""
        judgement, infos = self.judgement, self.job.infos
        return [
            Culprit(
                rank=rank,
                host=infos[rank].host if rank in infos else suspect.row.host,
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

    def limits(self) -> list[str]:
        """Return the warnings of what NCCL RAS does not show."""
        return [_UNCOUNTED] if any(suspect.row.why == "behind" for suspect in self.judgement.named) else []

    def advised(self, report: HangReport) -> HangReport:
        """Return the report with the next actions."""
        hosts = {rank: info.host for rank, info in self.job.infos.items()}
        actions = advice(report, run=self.job.run, hosts=hosts, named=names_of(self.judgement, hosts))
        return msgspec.structs.replace(report, next=actions)


def analyze_job(paths: Sequence[Path], *, address: str | None = None, wait_s: float = WAIT_SECONDS) -> HangReport:
    """Find the ranks that hung a job, from NCCL RAS, from dumps and from what the ranks are doing.

    NCCL RAS is asked at ``address``; without it, at NCCL's own where there are no ``paths``, or where they are a run whose job is
    on this host. Else the answers kept in the run count. Raises ``InputError`` if there is nothing to judge by.
    """
    if not paths:
        return _by_ras(_judged(_RasJob(), live_answers(address or default_address(), wait_s=wait_s)))
    run = named_run(paths[0]) if len(paths) == 1 else None
    activities = None if run is None else _activities(run)
    try:
        report = _by_calls(paths, run, address, wait_s)
    except InputError as missing_calls:
        if activities is None:
            raise
        report = hang_by_activity(activities)
        unknown_calls = f"the calls are not known: {missing_calls.reason}"
        return msgspec.structs.replace(report, warnings=[*report.warnings, unknown_calls])
    if run is not None:
        report = _unless_it_went_on(report, run.path)
    return report if activities is None else with_activity(report, activities)


def _unless_it_went_on(report: HangReport, run: Path) -> HangReport:
    """Return the report; one without a hang if a step ended after the dumps that show it, and NCCL RAS was not asked since."""
    dumped_ns, attempt = report.dumped_unix_ns, report.attempt
    if report.kind != "hang" or dumped_ns is None or attempt is None or (report.ras is not None and report.ras.live):
        return report
    ended_ns, step = max((_last_step(rank_dir(run, attempt, rank)) for rank in RunReader(run).ranks(attempt)), default=(0, 0))
    if ended_ns <= dumped_ns + BEFORE_NS:
        return report
    return msgspec.structs.replace(
        report,
        kind="no_hang",
        cause=None,
        culprits=[],
        suspects=[],
        collective=None,
        group=None,
        chain=[],
        waiting=[],
        evidence=[],
        mismatches=[],
        summary=f"No hang seen: the job went on. Step {step} ended {span((ended_ns - dumped_ns) / 1e9)} after the dumps.",
        warnings=[*report.warnings, f"by the dumps alone: {report.summary}"],
        next=[],
    )


def _last_step(folder: Path) -> tuple[int, int]:
    """Return the end, in Unix nanoseconds, and the number of the last step of a rank; (0, 0) if it cannot be read."""
    with suppress(OSError):
        rows = last_rows(folder, 1)
        if len(rows):
            return int(rows["start_unix_ns"][-1]) + round(float(rows["wall_us"][-1]) * 1000), int(rows["step"][-1])
    return 0, 0


def _activities(run: NamedRun) -> Activities | None:
    """Return what the ranks of a run are doing; ``None`` for an earlier attempt, and where no rank is known to stand still."""
    reader = RunReader(run.path)
    attempts = reader.attempts()
    attempt = run.chosen(attempts)
    if attempt not in attempts[-1:]:
        return None
    return read_activities(reader, attempt, reader.infos(attempt), now_unix_ns=time.time_ns())


def _by_calls(paths: Sequence[Path], run: NamedRun | None, address: str | None, wait_s: float) -> HangReport:
    """Return the report on what dumps and NCCL RAS show. Raises ``InputError`` if there are neither."""
    job = _RasJob()
    answers, error = _answers(job, run, address, wait_s)
    ras = None if answers is None else _judged(job, answers)
    try:
        report = analyze_hang(paths)
    except InputError as missing_dumps:
        if ras is None:
            raise error or InputError(
                missing_dumps.path, "; ".join([missing_dumps.reason, *job.warnings]), place=missing_dumps.place
            ) from missing_dumps
        return _by_ras(ras)
    if ras is not None and job.attempt is not None and report.attempt != job.attempt:
        job.warnings.append(f"dumps of attempt {report.attempt}, an earlier one, are left out")
        return _by_ras(ras)
    report = msgspec.structs.replace(report, warnings=report.warnings + job.warnings)
    return report if ras is None else _joined(report, ras)


def _answers(
    job: _RasJob, run: NamedRun | None, address: str | None, wait_s: float
) -> tuple[RasAnswers | None, InputError | None]:
    """Ask for the job of a run (``None``: only dumps are known), or take the answers kept in it; fill ``job``.

    The error is that of an address that the user named.
    """
    error: InputError | None = None
    is_local = False
    if run is not None:
        reader = RunReader(run.path)
        attempts = reader.attempts()
        job.run, job.attempt = os.fspath(run.path), run.chosen(attempts)
        job.infos = reader.infos(job.attempt)
        job.world_size = recorded_world_size(reader.attempt(job.attempt), job.infos.values())
        is_local = job.attempt in attempts[-1:] and has_local_rank(reader, job.attempt)
    if address is not None or is_local:
        try:
            return _live(job, address, wait_s), None
        except InputError as refusal:
            error = refusal if address is not None else None
            job.warnings.append(f"no answer of NCCL RAS: {refusal}")
    if run is not None and job.attempt is not None:
        try:
            stored_answers = kept_answers(run.path, job.attempt)
            return stored_answers if stored_answers is not None and can_be_of_run(stored_answers, job.infos) else None, error
        except InputError as damage:
            job.warnings.append(f"left out: {damage}")
    return None, error


def _live(job: _RasJob, address: str | None, wait_s: float) -> RasAnswers:
    answers = live_answers(address or default_address(), wait_s=wait_s)
    if not can_be_of_run(answers, job.infos):
        raise InputError(answers.ras_answers[-1].address, "NCCL RAS of another job: none of its processes is in this run")
    return answers


def _judged(job: _RasJob, answers: RasAnswers) -> _Ras:
    before = answers.snapshots[0] if len(answers.snapshots) > 1 else None
    latest, latest_answer = answers.snapshots[-1], answers.ras_answers[-1]
    judgement = judge(latest, before, world_size=job.world_size, pids={rank: info.pid for rank, info in job.infos.items()})
    job.warnings += answers.warnings
    report = RasReport(
        address=latest_answer.address,
        live=answers.live,
        asked_unix_ns=latest_answer.asked_unix_ns,
        answers=len(answers.ras_answers),
        interval_s=answers.interval_s,
        moved=judgement.moved,
        nccl_version=latest.nccl_version,
        format=latest_answer.format,
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
    return _Ras(job, judgement, report)


def _by_ras(ras: _Ras) -> HangReport:
    """Return the report on a job without dumps."""
    return ras.advised(
        HangReport(
            kind=ras.report.kind,
            cause=ras.report.cause,
            culprits=ras.report.culprits,
            suspects=[] if ras.report.kind == "hang" else sorted(_by_rank(ras.judgement.suspects))[:MOST_LISTED],
            collective=None,
            group=None,
            chain=[],
            waiting=[],
            evidence=ras.culprits(None),
            mismatches=[],
            summary=ras.report.summary,
            path=ras.job.run or ras.report.address,
            ranks=0,
            world_size=ras.judgement.ranks.world_size,
            attempt=ras.job.attempt,
            coverage=None,
            warnings=[*ras.job.warnings, *ras.limits()],
            next=[],
            ras=ras.report,
        )
    )


def _joined(report: HangReport, ras: _Ras) -> HangReport:
    """Add what NCCL RAS showed to the report on the dumps.

    Dumps that name the ranks stand, because they show calls. Where they name none, or only ranks without a dump, RAS does. A live
    job that goes on does not hang.
    """
    shown = ras.report
    report = msgspec.structs.replace(report, ras=shown)
    if shown.live and shown.kind == "no_hang" and report.kind == "hang":
        earlier = f"the dumps show a hang, but are older than the answers of NCCL RAS: {report.summary}"
        of_dumps = {name: getattr(report, name) for name in ("ranks", "coverage", "world_size", "path")}
        return msgspec.structs.replace(_by_ras(ras), **of_dumps, warnings=[*report.warnings, earlier])
    if shown.kind != "hang":
        return report
    if report.kind != "hang" or report.cause in ("no_dump", "stuck"):
        return _named_by_ras(report, ras)
    if set(shown.culprits) <= set(report.culprits):
        return report
    return msgspec.structs.replace(report, warnings=[*report.warnings, f"NCCL RAS names other ranks: {shown.summary}"])


def _named_by_ras(report: HangReport, ras: _Ras) -> HangReport:
    """Return the report on dumps that name no rank, with the ranks that RAS names and the call in which the others wait."""
    places = Counter(_key(row.operation) for row in report.waiting)
    most = max((row.operation for row in report.waiting), key=lambda operation: places[_key(operation)], default=None)
    place = report.collective or most
    wait = ""
    if place is not None:
        wait = f" By the dumps, {counted(places[_key(place)], 'rank')} waited in {operation_text(place)}."
    return ras.advised(
        msgspec.structs.replace(
            report,
            kind="hang",
            cause=ras.report.cause,
            culprits=ras.report.culprits,
            suspects=[rank for rank in report.suspects if rank not in ras.report.culprits],
            collective=place,
            chain=[],
            evidence=ras.culprits(place),
            summary=ras.report.summary + wait,
            warnings=[*report.warnings, *ras.limits()],
        )
    )


def _key(operation: Operation) -> tuple[str, int, str]:
    return operation.group, operation.sequence, operation.op


def _by_rank(suspects: Sequence[Suspect]) -> dict[int, Suspect]:
    """Return the suspects whose global rank is known, each in the first communicator."""
    by_rank: dict[int, Suspect] = {}
    for suspect in suspects:
        if suspect.row.global_rank is not None:
            by_rank.setdefault(suspect.row.global_rank, suspect)
    return by_rank
