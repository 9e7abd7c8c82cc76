"""Which traces are the ranks of one job, and which of them are of one cycle of the profiler's schedule."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.columns import Trace
from rankscope.analysis.trace.locations import Location, base_name
from rankscope.analysis.trace.merged import called_rank
from rankscope.base.errors import InputError
from rankscope.base.text import ranks_text

_AS_RANK: Final = (
    re.compile(r"rank[-_.\[= ]?(\d{1,7})(?!\d)", re.IGNORECASE),
    # As the handler for TensorBoard names files, by a name that the user gives. A host's name has the process id after it.
    re.compile(r"^(?:worker|trainer)[-_.]?(\d{1,7})(?=\.|_(?!\d+\.)|$)", re.IGNORECASE),
)
_PROFILER_INFO: Final = re.compile(r"profiler_info_(\d{1,7})\.json")
_TIME_STAMP: Final = re.compile(r"\.\d{10,}(?=\.)")
_AS_NUMBER: Final = re.compile(r"(?:^|[-_.])r?(\d{1,7})(?:\.pt)?(?:\.trace)?\.json(?:\.gz|\.zst)?$", re.IGNORECASE)

Problem = Literal["unknown_ranks", "several_jobs"]


class TraceIdentity(msgspec.Struct, frozen=True):
    """What a trace says of the rank and the job that it is of."""

    path: Location
    rank: int | None
    """Rank by the trace's metadata, or else by its collectives."""
    world_size: int | None
    is_grouped: bool
    """True if the trace has process groups."""
    process: str | None
    """Process id of most events of the host."""
    start_ns: int
    end_ns: int
    device_events: int
    collectives: int
    steps: int
    """Number of annotated steps."""
    step_span: tuple[int, int] | None = None
    """Lowest and highest number of the annotated steps; ``None`` without any."""


class Job(msgspec.Struct, frozen=True):
    """Traces of one job, at most one per rank."""

    traces: dict[int, int]
    """Rank to the position of its trace among all."""
    warnings: list[str] = []
    problem: Problem | None = None
    """Why the ranks cannot be compared; ``None`` if they can."""
    reason: str | None = None
    """The same as a clause."""
    cycle: int | None = None
    """Number of the chosen cycle, from 1; ``None`` where there is one."""
    cycles: int = 1
    other_files: int = 0
    """Number of files that are of other cycles of ranks of this job, or no traces."""
    differences: dict[int, str] = {}
    """What the trace of a rank lacks that most others have, as the end of a sentence about it."""


def identity_of(trace: Trace, *, collectives: int, steps: Sequence[int]) -> TraceIdentity:
    """Return what a trace says of its rank and job. ``collectives``: how many it has. ``steps``: its annotated steps."""
    start_ns, end_ns = trace.extent or (0, 0)
    return TraceIdentity(
        path=trace.path,
        rank=rank_of(trace),
        world_size=trace.world_size,
        is_grouped=bool(trace.groups),
        process=trace.process,
        start_ns=start_ns,
        end_ns=end_ns,
        device_events=trace.quality.device_events,
        collectives=collectives,
        steps=len(steps),
        step_span=(min(steps), max(steps)) if steps else None,
    )


def rank_of(trace: Trace) -> int | None:
    """Return the rank by the trace's metadata, else by its collectives; ``None`` where these do not tell or disagree.

    The ``Rank`` of a collective is a position in its group. For operations with a root it may be that of the root, so these do
    not count.
    """
    if trace.rank is not None:
        return trace.rank
    ranks_found = {
        called_rank(args, trace.groups.get(str(args.group_name)), trace.world_size) for args in trace.communication_args.values()
    }
    ranks_found.discard(None)
    return ranks_found.pop() if len(ranks_found) == 1 else None


