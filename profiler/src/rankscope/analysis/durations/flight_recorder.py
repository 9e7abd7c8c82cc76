"""Operations of all ranks with their durations, read from Flight Recorder dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Final

from rankscope.analysis.collectives.arrivals import Numbers
from rankscope.analysis.collectives.cycles import steps_of
from rankscope.analysis.collectives.traffic.message_size import element_bytes
from rankscope.analysis.collectives.world import least_ranks_of_groups
from rankscope.analysis.durations.duration_calls import LONGEST_US, MAX_CALLS, DurationCall, DurationCalls, RankCalls, calls_of
from rankscope.analysis.durations.sources import Durations
from rankscope.analysis.hang.diagnosis import analyze_hang, waits_long
from rankscope.analysis.hang.files import DumpFile, dumps_among, find_dumps, newer_versions, read_dump
from rankscope.analysis.hang.flight_records import Record, RecorderDump, text
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.hang.job_dumps import Origin, dumps_of_one_job, origin_of
from rankscope.analysis.operations import operation, operation_name
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.possible import MOST_BYTES
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text
from rankscope.runs.durations import AUTOGRAD, DURATION_SOURCES, PART, TRANSFER, DurationGroup

_SLOWER: Final = 60
"""Time to read a byte of a dump, relative to a byte of a trace."""
_SLACK_MS: Final = 10.0
_TIMING: Final = "set TORCH_NCCL_ENABLE_TIMING=1 and TORCH_FR_BUFFER_SIZE=8000 when the job starts"


def holds(files: Sequence[Path]) -> bool:
    """Return whether there are dumps among files."""
    return dumps_among(files)


def read_durations(paths: Sequence[Path], engine: Engine) -> Durations:
    """Read the dumps of a job, one file per rank. Raises ``InputError`` for dumps without durations in which no rank waits."""
    files, warnings = find_dumps(paths)
    ranks, any_waits = _read_calls(files, warnings, engine)
    report = analyze_hang(paths) if any_waits else None
    hang = report if report is not None and (report.kind == "hang" or report.waiting) else None
    without = [rank for rank, of_rank in ranks.items() if not of_rank.has_durations]
    if hang is None and len(without) == len(ranks):
        raise InputError(files[0].path, f"no collective has a duration, so no wait is known; {_TIMING}")
    if 0 < len(without) < len(ranks):
        warnings.append(f"no durations from {ranks_text(without)}; {_TIMING}")
    members = [group.ranks or () for of_rank in ranks.values() for group in of_rank.groups.values()]
    return _durations(ranks, least_ranks_of_groups([ranks, *members]), warnings, hang)


def stored_durations(ranks: Mapping[int, RankCalls], world_size: int) -> Durations:
    """Return the durations of the operations that were stored with a run."""
    for of_rank in ranks.values():
        # Operations that ended late were stored later.
        of_rank.rows.sort(key=attrgetter("issued_ns"))
    return _durations(ranks, world_size, [], None)


def _durations(ranks: Mapping[int, RankCalls], world_size: int, warnings: list[str], hang: HangReport | None) -> Durations:
    return Durations(DURATION_SOURCES["flight_recorder"], calls_of(ranks), world_size, _steps_of, warnings, hang=hang)


def _steps_of(calls: DurationCalls) -> Numbers:
    # The sizes of an all-to-all may follow the data, and then differ from step to step.
    return steps_of(calls.issued(calls.of_family("all_to_all")))


def _read_calls(files: Sequence[DumpFile], warnings: list[str], engine: Engine) -> tuple[dict[int, RankCalls], bool]:
    """Read the dumps, and return whether any rank waits for long. Those that cannot be read are left out with a warning."""
    any_waits = False
    versions: set[str | None] = set()
    ranks: dict[int, RankCalls] = {}
    errors: list[InputError] = []
    most = max(1, MAX_CALLS // len(files))
    paths = [file.path for file in files]
    text_bytes = _SLOWER * sum(path.stat().st_size for path in paths if path.exists())
    read: dict[Path, ReadDump] = {}
    results = engine.map(partial(_read_one, most=most), files, files=paths, text_bytes=text_bytes)
    for file, result in zip(files, results, strict=True):
        if isinstance(result, InputError):
            errors.append(result)
        else:
            read[file.path] = result
    for origin in dumps_of_one_job([dump.origin for dump in read.values()], warnings):
        dump = read[origin.path]
        of_rank = ranks.setdefault(origin.rank, RankCalls())
        of_rank.rows += dump.calls.rows
        of_rank.groups |= dump.calls.groups
        of_rank.damaged += dump.calls.damaged
        any_waits |= dump.waits_long
        versions.add(dump.newer_version)
    if not ranks:
        raise errors[0]
    warnings += [f"left out: {error}" for error in errors]
    warnings += newer_versions(versions)
    if damaged := {rank: of_rank.damaged for rank, of_rank in ranks.items() if of_rank.damaged}:
        count = counted(sum(damaged.values()), "record")
        warnings.append(f"{count} in the dumps of {ranks_text(sorted(damaged))} left out, which make no sense")
    if any(len(of_rank.rows) == most for of_rank in ranks.values()):
        warnings.append(f"at most the last {most:,} operations of each rank are compared")
    return ranks, any_waits


@dataclass(frozen=True, slots=True)
class ReadDump:
    """Content of one dump, as far as the analysis of all dumps needs it."""

    origin: Origin
    calls: RankCalls
    waits_long: bool
    newer_version: str | None


def _read_one(file: DumpFile, *, most: int) -> ReadDump | InputError:
    """Read the last ``most`` operations of a dump; an error is returned, because the other dumps may do."""
    try:
        dump = read_dump(file.path, backend=file.backend, whole_history=True)
    except InputError as error:
        return error
    origin = origin_of(file.path, file.rank, dump)
    return ReadDump(origin, calls_of_dump(dump, dump.records[-most:]), waits_long(file, dump), dump.newer_version)


def calls_of_dump(dump: RecorderDump, records: Sequence[Record]) -> RankCalls:
    """Return some operations of a dump, with all groups in it."""
    members = {_group(dump.backend or "", name): config.ranks for name, config in dump.configs.items() if config.ranks}
    groups = {name: DurationGroup(name, ranks=list(ranks)) for name, ranks in members.items()}
    return RankCalls([_row(record) for record in records], groups, dump.damaged)


def _group(backend: str, name: str) -> str:
    """Return the key of a group: torch numbers the groups of each backend apart."""
    return name if backend == "nccl" else f"{backend}:{name}"


def _row(record: Record) -> DurationCall:
    op = operation_name(record.op)
    is_part = record.is_p2p and record.raw.get("duration_ms") is None
    by_autograd = text(record.raw.get("thread_name")).startswith("pt_autograd")
    return DurationCall(
        _group(record.backend, record.group),
        op,
        record.sequence,
        record.elements("input"),
        record.created_ns or 0,
        0,
        _duration_us(record),
        TRANSFER * (record.is_p2p or operation(op).is_p2p) | PART * is_part | AUTOGRAD * by_autograd,
        # Where ranks differ in bytes, as in an uneven all-to-all, the first to leave was not the last to arrive.
        _bytes(record) if op == "all_to_all" else None,
    )


def _duration_us(record: Record) -> float | None:
    """Return the duration on the device; ``None`` where it is missing, makes no sense or is longer than the operation existed."""
    took = record.raw.get("duration_ms")
    if isinstance(took, bool) or not isinstance(took, int | float) or not 0 <= 1000 * took < LONGEST_US:
        return None
    if record.created_ns is not None and record.completed_ns is not None:
        existed_ms = (record.completed_ns - record.created_ns) / 1e6
        # A clock may have been set in between: then the duration is right, and this difference is negative.
        if 0 < existed_ms < took - _SLACK_MS:
            return None
    return 1000.0 * took


def _bytes(record: Record) -> int | None:
    """Return the bytes of all inputs and outputs; ``None`` where a type is unknown, or the sizes make no sense."""
    total = 0
    for side in ("input", "output"):
        shapes, widths = record.shapes(side), [element_bytes(name) for name in record.dtypes(side)]
        if len(shapes) != len(widths) or None in widths:
            return None
        total += sum(prod(shape) * width for shape, width in zip(shapes, widths, strict=True) if width is not None)
    return total if total < MOST_BYTES else None
