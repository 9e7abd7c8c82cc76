"""Operations of all ranks with their durations, read from logs of the NCCL Inspector plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.collectives.cycles import Issued, steps_by_group
from rankscope.analysis.durations.calls import MAX_CALLS, RECORD_IT, Call, Durations, RankCalls, Wording
from rankscope.analysis.durations.logs import LogRecord, ProcessLog, find_logs, read_log
from rankscope.analysis.durations.processes import Processes, identify
from rankscope.analysis.durations.stages import block_on_sends, pipeline_stages
from rankscope.analysis.operations import OPERATIONS, operation_name
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text

_CODES: Final = {name: code for code, name in enumerate((*OPERATIONS, "unknown"))}
_KINDS: Final = len(_CODES)
"""Number of codes: NCCL numbers the operations of each kind apart, and here all of a communicator have different numbers."""
_SHOWN: Final = 4
"""Number of files in a warning."""
_TIMING: Final = (
    "leave NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING at 1, with NCCL 2.30 or later, so that only durations of kernels are logged"
)
INSPECTOR_WORDING: Final = Wording(
    one="log",
    many="logs",
    missing="logs of {found} of {world_size} ranks: communicators with a missing rank are left out",
    more_steps="let the job train for more steps",
    more_order=f"set NCCL_INSPECTOR_DUMP_VERBOSE=1, or {RECORD_IT}",
    together="use NCCL 2.30 or later, or a shorter NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
)


def read_inspector_durations(paths: Sequence[Path], engine: Engine) -> Durations:
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
    return durations_of(identify(logs, warnings), warnings, most=most)


def durations_of(processes: Processes, warnings: list[str], *, most: int) -> Durations:
    """Return the durations in the logs of all processes. Raises ``InputError`` if there are none.

    ``most``: number of records after which logs were cut, for the warning.
    """
    members, labels = processes.members(), _labels(processes.ranks)
    ranks = {
        rank: RankCalls(_calls(log, labels), {labels[one]: members[one] for one in log.communicators}, log.damaged)
        for rank, log in processes.ranks.items()
    }
    stages = {} if any(_lacks_transfers(log.records) for log in processes.ranks.values()) else pipeline_stages(ranks)
    if stages:
        block_on_sends(ranks)
    warnings += _limits(processes.ranks, ranks, most)
    are_verbose = all(record.issued_us is not None for log in processes.ranks.values() for record in log.records)
    hidden = {rank: _hidden(log.records) for rank, log in processes.ranks.items()}
    return Durations(
        "nccl_inspector",
        ranks,
        processes.world_size,
        replace(INSPECTOR_WORDING, more_order=RECORD_IT) if are_verbose else INSPECTOR_WORDING,
        partial(steps_by_group, apart=True) if stages else steps_by_group,
        warnings,
        hidden=hidden,
        names=processes.names,
        stages=stages,
    )


def _limits(logs: Mapping[int, ProcessLog], ranks: Mapping[int, RankCalls], most: int) -> Iterator[str]:
    """Yield warnings on what the logs lack. Raises ``InputError`` if there are no durations."""
    without = [rank for rank, one in ranks.items() if all(call.duration_us is None for call in one.calls)]
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
    known: dict[str, str] = {}
    for log in logs.values():
        known = {one: one for one in log.communicators} | known
        known |= {one: f"{name} {one}" for one, name in log.names.items() if known[one] == one}
    return known


def _calls(log: ProcessLog, labels: Mapping[str, str]) -> list[Call]:
    """Return the operations of a process in the order in which it issued them, which only verbose logs have exactly.

    Otherwise the order is that of their starts. Sends and receives that overlap on one communicator are one batch.
    """
    last: dict[tuple[str, bool], int] = {}
    ordered: list[tuple[int, LogRecord]] = []
    for record in log.records:
        began = record.ended_us - round(record.duration_us or 0.0)
        # Collectives of a communicator are logged in their order, and so are its sends and receives.
        kind = (record.communicator, record.is_p2p)
        began = last[kind] = max(last.get(kind, 0), record.issued_us or began)
        ordered.append((began, record))
    ordered.sort(key=lambda one: one[0])
    calls: list[Call] = []
    batches: dict[str, int] = {}
    for began, record in ordered:
        group = labels[record.communicator]
        call = _call(record, began, group)
        if record.is_p2p:
            at = batches.get(group)
            if at is not None and _overlap(calls[at], call):
                calls[at] = _joined(calls[at], call)
                continue
            batches[group] = len(calls)
        elif record.number == 0:
            continue  # It sets up the connections.
        calls.append(call)
    return calls


def _overlap(one: Call, other: Call) -> bool:
    """Return whether two operations ran at the same time; kernels of one communicator run one after the other."""
    took = min(one.duration_us or 0.0, other.duration_us or 0.0)
    starts = [call.ended_ns / 1000 - (call.duration_us or 0.0) for call in (one, other)]
    return min(one.ended_ns, other.ended_ns) / 1000 - max(starts) > took / 2


def _joined(batch: Call, part: Call) -> Call:
    """Return a batch with one more send or receive: its kernel ends with the longest of them."""
    longer = max(batch, part, key=lambda call: call.duration_us or 0.0)
    return msgspec.structs.replace(
        batch,
        op="coalesced",
        elements=batch.elements + 1,
        duration_us=longer.duration_us,
        ended_ns=max(batch.ended_ns, part.ended_ns),
        issued=Issued(None, (batch.group, "coalesced", 0), batch.issued.created_ns),
    )


def _call(record: LogRecord, began_us: int, group: str) -> Call:
    name = operation_name(record.op)
    op = name if name in OPERATIONS else "unknown"
    sequence = _KINDS * (record.number + 1) + _CODES[op]
    # Only NCCL's own all-to-all is a collective here, in which all ranks move the same bytes.
    return Call(
        Issued(None if record.is_p2p else (group, sequence), (group, op, record.bytes), 1000 * began_us),
        group,
        op,
        sequence,
        not record.is_p2p,
        1 if record.is_p2p else record.bytes,
        record.bytes if op == "all_to_all" else None,
        record.duration_us,
        is_part=False,
        ended_ns=1000 * record.ended_us,
    )


def _hidden(records: Sequence[LogRecord]) -> int:
    """Return how many collectives between the logged ones are not logged: small messages, or overwritten before the dump."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for record in records:
        if not record.is_p2p and record.number > 0:
            numbers.setdefault((record.communicator, record.op), []).append(record.number)
    return sum(max(found) - min(found) + 1 - len(set(found)) for found in numbers.values())


def _lacks_transfers(records: Sequence[LogRecord]) -> bool:
    """Return whether the order of sends and receives is not known, or more than a few of them are not logged.

    NCCL Inspector numbers the sends and receives of a communicator together.
    """
    numbers: dict[str, list[int]] = {}
    for record in records:
        if record.is_p2p:
            if record.issued_us is None:
                return True
            numbers.setdefault(record.communicator, []).append(record.number)
    span = sum(max(found) - min(found) + 1 for found in numbers.values())
    return span - sum(len(set(found)) for found in numbers.values()) > _LOST * span


_LOST: Final = 0.01
"""Largest share of the sends and receives that may be missing where pipelines are judged by them."""
