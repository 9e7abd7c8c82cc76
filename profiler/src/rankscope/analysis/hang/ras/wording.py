"""Sentences on what NCCL RAS showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rankscope.analysis.hang.hang_result import RasRank
from rankscope.analysis.hang.ras.ras_judgement import RasJudgement, Suspect
from rankscope.analysis.hang.ras.snapshot import Communicator, Snapshot
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.text import ranks_text, span

_SHOWN: Final = 4


def summary_of(judgement: RasJudgement, latest: Snapshot, interval_s: float | None) -> str:
    """Summarize the judgement in one sentence."""
    over = "" if interval_s is None else f" in {span(interval_s)}"
    if judgement.kind == "hang":
        return _hang(judgement, over)
    if judgement.moved:
        lost = _name_ranks(judgement, judgement.suspected("unreachable", "dead"))
        no_contact = f", but no contact to {lost}" if lost else ""
        return f"{'Not enough data for a verdict' if lost else 'No hang'}: the ranks launched collectives{over}{no_contact}."
    if interval_s is None:
        behind = _name_ranks(judgement, judgement.suspected("behind"))
        behind_text = (
            f"{behind} {_are(behind)} behind at that moment, as also happens" if behind else "no rank was behind, as also"
        )
        return f"Not enough data for a verdict: NCCL RAS answered once only; {behind_text} in a job that trains."
    return f"Not enough data for a verdict: {_standing(judgement, latest, over)}."


def _standing(judgement: RasJudgement, latest: Snapshot, over: str) -> str:
    if not latest.total:
        return "NCCL RAS knows no communicator: the job has not begun to communicate, or has ended"
    if halved := next((communicator for communicator in latest.communicators if communicator.halves), None):
        place, ranks = place_of(judgement, halved), "; ".join(halved.halves[:_SHOWN])
        return f"ranks of {place} differ ({ranks}); NCCL before 2.28.7 does not list which, as they are so many"
    if judgement.moved is None:
        return "NCCL RAS shows no difference between the ranks, nor whether they go on: this NCCL or job has no counts for that"
    return (
        f"all ranks launched the same collectives, and none{over}: they compute, do what NCCL RAS does not count (sends and "
        "receives, CUDA graphs), or all came to a collective that does not end"
    )


def _hang(judgement: RasJudgement, over: str) -> str:
    ranks, is_one = _name_ranks(judgement, judgement.named), len(judgement.named) == 1
    upper = ranks[:1].upper() + ranks[1:]
    still = f"no rank launched anything{over}"
    match judgement.cause:
        case "unreachable":
            dead = all(suspect.row.why == "dead" for suspect in judgement.named)
            given_up = f"NCCL's processes gave up on {'it' if is_one else 'them'} after a minute without contact."
            return f"{upper} {'does' if is_one else 'do'} not answer NCCL's other processes" + (
                f"; {given_up}" if dead else ": stopped, dead, or cut off from the network."
            )
        case "nccl_error" if judgement.named:
            errors = sorted({suspect.row.error or "unknown" for suspect in judgement.named})
            return f"NCCL reports an error on {ranks}: {', '.join(errors)}."
        case "nccl_error":
            return "NCCL reports on ranks that another process failed; which one NCCL RAS does not show."
        case "mismatch":
            place = place_of(judgement, judgement.named[0].communicator)
            return f"{upper} launched other kinds of collectives in {place} than the others, and {still}."
        case "deadlock":
            return f"Deadlock: ranks are behind in one communicator and wait in another ({ranks}); {still}."
        case _:
            return f"{upper} {'has' if is_one else 'have'} {_behind(judgement, judgement.named[0])}, and {still}."


def _behind(judgement: RasJudgement, first: Suspect) -> str:
    communicator = first.communicator
    place = place_of(judgement, communicator)
    if first.row.why == "left":
        return f"left {place}, in which others still are"
    kinds = missing_of(first.row.launched or {}, communicator.furthest or {})
    return f"not launched {kinds} of {place}, which {counted(len(communicator.waiting), 'rank')} did"


def missing_of(behind: Mapping[str, int], ahead: Mapping[str, int]) -> str:
    """Describe the collectives that one rank has launched and the other has not: ``AllReduce 42``."""
    kinds = []
    for kind, count in ahead.items():
        if (had := behind.get(kind, 0)) < count:
            kinds.append(f"{kind} {had + 1}" if count == had + 1 else f"{kind} {had + 1} to {count}")
    return ", ".join(kinds) or "collectives"


def place_of(judgement: RasJudgement, communicator: Communicator) -> str:
    """Describe a communicator: ``the communicator of all 8 ranks``, ``communicator 0xab12 (4 ranks)``."""
    if communicator.key in judgement.ranks.job_communicators:
        return f"the communicator of all {counted(communicator.size, 'rank')}"
    return f"communicator {communicator.name} ({counted(communicator.size, 'rank')})"


def _name_ranks(judgement: RasJudgement, suspects: Sequence[Suspect]) -> str:
    """Name ranks: by global rank where all are known, else also by communicator, process and node."""
    ranks = sorted({suspect.row.global_rank for suspect in suspects if suspect.row.global_rank is not None})
    others = [_local(judgement, suspect) for suspect in suspects if suspect.row.global_rank is None]
    return " and ".join(filter(None, [ranks_text(ranks) if ranks else "", first_of(others, _SHOWN) if others else ""]))


def _local(judgement: RasJudgement, suspect: Suspect) -> str:
    return f"rank {suspect.row.rank} of {place_of(judgement, suspect.communicator)}{_process(suspect.row)}"


def _process(row: RasRank) -> str:
    """Describe process, node and GPU of a rank; empty if unknown."""
    if row.pid is None:
        return ""
    gpu = "" if row.gpu is None else f", GPU {row.gpu}"
    return f" (process {row.pid} on {row.host}{gpu})"


def _are(named: str) -> str:
    return "is" if named.startswith("rank ") and " and " not in named else "are"


_DETAILS: Final = {
    "left": "its process answers and no longer has the communicator",
    "unreachable": "its process does not answer NCCL's other processes",
    "dead": "NCCL's other processes have had no contact to its process for more than a minute",
    "mismatch": "launched as many collectives as the others, of other kinds",
}


def detail_of(judgement: RasJudgement, suspect: Suspect) -> str:
    """Describe the evidence against one rank in a sentence."""
    row = suspect.row
    if row.why == "error":
        text = f"NCCL reports: {row.error}"
    elif row.why == "behind":
        launched = ", ".join(f"{count:,} {kind}" for kind, count in (row.launched or {}).items() if count) or "nothing"
        text = f"has launched {launched} of {place_of(judgement, suspect.communicator)}"
        text += f"; {counted(len(suspect.communicator.waiting), 'rank')} launched more"
    else:
        text = _DETAILS[row.why]
    return text + _process(row)


def names_of(judgement: RasJudgement, hosts: Mapping[int, str]) -> list[str]:
    """Return a name of each named rank that says where it is."""
    names = []
    for suspect in judgement.named:
        row = suspect.row
        if row.global_rank is None:
            names.append(_local(judgement, suspect))
        else:
            host = hosts.get(row.global_rank, row.host)
            process = "" if row.pid is None else f" (process {row.pid})"
            names.append(f"rank {row.global_rank}" + (f" on {host}" if host else "") + process)
    return list(dict.fromkeys(names))