def job_of(identities: Sequence[TraceIdentity], cycle: int | None = None) -> Job:
    """Return the traces of one job, of the last cycle that most ranks have or of number ``cycle``.

    Raises ``InputError`` where there is no such cycle.
    """
    ranks, warnings = _ranks(identities)
    unknown = [position for position, rank in enumerate(ranks) if rank is None]
    if len(identities) == 1 or (len(unknown) == len(identities) and _are_of_one_process(identities)):
        ranks = [rank or 0 for rank in ranks]
    elif unknown:
        states_size = any(identity.world_size is not None for identity in identities)
        may_be_ranks = [position for position in unknown if identities[position].collectives and not states_size]
        if may_be_ranks or len(unknown) == len(identities):
            return _unknown(identities, cycle)
        warnings += [
            f"left out: {identities[position].path}: its rank is not known, neither from its content nor from its name (such as "
            "rank-3.json.gz)"
            for position in unknown
        ]
    by_rank: dict[int, list[int]] = {}
    for position, rank in enumerate(ranks):
        if rank is not None:
            by_rank.setdefault(rank, []).append(position)
    if (reason := _no_cycles(identities, by_rank)) is not None:
        return _numbered(identities, cycle, "several_jobs", reason)
    cycles = _cycles(identities, by_rank)
    count = len(cycles)
    if cycle is not None and not 1 <= cycle <= count:
        raise InputError(identities[0].path, f"no cycle {cycle}: the traces are of {counted(count, 'cycle')}, from 1 on")
    most = max(len(traces) for traces in cycles)
    number = cycle or max(at for at, traces in enumerate(cycles, 1) if len(traces) == most)
    traces = dict(sorted(cycles[number - 1].items()))
    if missing := sorted(by_rank.keys() - traces.keys()):
        warnings.append(_without_trace(missing, number))
    if cycle is None and number < count:
        warnings.append(f"cycle {count} is not used: {_without_trace(sorted(by_rank.keys() - cycles[-1].keys()), count)}")
    problem, reason = _problem({rank: identities[at] for rank, at in traces.items()})
    return Job(
        traces=traces,
        warnings=warnings,
        problem=problem,
        reason=reason,
        cycle=number if count > 1 else None,
        cycles=count,
        other_files=sum(map(len, by_rank.values())) - len(by_rank),
        differences=content_differences({rank: identities[at] for rank, at in traces.items()}),
    )


def content_differences(traces: Mapping[int, TraceIdentity]) -> dict[int, str]:
    """Return what the traces of some ranks lack that half of them or more have, as the end of a sentence about each."""
    reasons: dict[int, str] = {}
    for reason, has_any in _CONTENTS.items():
        without = [rank for rank, identity in traces.items() if not has_any(identity)]
        if 2 * len(without) <= len(traces):
            reasons |= dict.fromkeys(without, f"{reason}, unlike those of other ranks")
    usual = sorted(identity.steps for identity in traces.values())[len(traces) // 2]
    single = [rank for rank, identity in traces.items() if identity.steps == 1]
    if usual >= _SEVERAL_STEPS:
        reasons |= dict.fromkeys(single, f"has 1 annotated step, where those of other ranks have {usual}")
    return reasons


_SEVERAL_STEPS: Final = 3
_CONTENTS: Final[Mapping[str, Callable[[TraceIdentity], object]]] = {
    "has no annotated steps": lambda identity: identity.steps,
    "has no collectives": lambda identity: identity.collectives,
    "has no device events": lambda identity: identity.device_events,
}
"""What a trace may lack, to the figure that shows that it does not; the last that applies is said."""


def _problem(traces: Mapping[int, TraceIdentity]) -> tuple[Problem | None, str | None]:
    """Return why the traces by rank cannot be compared, and the same as a clause."""
    if (reason := _contradiction(list(traces.values()))) is not None:
        return "several_jobs", reason
    if (reason := _impossible_name(traces)) is not None:
        return "unknown_ranks", reason
    return None, None


def _are_of_one_process(identities: Sequence[TraceIdentity]) -> bool:
    """Return whether the traces are of one process, as cycles of a job on one device are.

    In containers, processes of several jobs have the same id. So the names must be the same, too, but for the time stamp.
    """
    processes = {identity.process for identity in identities}
    names = {_TIME_STAMP.sub("", base_name(identity.path)) for identity in identities}
    return len(processes) == len(names) == 1 and None not in processes


def _without_trace(ranks: Sequence[int], cycle: int) -> str:
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} no trace of cycle {cycle}"


