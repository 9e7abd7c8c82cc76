"""Operations of all ranks with their durations, read from Flight Recorder dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

from rankscope.analysis.collectives.cycles import Issued, steps_of
from rankscope.analysis.collectives.message_size import element_bytes
from rankscope.analysis.collectives.world import least_ranks_of_groups
from rankscope.analysis.durations.calls import MAX_CALLS, RECORD_IT, Call, Durations, RankCalls, Wording
from rankscope.analysis.hang.diagnosis import analyze_hang, waits_long
from rankscope.analysis.hang.files import DumpFile, find_dumps, newer_versions, read_dump
from rankscope.analysis.hang.job_dumps import Origin, dumps_of_one_job, origin_of
from rankscope.analysis.hang.records import Dump, Record, text
from rankscope.analysis.operations import operation, operation_name
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.possible import MOST_BYTES
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text

_SLOWER: Final = 60
"""Time to read a byte of a dump, relative to a byte of a trace."""
_LONGEST_MS: Final = 86_400_000.0
_SLACK_MS: Final = 10.0
_TIMING: Final = "set TORCH_NCCL_ENABLE_TIMING=1 and TORCH_FR_BUFFER_SIZE=8000 when the job starts"


FLIGHT_WORDING: Final = Wording(
    one="dump",
    many="dumps",
    missing="dumps of {found} of {world_size} ranks: groups with a missing rank are left out",
    more_steps="set TORCH_FR_BUFFER_SIZE to several times the operations of a step",
    together="dump all ranks at about the same time",
    more_order=RECORD_IT,
)


def read_flight_durations(paths: Sequence[Path], engine: Engine) -> Durations:
    """Read the dumps of a job, one file per rank. Raises ``InputError`` for dumps without durations in which no rank waits."""
    files, warnings = find_dumps(paths)
    ranks, any_waits = _read_calls(files, warnings, engine)
    report = analyze_hang(paths) if any_waits else None
    hang = report if report is not None and (report.kind == "hang" or report.waiting) else None
    without = [rank for rank, one in ranks.items() if all(call.duration_us is None for call in one.calls)]
    if hang is None and len(without) == len(ranks):
        raise InputError(files[0].path, f"no collective has a duration, so nobody's wait is known; {_TIMING}")
    if 0 < len(without) < len(ranks):
        warnings.append(f"no durations from {ranks_text(without)}; {_TIMING}")
    world_size = least_ranks_of_groups([ranks, *(members for one in ranks.values() for members in one.members.values())])
    return Durations("flight_recorder", ranks, world_size, FLIGHT_WORDING, steps_of, warnings, hang=hang)


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
    for origin in dumps_of_one_job([found.origin for found in read.values()], warnings):
        found = read[origin.path]
        one = ranks.setdefault(origin.rank, RankCalls())
        one.calls += found.calls.calls
        one.members |= found.calls.members
        one.damaged += found.calls.damaged
        any_waits |= found.waits_long
        versions.add(found.newer_version)
    if not ranks:
        raise errors[0]
    warnings += [f"left out: {error}" for error in errors]
    warnings += newer_versions(versions)
    if damaged := {rank: one.damaged for rank, one in ranks.items() if one.damaged}:
        count = counted(sum(damaged.values()), "record")
        warnings.append(f"{count} in the dumps of {ranks_text(sorted(damaged))} left out, which make no sense")
    if any(len(one.calls) == most for one in ranks.values()):
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


def calls_of_dump(dump: Dump, records: Sequence[Record]) -> RankCalls:
    """Return some operations of a dump, with the members of all groups in it."""
    backend = dump.backend or ""
    members = {_group(backend, name): list(config.ranks) for name, config in dump.configs.items() if config.ranks}
    return RankCalls([_call(record, members) for record in records], members, dump.damaged)


def _group(backend: str, name: str) -> str:
    """Return the key of a group: torch numbers the groups of each backend apart."""
    return name if backend == "nccl" else f"{backend}:{name}"


def _call(record: Record, members: Mapping[str, list[int]]) -> Call:
    op = operation_name(record.op)
    group = _group(record.backend, record.group)
    transfers = record.is_p2p or operation(op).is_p2p
    return flight_call(
        group,
        op,
        record.sequence,
        # Groups of different ranks may have one name; the one of all ranks is "0".
        is_matchable=not transfers and (group in members or record.group == "0"),
        by_autograd=text(record.raw.get("thread_name")).startswith("pt_autograd"),
        elements=record.elements("input"),
        bytes=_bytes(record) if op == "all_to_all" else None,
        created_ns=record.created_ns or 0,
        duration_us=_duration_us(record),
        is_part=record.is_p2p and record.raw.get("duration_ms") is None,
    )


def flight_call(
    group: str,
    op: str,
    sequence: int,
    *,
    is_matchable: bool,
    by_autograd: bool,
    elements: int,
    bytes: int | None,  # noqa: A002  # as the field
    created_ns: int,
    duration_us: float | None,
    is_part: bool,
) -> Call:
    """Return an operation that the Flight Recorder has recorded; the fields are those of ``Call``."""
    # The sizes of an all-to-all may follow the data, and then differ from step to step.
    row = operation(op)
    kind = (group, op, 0 if row.family == "all_to_all" else elements, by_autograd)
    key = (group, sequence) if is_matchable else None
    issued = Issued(key, kind, created_ns, by_autograd, elements if row.reduces_equal else 0)
    # Where ranks differ in bytes, as in an uneven all-to-all, the first to leave was not the last to arrive.
    return Call(issued, group, op, sequence, is_matchable, elements, bytes, duration_us, is_part=is_part)


def _duration_us(record: Record) -> float | None:
    """Return the duration on the device; ``None`` where it is missing, makes no sense or is longer than the operation existed."""
    took = record.raw.get("duration_ms")
    if isinstance(took, bool) or not isinstance(took, int | float) or not 0 <= took < _LONGEST_MS:
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
