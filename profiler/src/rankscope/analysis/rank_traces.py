"""Trace files: finding them, assigning them to ranks and reducing them, several in parallel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rankscope.analysis.collectives.windows import (
    Reduction,
    exchanged_rows,
    quality_of,
    reduce_file,
    step_breakdowns,
    step_numbers,
)
from rankscope.analysis.collectives.world import least_ranks, least_ranks_of_groups
from rankscope.analysis.evidence.kernels.device_times import DeviceTimes
from rankscope.analysis.evidence.kernels.kernel_ratios import in_other_units
from rankscope.analysis.evidence.kernels.quality_warnings import quality_warnings
from rankscope.analysis.evidence.kernels.unknown_kernels import kernels_on_own_streams
from rankscope.analysis.parallel.workers import Engine
from rankscope.analysis.result.data_quality import DataQuality
from rankscope.analysis.result.detail import RankDetail
from rankscope.analysis.trace.annotations import host_times, input_wait_us
from rankscope.analysis.trace.categories import KERNEL, NOTE, OPERATOR
from rankscope.analysis.trace.columns import Trace, read_traces
from rankscope.analysis.trace.event_stream import NoTraceError
from rankscope.analysis.trace.locations import OPERATIONS_SUFFIX, Location, list_remote, matching_paths
from rankscope.analysis.trace.schema import integer
from rankscope.analysis.trace.work import compute_kernels, requests_communication, work_events
from rankscope.analysis.trace_job import Job, TraceIdentity, identity_of, job_of, rank_of
from rankscope.base.errors import InputError
from rankscope.runs.named import refuse_folder_of_runs
from rankscope.runs.records import DeviceKind, StepBreakdown

SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
_OPERATIONS: Final = "Parquet, so no Kineto trace; traced operations are read by `rankscope whatif` only"

_MOST_WARNINGS: Final = 4
"""Most ranks, or files, that are warned of one by one."""
_UNFOLDS: Final = 18
"""Typical expansion factor of compressed traces; an estimate is enough to choose the number of processes."""


class RankTrace(msgspec.Struct, frozen=True):
    """Results that are kept of one trace; its events are not."""

    identity: TraceIdentity
    rank: int
    least_ranks: int
    """Number of ranks that the job has at least, by the process groups of the trace."""
    host: str | None
    device_kind: DeviceKind
    gpu_names: list[str]
    steps: list[int]
    damaged: int
    torn: str | None
    reduction: Reduction
    by_step: list[StepBreakdown]
    """Breakdown of each annotated step; ``reduction`` is of the whole file."""
    detail: RankDetail | None
    pattern_found: bool
    """True if the pattern for communication matched any kernel."""
    own_streams: frozenset[str]
    """Names of kernels on streams of their own; empty unless the trace has no communication (``kernels_on_own_streams``)."""
    input_us: float | None
    device: DeviceTimes
    """Times on the device; the pipeline stage is not known before all traces are."""
    quality: DataQuality
    difference: str | None = None
    """How the trace differs from those of most other ranks, see ``Job``."""

    @property
    def defect(self) -> str | None:
        """Why the figures of the trace do not count, as the end of a sentence about it; ``None`` for a usable trace."""
        return "is cut off" if self.torn else self.quality.reason or self.difference


def find_traces(paths: Sequence[Location]) -> tuple[list[Location], set[Location]]:
    """Return the trace files that the arguments name (files, folders, patterns), and the set of those named one by one.

    Raises ``InputError`` for a missing remote file, and for a folder or pattern without any trace.
    """
    locations: dict[Location, None] = {}
    explicit: set[Location] = set()
    for path in paths:
        files, by_itself = list_remote(path, SUFFIXES) if isinstance(path, str) else _list_local(path)
        locations.update(dict.fromkeys(files))
        if by_itself:
            explicit.update(files)
    return list(locations), explicit


def _list_local(path: Path) -> tuple[list[Path], bool]:
    if path.is_dir():
        refuse_folder_of_runs(path)
        inside = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
        from rankscope.analysis.hang.files import looks_like_dump, refuse_folder_of_dumps

        if all(map(looks_like_dump, inside)):
            refuse_folder_of_dumps(path)
        if not inside:
            if operations := sorted(path.glob(f"*{OPERATIONS_SUFFIX}")):
                raise InputError(operations[0], _OPERATIONS)
            kinds = ", ".join("*" + suffix for suffix in SUFFIXES)
            raise InputError(
                path,
                f"nothing to analyse: no run directory (run.json), no traces ({kinds}), no Flight Recorder dumps and no logs of "
                "NCCL Inspector",
            )
        return inside, False
    if path.name.endswith(OPERATIONS_SUFFIX) and path.exists():
        raise InputError(path, _OPERATIONS)
    matching = matching_paths(path)
    return (matching, True) if matching == [path] else ([file for file in matching if file.is_file()], False)


def read_ranks(
    files: Sequence[Location],
    explicit: set[Location],
    pattern: re.Pattern[str] | None = None,
    *,
    cycle: int | None = None,
    detail: bool = False,
    complete_only: bool = False,
    engine: Engine,
) -> tuple[list[RankTrace], Job, list[str]]:
    """Read and reduce every file. Return one trace per rank of the job, ordered by rank, with the job, and warnings.

    Kernels whose name matches ``pattern`` count as communication. ``cycle``: see ``job_of``. ``detail``: analyse in detail, too.
    ``complete_only``: a trace that was cut off cannot be read.

    A file that cannot be read leads to a warning. Raises ``InputError`` instead if the file is in ``explicit`` or if no file can
    be read, and as ``job_of`` does.
    """
    rank_traces: list[RankTrace] = []
    errors: list[InputError] = []
    read = partial(_read_file, pattern=pattern, detail=detail, complete_only=complete_only)
    for file, traces in zip(files, engine.map(read, files, files=files, text_bytes=_text_bytes(files)), strict=True):
        if isinstance(traces, InputError):
            if file in explicit:
                raise traces
            errors.append(traces)
        else:
            rank_traces += traces
    if not rank_traces:
        assert errors, "without files find_traces raises"
        raise errors[0]
    errors.sort(key=lambda error: isinstance(error, NoTraceError))  # a trace that cannot be read matters more
    warnings = [f"left out: {error}" for error in errors[:_MOST_WARNINGS]]
    if len(errors) > _MOST_WARNINGS:
        warnings.append(f"left out: {len(errors) - _MOST_WARNINGS} more files that are no traces, or cannot be read")
    job = job_of([trace.identity for trace in rank_traces], cycle)
    no_traces = sum(isinstance(error, NoTraceError) for error in errors)
    job = msgspec.structs.replace(job, other_files=job.other_files + no_traces)
    if job.problem is None:
        others = in_other_units({rank: rank_traces[at].device.kernels for rank, at in job.traces.items()})
        job = msgspec.structs.replace(
            job, differences={rank: _other_unit(factor) for rank, factor in others.items()} | job.differences
        )
    chosen = [
        msgspec.structs.replace(rank_traces[at], rank=rank, difference=job.differences.get(rank))
        for rank, at in job.traces.items()
    ]
    warnings += job.warnings
    warnings += [
        f"{trace.identity.path}: truncated: {trace.torn}; what comes before that is used" for trace in chosen if trace.torn
    ]
    if len(job.differences) > 1:  # the verdict says the first
        warnings += [f"not used: the trace of rank {rank} {reason}" for rank, reason in job.differences.items()][:_MOST_WARNINGS]
    qualities, damaged = {trace.rank: trace.quality for trace in chosen}, {trace.rank: trace.damaged for trace in chosen}
    return chosen, job, [*warnings, *quality_warnings(qualities, damaged)]


def _other_unit(factor: float) -> str:
    """Return the end of a sentence about a trace whose kernels take ``factor`` times as long as those of other ranks."""
    change = f"{factor:,.0f} times longer" if factor > 1 else f"{1 / max(factor, 1e-9):,.0f} times shorter"
    return f"has kernels that take {change} than the same ones on other ranks: its times have another unit"


def _text_bytes(files: Sequence[Location]) -> int:
    """Return the estimated uncompressed size of ``files``, or 0 if any is not a local file.

    Some remote filesystems (memory://) exist only in this process.
    """
    local = [file for file in files if isinstance(file, Path) and file.is_file()]
    text = sum(file.stat().st_size * (1 if file.name.endswith(".json") else _UNFOLDS) for file in local)
    return text if len(local) == len(files) else 0


def _read_file(
    file: Location, *, pattern: re.Pattern[str] | None, detail: bool, complete_only: bool
) -> list[RankTrace] | InputError:
    try:
        return [
            _reduced(trace, pattern, detail=detail) for trace in read_traces(file, detail=detail, complete_only=complete_only)
        ]
    except InputError as error:
        return error


def _reduced(trace: Trace, pattern: re.Pattern[str] | None, *, detail: bool) -> RankTrace:
    events = work_events(trace, pattern)
    reduction = reduce_file(trace, events)
    by_step = step_breakdowns(trace, events)
    rank_detail: RankDetail | None = None
    if detail:
        # Imported only if needed: without detail, imports are a large part of the time for a trace.
        from rankscope.analysis.trace.detail_columns import detail_columns
        from rankscope.analysis.trace.window_detail import detail_of, with_parts

        window = reduction.breakdowns[0]
        columns = detail_columns(trace, events, [window, *by_step])
        reduction = msgspec.structs.replace(reduction, breakdowns=[with_parts(columns, window)])
        rank_detail = detail_of(columns, window, by_step)
    return RankTrace(
        identity=identity_of(trace, collectives=reduction.count, steps=step_numbers(trace)),
        rank=0,
        least_ranks=least_ranks_of(trace, reduction),
        host=trace.host,
        device_kind=trace.device_kind,
        gpu_names=trace.gpu_names,
        steps=step_numbers(trace),
        damaged=trace.damaged,
        torn=trace.torn,
        reduction=reduction,
        by_step=by_step,
        detail=rank_detail,
        pattern_found=pattern is not None and bool((trace.named(pattern.search) & (trace.category == KERNEL)).any()),
        own_streams=frozenset() if reduction.breakdowns[0].communication_us else kernels_on_own_streams(trace, events),
        input_us=input_wait_us(trace, events),
        device=DeviceTimes(
            by_step if trace.has_device_work else [],
            compute_kernels(trace, events),
            host_times(trace, events, by_step),
            exchanged_rows(trace),
        ),
        quality=quality_of(trace, events),
    )


def least_ranks_of(trace: Trace, reduction: Reduction) -> int:
    """Return the number of ranks that the job of a trace has at least.

    A kernel of NCCL is of several ranks: a group of one rank needs none. Without metadata this is all that shows them, or an
    operator that requests communication on a device.
    """
    least = max(least_ranks(rank_of(trace) or 0, reduction.collectives), least_ranks_of_groups(trace.groups.values()))
    if trace.world_size is not None:
        return least
    communicates = any(row.stream is not None for row in reduction.collectives) or _requests_communication(trace)
    return max(least, 2) if communicates else least


def _requests_communication(trace: Trace) -> bool:
    """Return whether the calling threads request communication on a device, in groups of more than one rank."""
    if not trace.has_device_work:
        return False
    calls = np.isin(trace.category, (NOTE, OPERATOR))
    sizes = [integer(args.group_size) for row, args in trace.communication_args.items() if calls[row]]
    return bool(requests_communication(trace).any()) and not (sizes and all(size == 1 for size in sizes))
