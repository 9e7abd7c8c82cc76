"""Diagnose a hang from the dumps of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.hang.blockers import Blockers, find_blockers
from rankscope.analysis.hang.files import DumpFile, LoadedDumps, read_dumps, taken_ns
from rankscope.analysis.hang.flight_records import Record, RecorderDump
from rankscope.analysis.hang.groups import Groups, HangGroup
from rankscope.analysis.hang.hang_result import (
    MOST_LISTED,
    Culprit,
    HangCause,
    HangKind,
    HangReport,
    Link,
    Mismatch,
    Operation,
    ProcessGroup,
    Waiting,
)
from rankscope.analysis.hang.hang_wording import advice, detail_of, summary_of
from rankscope.analysis.hang.meetings import DumpTimes, Meeting, dump_times_of, find_meetings
from rankscope.analysis.hang.mismatch import find_mismatches
from rankscope.analysis.hang.progress import ProgressTable
from rankscope.base.text import ranks_text
from rankscope.runs.world_size import LARGEST_WORLD


@dataclass(frozen=True, slots=True)
class Accusation:
    """A rank to name as a culprit."""

    rank: int
    cause: HangCause
    meeting: Meeting | None
    """Meeting in which the others wait for it."""
    certain: bool = True


Accusations = tuple[HangCause, list[Accusation]]


@dataclass(frozen=True, slots=True)
class DumpEvidence:
    """All evidence in the dumps: progress, meetings, waits and mismatches."""

    dumps: LoadedDumps
    world_size: int | None
    progress: ProgressTable
    meetings: list[Meeting]
    dump_times: DumpTimes
    blockers: Blockers
    mismatches: dict[Meeting, tuple[Mismatch, list[int]]]


def analyze_hang(paths: Sequence[Path]) -> HangReport:
    """Find the ranks that hung the job, from a run directory or dumps (files, folders, patterns). Raises ``InputError``."""
    return diagnose(read_dumps(paths))


def waits_long(file: DumpFile, dump: RecorderDump) -> bool:
    """Return whether a rank waits for long, or for an unknown time. Only then the dumps of all ranks have to be diagnosed."""
    rank, dumped_ns = file.rank, taken_ns(file, dump)
    dump_times = dump_times_of({rank: [dump]}, {} if dumped_ns is None else {rank: dumped_ns})
    progress = ProgressTable({rank: [dump]}, Groups({rank: [dump]}, None), {rank: dumped_ns} if file.crashed else {})
    return any(
        not dump_times.is_recent(rank, record) for _, _, rank_progress in progress.all() for record in rank_progress.unfinished()
    )


def diagnose(dumps: LoadedDumps) -> HangReport:
    """Name the ranks that did not arrive, or another cause that keeps the others waiting. A pure function."""
    evidence = _evidence(dumps)
    kind, cause, named = _judge(evidence)
    blockers, dumped_ns = evidence.blockers, evidence.dump_times.taken_ns
    named = [replace(accusation, certain=accusation.certain and _is_certain(evidence, accusation)) for accusation in named]
    first = next((accusation for accusation in named if accusation.meeting is not None), None)
    unnamed = _at_odds(evidence) if cause == "mismatch" else blockers.stuck() if cause == "stuck" else []
    meeting = first.meeting if first is not None else next(iter(unnamed), None)
    mismatches = dict.fromkeys([*_at_odds(evidence), *evidence.mismatches]) if kind == "hang" else {}
    culprits = [_culprit(evidence, accusation) for accusation in named]
    waiting = [_waiting(evidence, rank, oldest) for rank, oldest in sorted(blockers.oldest.items())] if kind != "no_hang" else []
    suspects = sorted(blockers.silent.keys() - {accusation.rank for accusation in named}) if kind != "no_hang" else []
    doubtful = kind == "hang" and cause != "mismatch" and not any(map(evidence.dump_times.is_certain, blockers.blocks))
    timed = not (doubtful and blockers.oldest) or any(rank in dumped_ns for rank in blockers.oldest)
    report = HangReport(
        kind=kind,
        cause=cause,
        culprits=sorted(accusation.rank for accusation in named),
        suspects=suspects[:MOST_LISTED],
        collective=None if meeting is None else _operation(meeting, meeting.sample),
        group=None if meeting is None else _group(meeting.group),
        chain=_chain(evidence, first.rank) if first is not None else [],
        waiting=waiting,
        evidence=culprits,
        mismatches=[evidence.mismatches[meeting][0] for meeting in mismatches],
        summary="",
        path=_encodable(dumps.path),
        ranks=len(dumps.ranks),
        world_size=evidence.world_size,
        attempt=dumps.attempt,
        coverage=min(1.0, len(dumps.ranks) / evidence.world_size) if evidence.world_size else None,
        warnings=_warnings(
            evidence,
            suspects,
            young=kind == "no_hang" and blockers.young > 0,
            short=doubtful and timed,
        ),
        next=[],
        dumped_unix_ns=min((dumped_ns[rank] for rank in blockers.oldest or dumped_ns if rank in dumped_ns), default=None),
    )
    report = msgspec.structs.replace(report, summary=summary_of(report, silent=len(suspects), timed=timed))
    return msgspec.structs.replace(report, next=advice(report, run=dumps.run, hosts=dumps.hosts, pids=dumps.pids))


def _evidence(dumps: LoadedDumps) -> DumpEvidence:
    recorded_size = dumps.world_size if dumps.world_size is not None and 0 < dumps.world_size <= LARGEST_WORLD else None
    groups = Groups(dumps.ranks, recorded_size)
    progress = ProgressTable(dumps.ranks, groups, dumps.crashed)
    largest = max(
        (
            len(config.ranks)
            for parts in dumps.ranks.values()
            for dump in parts
            for config in dump.configs.values()
            if config.ranks
        ),
        default=None,
    )
    meetings = find_meetings(progress)
    dump_times = dump_times_of(dumps.ranks, dumps.taken_ns)
    ended = find_mismatches([meeting for meeting in meetings if meeting.ended], progress)
    blockers = find_blockers(meetings, dump_times, progress.ranks, ended)
    mismatched = find_mismatches(dict.fromkeys(blockers.oldest.values()), progress)
    return DumpEvidence(dumps, recorded_size or largest, progress, meetings, dump_times, blockers, mismatched)


def _judge(evidence: DumpEvidence) -> tuple[HangKind, HangCause | None, list[Accusation]]:
    """Return the result of the first rule that applies."""
    for rule in _RULES:
        if (accusations := rule(evidence)) is not None:
            cause, named = accusations
            return "hang", cause, named
    nothing = not any(dump.records or dump.progress for parts in evidence.dumps.ranks.values() for dump in parts)
    return "insufficient_data" if nothing or evidence.blockers.oldest else "no_hang", None, []


def _by_absence(evidence: DumpEvidence) -> Accusations | None:
    """Find ranks that did not arrive and wait for nothing, and ranks whose device is lost; the most awaited first."""
    blockers = evidence.blockers
    named = [Accusation(rank, "not_arrived", _most_awaited(blockers, meetings)) for rank, meetings in blockers.late.items()]
    for rank in blockers.lost:
        awaited = [meeting for meeting, blocked in blockers.blocks.items() if rank in blocked]
        named.append(Accusation(rank, "lost_device", _most_awaited(blockers, awaited) if awaited else None))
    named.sort(key=lambda accusation: (-_waits(blockers, accusation.meeting), accusation.rank))
    return (named[0].cause, named) if named else None


def _by_mismatch(evidence: DumpEvidence) -> Accusations | None:
    meetings = _at_odds(evidence)
    named: dict[int, Accusation] = {}
    for meeting in meetings:
        for rank in evidence.mismatches[meeting][1]:
            named.setdefault(rank, Accusation(rank, "mismatch", meeting))
    return ("mismatch", list(named.values())) if meetings else None


def _at_odds(evidence: DumpEvidence) -> list[Meeting]:
    """Return the meetings to which ranks came with different operations, sizes or data types, and none is known to be late."""
    harmless = {"held_up", "no_dump", "untold"}
    return [meeting for meeting in evidence.mismatches if set(evidence.blockers.blocks[meeting].values()) <= harmless]


def _by_start(evidence: DumpEvidence) -> Accusations | None:
    """Find ranks whose device has not started a collective that other devices have started.

    Applies only where torch records start times.
    """
    times = {
        rank
        for rank, parts in evidence.dumps.ranks.items()
        if any(record.started_ns is not None for dump in parts for record in dump.records)
    }
    for meeting in evidence.blockers.stuck():
        idle = sorted(rank for rank, record in meeting.records.items() if record.state == "scheduled" and rank in times)
        if idle and any(record.state == "started" for record in meeting.records.values()):
            return "not_started", [Accusation(rank, "not_started", meeting) for rank in idle]
    return None


def _by_circle(evidence: DumpEvidence) -> Accusations | None:
    """Find a deadlock and name its ranks outside the meeting in which most of them wait; all of them without a majority."""
    blockers = evidence.blockers
    circle = blockers.deadlock()
    places: dict[Meeting, list[int]] = {}
    for rank in circle:
        places.setdefault(blockers.oldest[rank], []).append(rank)
    most = max(places.values(), key=len, default=[])
    minority = [rank for rank in circle if rank not in most] if 2 * len(most) > len(circle) else circle
    return ("deadlock", [Accusation(rank, "deadlock", blockers.oldest[rank]) for rank in minority]) if circle else None


def _by_standstill(evidence: DumpEvidence) -> Accusations | None:
    return ("stuck", []) if evidence.blockers.stuck() else None


def _by_silence(evidence: DumpEvidence) -> Accusations | None:
    """Find ranks whose arrival no dump shows, in a meeting to which all other ranks came.

    The rule does not apply if these ranks outnumber those that came, or if other ranks without a dump are awaited elsewhere:
    then the dumps are incomplete.
    """
    blockers = evidence.blockers
    for meeting in sorted(blockers.blocks, key=lambda row: (-_waits(blockers, row), *_age(row))):
        blocked = blockers.blocks[meeting].items()
        missing = [rank for rank, why in blocked if why in ("no_dump", "untold") and rank not in blockers.oldest]
        if missing and len(missing) <= len(meeting.records) and blockers.silent.keys() <= set(missing):
            named = [
                Accusation(rank, "not_arrived" if rank in evidence.progress.ranks else "no_dump", meeting, certain=False)
                for rank in missing
            ]
            return named[0].cause, named
    return None


_RULES: Final[tuple[Callable[[DumpEvidence], Accusations | None], ...]] = (
    _by_absence,
    _by_mismatch,
    _by_start,
    _by_circle,
    _by_standstill,
    _by_silence,
)


def _most_awaited(blockers: Blockers, meetings: Sequence[Meeting]) -> Meeting:
    return min(meetings, key=lambda meeting: (-_waits(blockers, meeting), *_age(meeting)))


def _age(meeting: Meeting) -> tuple[int, str, int]:
    return meeting.sample.created_ns or 0, meeting.group.name, min(meeting.records)


def _waits(blockers: Blockers, meeting: Meeting | None) -> int:
    """Return the number of ranks that wait in a meeting."""
    return 0 if meeting is None else sum(blockers.oldest.get(rank) is meeting for rank in meeting.records)


def _is_certain(evidence: DumpEvidence, named: Accusation) -> bool:
    """Return whether ranks had waited for long, by times that are known: else a job that goes on may look like that.

    Not so a mismatch, which no job survives.
    """
    if named.cause == "mismatch":
        return True
    meetings = [named.meeting] if named.meeting is not None else evidence.blockers.lost.get(named.rank, [])
    return any(evidence.dump_times.is_certain(meeting) or _has_failed(evidence, meeting) for meeting in meetings)


def _has_failed(evidence: DumpEvidence, meeting: Meeting) -> bool:
    """Return whether an exception ended a rank in this meeting, after its timeout."""
    operations = ((evidence.progress.of(meeting.group, rank), record) for rank, record in meeting.records.items())
    return any(rank_progress is not None and rank_progress.overdue is record for rank_progress, record in operations)


def _culprit(evidence: DumpEvidence, named: Accusation) -> Culprit:
    meeting, rank = named.meeting, named.rank
    rank_progress = None if meeting is None else evidence.progress.of(meeting.group, rank)
    last = max(
        (record for dump in evidence.dumps.ranks.get(rank, []) for record in dump.records),
        key=lambda record: (record.created_ns or 0, record.record_id),
        default=None,
    )
    awaited_by = (
        []
        if meeting is None
        else sorted(other for other in meeting.records if evidence.blockers.oldest.get(other) is meeting and other != rank)
    )
    culprit = Culprit(
        rank=rank,
        host=evidence.dumps.hosts.get(rank),
        cause=named.cause,
        certain=named.certain,
        awaited_in=None if meeting is None else _operation(meeting, meeting.sample),
        awaited_by=awaited_by[:MOST_LISTED],
        last_sequence=None if rank_progress is None or meeting is None or meeting.transfer else rank_progress.newest,
        last=None if last is None else _operation_of(last, None),
        detail="",
    )
    arrived = meeting is not None and rank in meeting.records
    is_shown = rank_progress is not None and rank_progress.newest is not None and rank not in evidence.progress.damaged
    detail = detail_of(culprit, len(evidence.blockers.lost.get(rank, [])), arrived=arrived, is_shown=is_shown)
    return msgspec.structs.replace(culprit, detail=detail)


def _waiting(evidence: DumpEvidence, rank: int, meeting: Meeting) -> Waiting:
    record = meeting.records[rank]
    waited = evidence.dump_times.waited_ns(rank, record)
    blocked = [other for other in evidence.blockers.blocks[meeting] if other != rank]
    return Waiting(
        rank=rank,
        host=evidence.dumps.hosts.get(rank),
        operation=_operation(meeting, record),
        pending=evidence.progress.pending_of(rank),
        waits_for=blocked[:MOST_LISTED],
        waited_s=None if waited is None else round(waited / 1e9, 3),
    )


def _chain(evidence: DumpEvidence, culprit: int) -> list[Link]:
    blockers = evidence.blockers
    chain = blockers.chain_to(culprit)
    return [
        Link(
            rank=rank,
            waits_for=following,
            why=blockers.blocks[blockers.oldest[rank]][following],
            operation=_operation(blockers.oldest[rank], blockers.oldest[rank].records[rank]),
        )
        for rank, following in pairwise(chain)
    ]


def _operation(meeting: Meeting, record: Record) -> Operation:
    """Describe the operation as the rank of ``record`` enqueued it."""
    peer = None
    if meeting.transfer:
        owner = next(rank for rank, enqueued in meeting.records.items() if enqueued is record)
        peer = next(iter(meeting.expected - {owner}))
    return _operation_of(record, peer)


def _operation_of(record: Record, peer: int | None) -> Operation:
    return Operation(
        op=record.op,
        group=record.group,
        group_description=record.description,
        sequence=record.number,
        peer=peer,
        state=record.state,
        input_sizes=record.shapes("input"),
        output_sizes=record.shapes("output"),
        input_dtypes=record.dtypes("input"),
        output_dtypes=record.dtypes("output"),
        enqueued_unix_ns=record.created_ns,
        timeout_ms=record.timeout_ms,
        frames=record.frames(),
    )


def _group(group: HangGroup) -> ProcessGroup:
    return ProcessGroup(
        name=group.name,
        description=group.description,
        backend=group.backend,
        size=len(group.ranks),
        ranks=list(group.ranks[:MOST_LISTED]),
        ranks_known=group.ranks_known,
    )


def _encodable(text: str) -> str:
    """Replace what UTF-8 cannot encode: file names need not be UTF-8."""
    return text.encode(errors="replace").decode()


def _warnings(evidence: DumpEvidence, suspects: list[int], *, young: bool, short: bool) -> list[str]:
    warnings = [_encodable(warning) for warning in evidence.dumps.warnings]
    if suspects:
        warnings.append(f"no dump of {ranks_text(suspects)}, which others wait for: late as well, or dead")
    if young:
        warnings.append("ranks were waiting for a few seconds only when they were dumped: a job that goes on looks like that")
    if short:
        warnings.append(
            "ranks were waiting for less than a minute when they were dumped, and clocks of hosts and file servers may differ by "
            "that: a job that goes on may look like that"
        )
    if any(not meeting.group.ranks_known for meeting in evidence.blockers.blocks):
        warnings.append(
            "the dumps do not say which ranks are in each process group (gloo does not): those that were seen in it count"
        )
    return warnings
