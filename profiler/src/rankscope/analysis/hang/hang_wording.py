"""Wording of a hang report: summaries, details and advice."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.analysis.hang.hang_result import Culprit, HangCause, HangReport, Mismatch, Operation, StandingRank
from rankscope.analysis.operations import OPERATIONS, operation_name
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.text import ranks_text, span


def operation_text(operation: Operation) -> str:
    """Describe an operation: ``all_to_all 45265 of group 72 (EXPERT_MODEL_PARALLEL_GROUP)``."""
    described = f" ({operation.group_description})" if operation.group_description else ""
    if operation.peer is not None:
        preposition = "to" if operation.op == "send" else "from"
        return f"{operation.op} {preposition} rank {operation.peer} in group {operation.group}{described}"
    return f"{operation.op} {operation.sequence} of group {operation.group}{described}"


def summary_of(report: HangReport, *, silent: int, timed: bool) -> str:
    """Summarize the report in one sentence, or two where the time of the dumps is unknown.

    ``silent``: number of awaited ranks that left no dump. ``timed``: the time of a dump of a waiting rank is known.
    """
    if report.kind == "no_hang":
        return "No hang seen: in none of the dumps does a rank wait for another that does not come."
    if report.kind == "insufficient_data":
        return _lacking(report, silent)
    return _hang_summary(report) + ("" if timed else f" {_UNTIMED}")


_UNTIMED: Final = "The time of the dumps is not known (copied files?), so the job may also have been running."


def _lacking(report: HangReport, silent: int) -> str:
    if not report.waiting:
        return "Not enough data for a verdict: the dumps hold no collective at all."
    reason = "the others were dumped too early to tell"
    if silent:
        reason = f"{counted(silent, 'rank')} that could keep {'it' if len(report.waiting) == 1 else 'them'} waiting left no dump"
    return f"Not enough data for a verdict: {_victims(report)}, and {reason}."


def _victims(report: HangReport) -> str:
    """Return the number of waiting ranks as a phrase: ``1 rank waits``, ``14 ranks wait``."""
    return f"{counted(len(report.waiting), 'rank')} {'waits' if len(report.waiting) == 1 else 'wait'}"


def _hang_summary(report: HangReport) -> str:
    what = operation_text(report.collective) if report.collective is not None else "something"
    named = ranks_text(report.culprits) if report.culprits else "no rank"
    upper = named[:1].upper() + named[1:]
    victims = _victims(report)
    match report.cause:
        case "not_started":
            return f"{upper} enqueued {what}, but the device never came to it; the other ranks began it and wait."
        case "mismatch":
            return _mismatch_summary(report)
        case "deadlock":
            others = f"; {victims} in all" if len(report.waiting) > len(report.culprits) else ""
            return f"Deadlock: ranks wait for each other in different collectives ({named}){others}."
        case "no_dump":
            return f"{upper} left no dump, and {victims} in {what}, to which all others came: late, or dead."
        case "stuck":
            look = "no rank is missing, so look at the network and the devices of that group"
            if report.collective is not None and _lacks_parts(report.collective):
                look += ", and compare the splits on its ranks, which the dumps do not have"
            return f"All ranks came to {what}, and it does not end; {look}."
        case _:
            return f"{upper} {_did(report)}; {victims} because of that."


def _lacks_parts(collective: Operation) -> bool:
    """Return whether ranks exchange parts of any size, of which the dumps have only the sum: wrong ones may add up."""
    row = OPERATIONS.get(operation_name(collective.op))
    return row is not None and len(row.parts) > 1 and len(collective.input_sizes) == 1


def _did(report: HangReport) -> str:
    """Describe what the culprits did, with the ranks of each behavior if there are several."""
    parts: dict[str, list[int]] = {}
    for culprit in report.evidence:
        if culprit.cause == "lost_device":
            text = "never saw end what ended on the other ranks, so the device or its driver no longer answers"
        else:
            text = _missed(culprit.awaited_in) if culprit.awaited_in else "did not come"
        text = text if culprit.certain else f"probably {text}"
        parts.setdefault(text, []).append(culprit.rank)
    if len(parts) == 1:
        return next(iter(parts))
    return "; ".join(f"({ranks_text(sorted(ranks))}) {text}" for text, ranks in list(parts.items())[:3])


def _missed(operation: Operation) -> str:
    if operation.peer is None:
        return f"did not arrive at {operation_text(operation)}"
    described = f" ({operation.group_description})" if operation.group_description else ""
    other = "a receive for" if operation.op == "send" else "a send to match"
    return f"did not enqueue {other} the {operation.op} of another rank in group {operation.group}{described}"


def _mismatch_summary(report: HangReport) -> str:
    """Describe the mismatch, or the first few mismatches of several collectives, with the ranks to blame for each."""
    ranks: dict[int, list[int]] = {}
    for culprit in report.evidence:
        at = next((at for at, mismatch in enumerate(report.mismatches) if _is_of(culprit, mismatch)), 0)
        ranks.setdefault(at, []).append(culprit.rank)
    if not ranks:
        return _mismatch_text(report.mismatches[0], report.collective, [])
    awaited = {culprit.rank: culprit.awaited_in for culprit in report.evidence}
    texts = [
        _mismatch_text(report.mismatches[at], awaited[odd_ranks[0]], odd_ranks) for at, odd_ranks in list(ranks.items())[:_SHOWN]
    ]
    return " ".join(texts)


def _is_of(culprit: Culprit, mismatch: Mismatch) -> bool:
    awaited = culprit.awaited_in
    is_there = awaited is not None and (awaited.group, awaited.sequence) == (mismatch.group, mismatch.sequence)
    return is_there and any(culprit.rank in ranks for ranks in mismatch.values.values())


def _mismatch_text(mismatch: Mismatch, operation: Operation | None, odd_ranks: Sequence[int]) -> str:
    """``odd_ranks``: ranks that differ from the majority."""
    values = first_of([f"{ranks_text(ranks)}: {value}" for value, ranks in mismatch.values.items()], _SHOWN, "; ")
    described = f" ({mismatch.group_description})" if mismatch.group_description else ""
    place = f"collective {mismatch.sequence} of group {mismatch.group}{described}"
    if mismatch.what != "op" and operation is not None:
        place = operation_text(operation)
    if odd_ranks:
        named = ranks_text(odd_ranks).capitalize()
        return (
            f"{named} came to {place} with another {_DIFFERENCES[mismatch.what]} than the others ({values}), so it does not end."
        )
    unsaid = "the dumps do not show which are right"
    if mismatch.sent is not None:
        totals = f"its ranks send {mismatch.sent} elements and expect {mismatch.expected}"
        return f"The sizes of {place} do not add up: {totals} ({values}), so it does not end; {unsaid}."
    ends = sorted({rank for part in mismatch.parts for rank in (part.sender, part.receiver)})
    ranks = ranks_text(ends).capitalize() if ends else "Ranks"
    return f"{ranks} do not agree on the {_DIFFERENCES[mismatch.what]} of {place} ({values}), so it does not end; {unsaid}."


_DIFFERENCES: Final = {"op": "operation", "size": "size", "dtype": "data type"}


def detail_of(culprit: Culprit, unseen: int, *, arrived: bool, is_shown: bool) -> str:
    """Describe the evidence against one rank in a sentence.

    ``unseen``: number of collectives that ended on other ranks only. ``arrived``: the rank enqueued the operation in which the
    others wait for it. ``is_shown``: its dump shows whether it did.
    """
    place = "" if culprit.awaited_in is None else _place(culprit.awaited_in)
    if culprit.cause == "lost_device":
        absent = f", and it did not enqueue {place}" if place and not arrived else ""
        return f"{unseen} collectives that ended on other ranks have not ended for it{absent}"
    if culprit.cause == "not_arrived" and not is_shown:
        return f"its dump does not show whether it enqueued {place}, but it waits for nothing, and all the others are there"
    if culprit.cause == "not_arrived" and culprit.awaited_in is not None and culprit.last_sequence == culprit.awaited_in.sequence:
        return f"waits for nothing itself, and enqueued a part of the batch {place}, which it did not close"
    last = f"; the last it enqueued there is {culprit.last_sequence}" if culprit.last_sequence else ""
    return _DETAILS[culprit.cause].format(place=place) + last


def _place(operation: Operation) -> str:
    return operation_text(operation) if operation.peer is None else "the other side of a transfer"


_DETAILS: Final[dict[HangCause, str]] = {
    "not_arrived": "waits for nothing itself, and did not enqueue {place}",
    "not_started": "its host enqueued it, and its device never began it",
    "mismatch": "came to {place} with something else than most",
    "deadlock": "waits for a rank that waits for it in another collective",
    "no_dump": "no dump of it, and all the others are there",
}
"""Details by cause, for all causes that dumps show and that name a rank, except a lost device."""


_SHOWN: Final = 4


def advice(
    report: HangReport,
    *,
    run: str | None,
    hosts: Mapping[int, str],
    pids: Mapping[int, int] | None = None,
    named: Sequence[str] | None = None,
) -> list[str]:
    """Return commands and actions, most useful first.

    ``pids``: process ids by rank. ``named``: names of the culprits, if they are not ranks of the report.
    """
    if report.kind == "no_hang":
        return [f"If the job makes no steps, dump it again in a minute: {_dump_again(run)}"]
    if report.kind == "insufficient_data":
        dumps_text = "of the other ranks, too" if report.ranks else "of the Flight Recorder; they show who waits in which call"
        return [f"Collect the dumps {dumps_text}: {_dump_again(run)}"]
    if named is None:
        named = [f"rank {rank}" + (f" on {hosts[rank]}" if rank in hosts else "") for rank in report.culprits] or ["each rank"]
    process = (pids or {}).get(report.culprits[0]) if len(report.culprits) == 1 else None
    pid = "PID" if process is None else str(process)
    rows = [row.format(where=first_of(named, _SHOWN), pid=pid) for row in _ADVICE[report.cause or "stuck"]]
    if report.cause == "lost_device" and all(culprit.certain for culprit in report.evidence):
        rows.append("Start again without that GPU")
    if not report.ranks:
        rows.append(f"See which call the others wait in, and where: {_dump_again(run)} && rankscope hang {_run(run)}")
    return [*rows, *([f"rankscope analyze {shlex.quote(run)}"] if run is not None else [])]


def _dump_again(run: str | None) -> str:
    return f"rankscope capture {_run(run)} --flight-recorder"


def _run(run: str | None) -> str:
    return "RUN" if run is None else shlex.quote(run)


_ADVICE: Final[dict[HangCause, tuple[str, ...]]] = {
    "not_arrived": (
        "Look at what the Python of {where} does instead: py-spy dump --pid {pid} on its host; if it is gone, its error output",
        "Check whether it loads data, writes a checkpoint or holds a lock there: the other ranks wait for that",
    ),
    "lost_device": ("Check dmesg (Xid), nvidia-smi and the error output of the rank on the host of {where}",),
    "not_started": ("Check what the device does instead (a kernel that does not end), and dmesg (Xid), on the host of {where}",),
    "mismatch": (
        "Compare {where} with the others of that group before that collective: a branch, a batch, a shape or splits that differ",
    ),
    "deadlock": ("Have all ranks enqueue the collectives of these groups in the same order",),
    "no_dump": ("Check the error output of {where}, and whether its process and host are alive: it may have died first",),
    "unreachable": (
        "Check whether the host of {where} and the process are alive, and the process is not stopped (state T in ps)",
        "Check the network between that host and the others, over the interface that NCCL uses for its start",
    ),
    "nccl_error": ("Look at the error output of {where}, with NCCL_DEBUG=WARN on the next start, and dmesg (Xid) on its host",),
    "stuck": (
        "Check network counters and link errors of the hosts of that group, and run an all-reduce test between them",
        "Set NCCL_DEBUG=INFO on the next start",
    ),
}


def place_text(phase: str, section: str | None, step: int | None) -> str:
    """Return where a rank is: ``in backward of step 12``, ``loading data for step 12``."""
    place = _PHASES.get(phase, f"in {phase}")
    if section == "checkpoint":
        place = "writing a checkpoint"
    elif section is not None:
        place = f"in its section {section} ({place})"
    return place if step is None else f"{place} {'of' if place.startswith('in') else 'in'} step {step}"


_PHASES: Final = {
    "data": "loading data", "h2d": "copying a batch to its device", "forward": "in forward", "backward": "in backward",
    "optimizer": "in the optimizer", "between_steps": "between the phases",
}  # fmt: skip


def doing_text(row: StandingRank) -> str:
    """Describe what a rank is doing: ``in backward of step 12 for 40 s, waiting for other ranks``."""
    parts = [f"{place_text(row.phase, row.section, row.step)} for {span(row.since_s)}", _WAITING[row.waiting]]
    return ", ".join([*parts, *([_PROCESSES[row.process]] if row.process else [])])


_WAITING: Final = {True: "waiting for other ranks", False: "not waiting for other ranks", None: "waiting or not is not known"}
_PROCESSES: Final = {"stopped": "process stopped (state T)", "disk": "in an uninterruptible wait, as for a disk (state D)"}
