"""Which rank holds the others up, by what the ranks of a live run are doing while they stand still (``activity.json``).

A helper beside each rank reads in which phase its training thread is, and whether it waits for other ranks, also while that
thread hangs. This shows who does not wait, but not in which collective the others do, so the result is never certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from rankscope.analysis.hang.hang_result import (
    MOST_LISTED,
    ActivityReport,
    Culprit,
    HangCause,
    HangKind,
    HangReport,
    StandingRank,
)
from rankscope.analysis.hang.hang_wording import advice, place_text
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.text import one_line, ranks_text, shortened, span
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RankActivity, RankInfo
from rankscope.runs.world_size import LARGEST_WORLD, recorded_world_size

BELIEVED_NS: Final = 120 * 10**9
"""Age up to which a rank's activity counts: it is refreshed every 30 s, and clocks and caches of file servers differ by a minute.
An older one is that of a rank whose helper died."""
_MAX_NAME: Final = 60
_PLACES: Final = 4
_NOT_NAMED: Final = ("no_dump", "stuck")
"""Causes of hangs for which dumps and NCCL RAS do not show who is late."""


@dataclass(frozen=True, slots=True)
class Activities:
    """What the ranks of the last attempt of a run do, as far as they stand still."""

    doing: Mapping[int, RankActivity]
    ended: Mapping[int, str]
    """How ranks ended."""
    unknown: Sequence[int]
    """Ranks that have not ended and of which nothing is known: they go on, or their recorder does not."""
    infos: Mapping[int, RankInfo]
    run: str
    attempt: int
    world_size: int | None
    read_unix_ns: int


def read_activities(reader: RunReader, attempt: int, infos: Mapping[int, RankInfo], *, now_unix_ns: int) -> Activities | None:
    """Read what the ranks of an attempt do; ``None``: no rank is known to stand still."""
    ended = {rank: info.end_reason or "end" for rank, info in infos.items() if info.end_reason or info.end_unix_ns is not None}
    doing = {
        rank: activity
        for rank in infos
        if rank not in ended and (activity := reader.activity(attempt, rank)) is not None
        if (activity.attempt, activity.rank) == (attempt, rank) and abs(now_unix_ns - activity.updated_unix_ns) <= BELIEVED_NS
    }
    if not doing:
        return None
    world_size = recorded_world_size(reader.attempt(attempt), infos.values())
    expected = {*infos, *range(min(world_size or 0, LARGEST_WORLD))}
    unknown = sorted(expected - doing.keys() - ended.keys())
    return Activities(doing, ended, unknown, infos, str(reader.path), attempt, world_size, now_unix_ns)


@dataclass(frozen=True, slots=True)
class _ActivityVerdict:
    kind: HangKind
    cause: HangCause | None = None
    named: Sequence[int] = ()
    why: str = ""
    """What each named rank does; empty: what it stands in."""


def _judge(activities: Activities) -> _ActivityVerdict:
    """Return the result of the first rule that applies."""
    doing = activities.doing
    stopped = [rank for rank, row in doing.items() if row.process == "stopped"]
    if stopped:
        return _ActivityVerdict("hang", "not_arrived", stopped, "its process is stopped (state T in ps)")
    waiting = [rank for rank, row in doing.items() if row.waiting]
    busy = [rank for rank, row in doing.items() if row.waiting is False]
    if waiting and busy:
        return _ActivityVerdict("hang", "not_arrived", busy, "does not wait for other ranks")
    if waiting and len(waiting) == len(doing) and not activities.unknown:
        return _ActivityVerdict("hang", "not_arrived", [*activities.ended], "has ended") if activities.ended else _all_wait(doing)
    if not waiting and not busy:
        return _on_devices(doing)
    return _ActivityVerdict("insufficient_data")


def _all_wait(doing: Mapping[int, RankActivity]) -> _ActivityVerdict:
    """All ranks wait: in the communication itself, or for each other in different places."""
    places = _by_place(doing)
    if len(doing) == 1 or len(places) == 1:
        return _ActivityVerdict("hang", "stuck")
    largest = max(places.values(), key=len)
    if 2 * len(largest) > len(doing):
        others = [rank for rank in doing if rank not in largest]
        return _ActivityVerdict("hang", "deadlock", others, "waits at another place than most")
    return _ActivityVerdict("hang", "stuck")


def _on_devices(doing: Mapping[int, RankActivity]) -> _ActivityVerdict:
    """On devices the host does not wait where the rank does: name the few that load data or write a checkpoint."""
    on_host = [rank for rank, row in doing.items() if row.phase == "data" or row.section == "checkpoint"]
    if on_host and 2 * len(on_host) < len(doing):
        return _ActivityVerdict("hang", "not_arrived", on_host)
    return _ActivityVerdict("insufficient_data")


def activity_report(activities: Activities) -> ActivityReport:
    """Return what the activities of the ranks show. A pure function."""
    judged = _judge(activities)
    rows = [standing_rank(activities, rank) for rank in sorted(activities.doing)]
    unknown = (
        f" It is not known what {ranks_text(activities.unknown)} {'does' if len(activities.unknown) == 1 else 'do'}."
        if activities.unknown
        else ""
    )
    return ActivityReport(
        read_unix_ns=activities.read_unix_ns,
        kind=judged.kind,
        cause=judged.cause,
        culprits=sorted(judged.named),
        unknown=list(activities.unknown[:MOST_LISTED]),
        ranks=rows[:MOST_LISTED],
        standing=len(rows),
        summary=_summary(activities, judged) + unknown,
    )


def standing_rank(activities: Activities, rank: int) -> StandingRank:
    """Return what one of the ranks that stand still is doing."""
    row = activities.doing[rank]
    return StandingRank(
        rank=rank,
        host=activities.infos[rank].host,
        step=row.step,
        phase=row.phase,
        section=_section(row),
        waiting=row.waiting,
        process=row.process,
        since_s=_since_s(activities, row),
    )


def _summary(activities: Activities, judged: _ActivityVerdict) -> str:
    if judged.kind == "insufficient_data":
        return f"Not enough data for a verdict: {_lacking(activities)}: {_doing(activities, activities.doing, by_rank=True)}."
    if judged.cause == "stuck":
        return _stuck(activities)
    subject, named = _named(judged.named), {rank: activities.doing[rank] for rank in judged.named if rank in activities.doing}
    is_one = len(judged.named) == 1
    place = _doing(activities, named, by_rank=not is_one)
    other_rows = {rank: row for rank, row in activities.doing.items() if rank not in judged.named}
    waiting = {rank: row for rank, row in other_rows.items() if row.waiting}
    others = (
        f"; {counted(len(waiting), 'rank')} {_waits(len(waiting))} for other ranks {_doing(activities, waiting)}"
        if waiting
        else ""
    )
    if not named:
        how = " and ".join(dict.fromkeys(activities.ended[rank] for rank in judged.named))
        text = f"{subject} {'has' if is_one else 'have'} ended ({how})"
    elif judged.cause == "deadlock":
        text = f"{subject} {_waits(len(named))} at another place than most ({place})"
    elif any(row.process == "stopped" for row in named.values()):
        text = f"{subject} {'is a stopped process' if is_one else 'are stopped processes'} ({place})"
    elif waiting:
        text = f"{subject} {'does' if is_one else 'do'} not wait for other ranks ({place})"
    else:
        verb = "holds" if is_one else "hold"
        text = f"{subject} probably {verb} the others up ({place}); the others are {_doing(activities, other_rows)}"
    return f"{text}{others}."


def _stuck(activities: Activities) -> str:
    if len(activities.doing) == 1:
        return f"{_named([*activities.doing])} waits for other ranks {_doing(activities, activities.doing)}."
    reason_text = "the communication itself hangs, or they wait in different collectives"
    return f"All {len(activities.doing)} ranks wait for each other, {_doing(activities, activities.doing)}: {reason_text}."


def _lacking(activities: Activities) -> str:
    waiting = sum(bool(row.waiting) for row in activities.doing.values())
    if waiting:
        return f"{counted(waiting, 'rank')} {_waits(waiting)} for other ranks, and none is seen that does not"
    if any(row.waiting is None for row in activities.doing.values()):
        return "it is not known whether ranks wait for others, only where they stand"
    return "no rank waits for another"


def _by_place(rows: Mapping[int, RankActivity]) -> dict[tuple[object, ...], list[int]]:
    places: dict[tuple[object, ...], list[int]] = {}
    for rank, row in rows.items():
        places.setdefault((row.step, row.phase, _section(row)), []).append(rank)
    return places


def _doing(activities: Activities, rows: Mapping[int, RankActivity], *, by_rank: bool = False) -> str:
    """Return where ranks stand and since when: ``in backward of step 12 for 40 s``."""
    texts = []
    for ranks in sorted(_by_place(rows).values(), key=lambda ranks: (-len(ranks), ranks)):
        longest = max((activities.doing[rank] for rank in ranks), key=lambda row: _since_s(activities, row))
        subject = f"{ranks_text(sorted(ranks))} " if by_rank else ""
        texts.append(
            f"{subject}{place_text(longest.phase, _section(longest), longest.step)} for {span(_since_s(activities, longest))}"
        )
    return first_of(texts, _PLACES, "; ")


def _section(row: RankActivity) -> str | None:
    return None if row.section is None else shortened(one_line(row.section), _MAX_NAME)


def _since_s(activities: Activities, row: RankActivity) -> float:
    return max(0.0, (activities.read_unix_ns - row.since_unix_ns) / 1e9)


def _named(ranks: Sequence[int]) -> str:
    text = ranks_text(sorted(ranks))
    return text[:1].upper() + text[1:]


def _waits(ranks: int) -> str:
    return "waits" if ranks == 1 else "wait"


def hang_by_activity(activities: Activities) -> HangReport:
    """Return the report on a job of which nothing but the activities of its ranks is known."""
    shown = activity_report(activities)
    report = HangReport(
        kind=shown.kind,
        cause=shown.cause,
        culprits=shown.culprits,
        suspects=[] if shown.kind == "hang" else shown.unknown,
        collective=None,
        group=None,
        chain=[],
        waiting=[],
        evidence=_culprits(activities),
        mismatches=[],
        summary=shown.summary,
        path=activities.run,
        ranks=0,
        world_size=activities.world_size,
        attempt=activities.attempt,
        coverage=None,
        warnings=[],
        next=[],
        activity=shown,
    )
    return _advised(report, activities)


def with_activity(report: HangReport, activities: Activities) -> HangReport:
    """Add the activities of the ranks to the report on dumps and NCCL RAS.

    These stand where they name ranks, because they show calls, and where NCCL RAS saw the job go on.
    """
    shown = activity_report(activities)
    report = msgspec.structs.replace(report, activity=shown)
    goes_on = report.ras is not None and report.ras.live and report.ras.moved
    if goes_on or shown.kind != "hang" or not shown.culprits:
        return report
    if report.kind == "hang" and report.cause not in _NOT_NAMED:
        if set(shown.culprits) <= set(report.culprits):
            return report
        return msgspec.structs.replace(
            report, warnings=[*report.warnings, f"what the ranks are doing names others: {shown.summary}"]
        )
    earlier = [] if report.kind == "insufficient_data" else [f"by the dumps alone: {report.summary}"]
    named = msgspec.structs.replace(
        report,
        kind="hang",
        cause=shown.cause,
        culprits=shown.culprits,
        suspects=[rank for rank in report.suspects if rank not in shown.culprits],
        chain=[],
        evidence=_culprits(activities),
        summary=shown.summary,
        warnings=[*report.warnings, *earlier],
    )
    return _advised(named, activities)


def _culprits(activities: Activities) -> list[Culprit]:
    judged = _judge(activities)
    waiting = sorted(rank for rank, row in activities.doing.items() if row.waiting and rank not in judged.named)
    return [
        Culprit(
            rank=rank,
            host=activities.infos[rank].host if rank in activities.infos else None,
            cause=judged.cause or "not_arrived",
            certain=False,
            awaited_in=None,
            awaited_by=waiting[:MOST_LISTED],
            last_sequence=None,
            last=None,
            detail=_detail(activities, judged, rank),
        )
        for rank in sorted(judged.named)
    ]


def _detail(activities: Activities, judged: _ActivityVerdict, rank: int) -> str:
    row = activities.doing.get(rank)
    if row is None:
        return f"{judged.why} ({activities.ended[rank]})"
    disk = "its main thread is in an uninterruptible wait, as for a disk or a network filesystem" if row.process == "disk" else ""
    return ", ".join(filter(None, [judged.why, _doing(activities, {rank: row}), disk]))


def _advised(report: HangReport, activities: Activities) -> HangReport:
    hosts, pids = ({rank: getattr(info, name) for rank, info in activities.infos.items()} for name in ("host", "pid"))
    return msgspec.structs.replace(report, next=advice(report, run=activities.run, hosts=hosts, pids=pids))