def _ranks(identities: Sequence[TraceIdentity]) -> tuple[list[int | None], list[str]]:
    """Return the rank of each trace, ``None`` where it is not known, and warnings of names that say something else."""
    named = [_rank_in_name(identity.path) for identity in identities]
    numbers = [_number_in_name(identity.path) for identity in identities]
    ranks = [identity.rank if identity.rank is not None else name for identity, name in zip(identities, named, strict=True)]
    warnings = [
        f"{identity.path} is of rank {identity.rank}, though its name says {name}"
        for identity, name in zip(identities, named, strict=True)
        if identity.rank is not None and name is not None and identity.rank != name
    ]
    both = [(rank, number) for rank, number in zip(ranks, numbers, strict=True) if rank is not None and number is not None]
    number_ranks = all(rank == number for rank, number in both) if both else _number_ranks(numbers)
    return [number if rank is None and number_ranks else rank for rank, number in zip(ranks, numbers, strict=True)], warnings


def _number_ranks(numbers: Sequence[int | None]) -> bool:
    """Return whether the numbers in the names of all files may be their ranks, rather than ids of processes or runs.

    They are then different, from 0 on, and at least every second one is there.
    """
    numbers_known = [number for number in numbers if number is not None]
    distinct = set(numbers_known)
    return len(numbers_known) == len(numbers) == len(distinct) > 1 and 0 in distinct and max(distinct) < 2 * len(distinct)


def _rank_in_name(place: Location) -> int | None:
    """Return the rank that the name of a file says, or that of its folder: ``rank_3/trace.json``."""
    name = base_name(place)
    folder = base_name(os.fspath(place)[: -len(name)]) if len(name) < len(os.fspath(place)) else ""
    matches = (*(pattern.search(name) for pattern in _AS_RANK), _AS_RANK[0].fullmatch(folder))
    match = next(filter(None, matches), None)
    return int(match[1]) if match else _rank_beside(place)


def _rank_beside(place: Location) -> int | None:
    """Return the rank in the name of the one file that torch_npu writes for it above the folder of its trace."""
    if not isinstance(place, Path) or place.parent.name != "ASCEND_PROFILER_OUTPUT":
        return None
    matches = [_PROFILER_INFO.fullmatch(file.name) for file in place.parent.parent.glob("profiler_info_*.json")]
    ranks = [int(match[1]) for match in matches if match is not None]
    return ranks[0] if len(ranks) == 1 else None


def _number_in_name(place: Location) -> int | None:
    match = _AS_NUMBER.search(base_name(place))
    return int(match[1]) if match else None


def _unknown(identities: Sequence[TraceIdentity], cycle: int | None) -> Job:
    these = f"these {len(identities)} traces"
    if any(identity.collectives for identity in identities):
        reason = f"the ranks of {these} are not known, neither from their content nor from their names"
        return _numbered(identities, cycle, "unknown_ranks", reason)
    reason = f"nothing says that {these} are ranks of one job: they have no communication"
    return _numbered(identities, cycle, "several_jobs", reason)


def _numbered(identities: Sequence[TraceIdentity], cycle: int | None, problem: Problem, reason: str) -> Job:
    """Return all traces in the order of their names, where it is not known which ranks of one job they are."""
    if cycle is not None:
        raise InputError(identities[0].path, f"no cycles can be told apart: {reason}")
    short = _short_names(identities)
    order = sorted(range(len(identities)), key=lambda at: short[at])
    names = ", ".join(short[at] for at in order[:4]) + (", …" if len(order) > 4 else "")
    warning = f"the traces are numbered in the order of their names, which are no ranks: {names}"
    return Job(dict(enumerate(order)), [warning], problem, reason)


def _short_names(identities: Sequence[TraceIdentity]) -> list[str]:
    """Return names of the files for messages: their paths where files in several folders have the same name."""
    names = [base_name(identity.path) for identity in identities]
    return names if len(set(names)) == len(names) else [os.fspath(identity.path) for identity in identities]


def _contradiction(identities: Sequence[TraceIdentity]) -> str | None:
    """Return the clause that tells why the traces cannot be of one job; ``None`` if they may be."""
    sizes = sorted({identity.world_size for identity in identities if identity.world_size is not None})
    if len(sizes) > 1:
        return f"the traces are of several jobs: some state {sizes[0]} ranks, others {sizes[-1]}"
    if len(identities) > 1 and sizes == [1]:
        return "the traces are of several jobs: each states that it is the only rank of its job"
    states_job = any(identity.world_size is not None or identity.is_grouped for identity in identities)
    first_end, last_start = min(trace.end_ns for trace in identities), max(trace.start_ns for trace in identities)
    if not states_job and len(identities) > 1 and last_start - first_end > _SAME_TIME_NS:
        return "the traces are of several jobs: their times do not overlap, and they state no process groups"
    return None


