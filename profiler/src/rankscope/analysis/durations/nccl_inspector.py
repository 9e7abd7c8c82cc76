"""Operations of all ranks with their durations, read from logs of the NCCL Inspector plugin."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.collectives.arrivals import Numbers
from rankscope.analysis.collectives.cycles import steps_of
from rankscope.analysis.durations.duration_calls import MAX_CALLS, DurationCall, DurationCalls, RankCalls, calls_of
from rankscope.analysis.durations.log_files import find_logs, holds
from rankscope.analysis.durations.logs import ProcessLog, read_log
from rankscope.analysis.durations.pipelines import block_on_sends, pipeline_stages
from rankscope.analysis.durations.processes import LogsByRank, logs_by_rank
from rankscope.analysis.durations.sources import Durations
from rankscope.analysis.operations import OPERATIONS, operation_name
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text
from rankscope.runs.durations import DURATION_SOURCES, TRANSFER, DurationGroup

__all__ = ["holds", "read_durations", "stored_durations"]

_CODES: Final = {name: code for code, name in enumerate((*OPERATIONS, "unknown"))}
_KINDS: Final = len(_CODES)
"""Number of codes: NCCL numbers the operations of each kind apart, and here all of a communicator have different numbers."""
_SHOWN: Final = 4
"""Number of files in a warning."""
_TIMING: Final = (
    "leave NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING at 1, with NCCL 2.30 or later, so that only durations of kernels are logged"
)


def read_durations(paths: Sequence[Path], engine: Engine) -> Durations:
    """Read the logs of a job, one file per process. Raises ``InputError`` for input without durations."""
    files, warnings = find_logs(paths)
    most = max(1, MAX_CALLS // len(files))
    text_bytes = sum(file.stat().st_size for file in files)
    logs: list[ProcessLog] = []
    errors: list[InputError] = []
    for read in engine.map(partial(read_log, most=most), files, files=files, text_bytes=text_bytes):
        (errors if isinstance(read, InputError) else logs).append(read)  # type: ignore[arg-type]
    if not logs:
        raise errors[0]
    warnings += [f"left out: {error}" for error in errors]
    if damaged := [log for log in logs if log.damaged]:
        count = counted(sum(log.damaged for log in damaged), "record")
        warnings.append(f"{count} left out, which make no sense, in {first_of([log.path for log in damaged], _SHOWN)}")
    return _durations(logs_by_rank(logs, warnings), warnings, most=most)


def stored_durations(ranks: Mapping[int, RankCalls], world_size: int) -> Durations:
    """Return the durations of the operations that were stored with a run. Raises ``InputError`` if there are none."""
    logs = {rank: ProcessLog(Path(f"rank {rank}"), rows=deque(calls.rows), groups=calls.groups) for rank, calls in ranks.items()}
    return _durations(LogsByRank(logs, world_size), [], most=MAX_CALLS)


def _durations(processes: LogsByRank, warnings: list[str], *, most: int) -> Durations:
    """Return the durations in the logs of all processes. Raises ``InputError`` if there are none.

    ``most``: number of records after which logs were cut, for the warning.
    """
    logs, members, labels = processes.ranks, processes.members(), _labels(processes.ranks)
    groups = {name: DurationGroup(labels[name], ranks=ranks) for name, ranks in members.items()}
    ranks = {
        rank: RankCalls(_in_order(log.rows, labels), {labels[name]: groups[name] for name in log.groups}, log.damaged)
        for rank, log in logs.items()
    }
    warnings += _limits(logs, ranks, most)
    calls = calls_of(ranks)
    stages = {} if any(_lacks_transfers(log.rows) for log in logs.values()) else pipeline_stages(calls)
    source = DURATION_SOURCES["nccl_inspector"]
    are_verbose = all(row.issued_ns for log in logs.values() for row in log.rows)

    def steps(calls: DurationCalls) -> Numbers:
        return steps_of(calls.issued(calls.has(TRANSFER)), by_group=True, all_groups=bool(stages))

    return Durations(
        msgspec.structs.replace(source, more_order=source.more_evidence) if are_verbose else source,
        block_on_sends(calls) if stages else calls,
        processes.world_size,
        steps,
        warnings,
        is_timed=are_verbose,
        hidden={rank: _hidden(log.rows) for rank, log in logs.items()},
        names=processes.names,
        stages=stages,
    )


def _limits(logs: Mapping[int, ProcessLog], ranks: Mapping[int, RankCalls], most: int) -> Iterator[str]:
    """Yield warnings on what the logs lack. Raises ``InputError`` if there are no durations."""
    without = [rank for rank, of_rank in ranks.items() if not of_rank.has_durations]
    if len(without) == len(ranks):
        path = next(iter(logs.values())).path
        raise InputError(path, f"no collective has the duration of its kernel, so no rank's wait is known; {_TIMING}")
    if without:
        yield f"no durations from {ranks_text(without)}; {_TIMING}"
    if not any(log.has_names for log in logs.values()):
        yield "logs of NCCL before 2.30 hold no sends and receives: in a pipeline, a rank may be late because of the stage before"
    if any(log.is_clipped for log in logs.values()):
        yield f"at most the last {most:,} operations of each rank are compared"


def _labels(logs: Mapping[int, ProcessLog]) -> dict[str, str]:
    """Return the names of communicators in the result: those that NCCL knows, with the identifier."""
    labels: dict[str, str] = {}
    for log in logs.values():
        for name, group in log.groups.items():
            if labels.get(name, name) == name:
                labels[name] = f"{group.label} {name}" if group.label else name
    return labels


def _in_order(rows: Iterable[DurationCall], labels: Mapping[str, str]) -> list[DurationCall]:
    """Return the operations of a process in the order in which it issued them, which only verbose logs have exactly.

    Otherwise the order is that of their starts. Sends and receives that overlap on one communicator are one batch.
    """
    last: dict[tuple[str, int], int] = {}
    ordered: list[DurationCall] = []
    for row in rows:
        # Collectives of a communicator are logged in their order, and so are its sends and receives.
        kind = (row.group, row.flags & TRANSFER)
        began_ns = row.issued_ns or row.ended_ns - 1000 * round(row.duration_us or 0.0)
        last[kind] = max(last.get(kind, 0), began_ns)
        ordered.append(row._replace(issued_ns=last[kind]))
    ordered.sort(key=attrgetter("issued_ns"))
    calls: list[DurationCall] = []
    batches: dict[str, int] = {}
    for row in ordered:
        call = _operation(row, labels[row.group])
        if call.flags & TRANSFER:
            at = batches.get(call.group)
            if at is not None and _overlap(calls[at], call):
                calls[at] = _joined(calls[at], call)
                continue
            batches[call.group] = len(calls)
        elif row.number == 0:
            continue  # It sets up the connections.
        calls.append(call)
    return calls


def _operation(row: DurationCall, group: str) -> DurationCall:
    name = operation_name(row.op)
    op = name if name in OPERATIONS else "unknown"
    is_transfer = bool(row.flags & TRANSFER)
    return row._replace(
        group=group,
        op=op,
        number=_KINDS * (row.number + 1) + _CODES[op],
        size=1 if is_transfer else row.size,
        # Only NCCL's own all-to-all is a collective here, in which all ranks move the same bytes.
        bytes=row.size if op == "all_to_all" else None,
    )


def _start_us(row: DurationCall) -> float:
    return row.ended_ns / 1000 - (row.duration_us or 0.0)


def _overlap(row: DurationCall, other: DurationCall) -> bool:
    """Return whether two operations ran at the same time; kernels of one communicator run one after the other."""
    took_us = min(row.duration_us or 0.0, other.duration_us or 0.0)
    return min(row.ended_ns, other.ended_ns) / 1000 - max(map(_start_us, (row, other))) > took_us / 2


def _joined(batch: DurationCall, part: DurationCall) -> DurationCall:
    """Return a batch with one more send or receive: its kernel ends with the longest of them."""
    longer = max(batch, part, key=lambda row: row.duration_us or 0.0)
    ended_ns = max(batch.ended_ns, part.ended_ns)
    return batch._replace(op="coalesced", size=batch.size + 1, duration_us=longer.duration_us, ended_ns=ended_ns)


def _hidden(rows: Iterable[DurationCall]) -> int:
    """Return how many collectives between the logged ones are not logged: small messages, or overwritten before the dump."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if not row.flags & TRANSFER and row.number > 0:
            numbers.setdefault((row.group, row.op), []).append(row.number)
    return sum(map(_missing, numbers.values()))


def _missing(numbers: Sequence[int]) -> int:
    return max(numbers) - min(numbers) + 1 - len(set(numbers))


def _lacks_transfers(rows: Iterable[DurationCall]) -> bool:
    """Return whether the order of sends and receives is not known, or more than a few of them are not logged.

    NCCL Inspector numbers the sends and receives of a communicator together.
    """
    numbers: dict[str, list[int]] = {}
    for row in rows:
        if row.flags & TRANSFER:
            if not row.issued_ns:
                return True
            numbers.setdefault(row.group, []).append(row.number)
    logged = sum(len(set(of_group)) for of_group in numbers.values())
    missing = sum(map(_missing, numbers.values()))
    return missing > _LOST * (missing + logged)


_LOST: Final = 0.01
"""Largest share of the sends and receives that may be missing where pipelines are judged by them."""