def _impossible_name(traces: Mapping[int, TraceIdentity]) -> str | None:
    """Return the clause that tells which name's number is no rank, as the job has fewer ranks; ``None`` without any."""
    size = max((trace.world_size for trace in traces.values() if trace.world_size is not None), default=None)
    wrong = [trace for rank, trace in traces.items() if trace.rank is None and size is not None and rank >= size]
    if len(traces) == 1 or not wrong:
        return None
    return f"the number in the name of {base_name(wrong[0].path)} is no rank of a job of {counted(size or 0, 'rank')}, from 0 on"


_SAME_TIME_NS: Final = 600_000_000_000
"""Gap between the traces of two ranks that clocks of different hosts explain."""


def _no_cycles(identities: Sequence[TraceIdentity], by_rank: Mapping[int, Sequence[int]]) -> str | None:
    """Return the clause that tells why several traces of a rank are no cycles of one schedule; ``None`` if they may be.

    Cycles are of one process, one after the other.
    """
    for rank, positions in by_rank.items():
        of_rank = sorted((identities[at] for at in positions), key=lambda identity: identity.start_ns)
        for earlier, later in pairwise(of_rank):
            first, second = _short_names([earlier, later])
            both = f"{first} and {second} are both of rank {rank}"
            if earlier.process != later.process:
                return (
                    f"{both}, but of different processes ({earlier.process}, {later.process}): of several jobs, or starts of one"
                )
            if earlier.end_ns > later.start_ns:
                return f"{both} at the same time: copies, or of several jobs"
    return None


def _cycles(identities: Sequence[TraceIdentity], by_rank: Mapping[int, Sequence[int]]) -> list[dict[int, int]]:
    """Return the cycles of a schedule, each as rank to position, in the order of time."""
    return _cycles_by_steps(identities, by_rank) or _cycles_by_time(identities, by_rank)


def _cycles_by_steps(identities: Sequence[TraceIdentity], by_rank: Mapping[int, Sequence[int]]) -> list[dict[int, int]] | None:
    """Return the cycles by the numbers of their steps, which all ranks count alike; ``None`` where these do not tell them."""
    cycles: list[dict[int, int]] = []
    spans: list[tuple[tuple[int, int], int, int]] = []
    for rank, positions in by_rank.items():
        of_rank = [(identities[at].step_span, rank, at) for at in sorted(positions, key=lambda at: identities[at].start_ns)]
        with_span = [(span, rank, at) for span, rank, at in of_rank if span is not None]
        if len(with_span) < len(of_rank) or any(before[0][1] >= after[0][0] for before, after in pairwise(with_span)):
            return None
        spans += with_span
    if len(spans) == len(by_rank):
        return None
    last = -1
    for (first, end), rank, at in sorted(spans):
        if first > last:
            cycles.append({})
        if rank in cycles[-1]:
            return None
        cycles[-1][rank] = at
        last = max(last, end)
    return cycles


def _cycles_by_time(identities: Sequence[TraceIdentity], by_rank: Mapping[int, Sequence[int]]) -> list[dict[int, int]]:
    leader = max(by_rank, key=lambda rank: (len(by_rank[rank]), -rank))
    starts = sorted(identities[at].start_ns for at in by_rank[leader])
    cycles: list[dict[int, int]] = [{} for _ in starts]
    for rank, positions in by_rank.items():
        ordered = sorted(positions, key=lambda at: identities[at].start_ns)
        if len(ordered) == len(starts):
            numbers = list(range(len(starts)))
        else:
            numbers = [_nearest(starts, identities[at].start_ns) for at in ordered]
            if len(set(numbers)) < len(numbers):  # the clocks differ by more than a cycle
                numbers = list(range(len(starts) - len(ordered), len(starts)))
        for number, position in zip(numbers, ordered, strict=True):
            cycles[number][rank] = position
    return cycles


def _nearest(times: Sequence[int], time: int) -> int:
    """Return the position of the time that is nearest to ``time``."""
    return min(range(len(times)), key=lambda at: abs(times[at] - time))
