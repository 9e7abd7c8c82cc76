"""Sentences on what NCCL RAS showed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rankscope.analysis.hang.ras.judging import Found, Suspect, rank_row
from rankscope.analysis.hang.ras.snapshot import Communicator, Snapshot
from rankscope.analysis.hang.result import RasRank
from rankscope.analysis.result.text import counted, first_of
from rankscope.base.text import ranks_text, span

_SHOWN: Final = 4


def summary_of(found: Found, latest: Snapshot, interval_s: float | None) -> str:
    """Summarize what was found in one sentence."""
    over = "" if interval_s is None else f" in {span(interval_s)}"
    if found.kind == "hang":
        return _hang(found, over)
    if found.moved:
        lost = _named(found, [one for one in found.suspects if one.why in ("unreachable", "dead")])
        gone = f", but no contact to {lost}" if lost else ""
        return f"{'Not enough data for a verdict' if lost else 'No hang'}: the ranks launched collectives{over}{gone}."
    if interval_s is None:
        behind = _named(found, [one for one in found.suspects if one.why == "behind"])
        seen = f"{behind} {_are(behind)} behind at that moment, as also happens" if behind else "no rank was behind, as also"
        return f"Not enough data for a verdict: NCCL RAS answered once only; {seen} in a job that trains."
    return f"Not enough data for a verdict: {_standing(found, latest, over)}."


def _standing(found: Found, latest: Snapshot, over: str) -> str:
    if not latest.total:
        return "NCCL RAS knows no communicator: the job has not begun to communicate, or has ended"
    if halves := next((one for one in latest.communicators if one.halves), None):
        ranks = "; ".join(halves.halves[:_SHOWN])
        return f"ranks of {place_of(found, halves)} differ ({ranks}); NCCL before 2.28.7 does not list which, as they are so many"
    if found.moved is None:
        return "NCCL RAS shows no difference between the ranks, nor whether they go on: this NCCL or job has no counts for that"
    return (
        f"all ranks launched the same collectives, and none{over}: they compute, do what NCCL RAS does not count (sends and "
        "receives, CUDA graphs), or all came to a collective that does not end"
    )


def _hang(found: Found, over: str) -> str:
    who = _named(found, found.named)
    who = who[:1].upper() + who[1:]
    still = f"no rank launched anything{over}"
    match found.cause:
        case "unreachable":
            dead = all(one.why == "dead" for one in found.named)
            gone = "NCCL's processes gave up on it" if len(found.named) == 1 else "NCCL's processes gave up on them"
            return f"{who} {'does' if len(found.named) == 1 else 'do'} not answer NCCL's other processes" + (
                f"; {gone} after a minute without contact." if dead else ": stopped, dead, or cut off from the network."
            )
        case "nccl_error" if found.named:
            errors = sorted({found_error(one) for one in found.named})
            return f"NCCL reports an error on {_named(found, found.named)}: {', '.join(errors)}."
        case "nccl_error":
            return "NCCL reports on ranks that another process failed; which one NCCL RAS does not show."
        case "mismatch":
            place = place_of(found, found.named[0].communicator)
            return f"{who} launched other kinds of collectives in {place} than the others, and {still}."
        case "deadlock":
            return f"Deadlock: ranks are behind in one communicator and wait in another ({_named(found, found.named)}); {still}."
        case _:
            return f"{who} {_behind(found, found.named[0])}, and {still}."


def found_error(one: Suspect) -> str:
    """Return the error of a rank as text."""
    return one.communicator.members[one.rank].error or "unknown"


def _behind(found: Found, first: Suspect) -> str:
    one = first.communicator
    place = place_of(found, one)
    waiting = counted(found.waiting[one.key], "rank")
    verb = "has" if len(found.named) == 1 else "have"
    if first.why == "left":
        return f"{verb} left {place}, in which others still are"
    furthest = max((member for member in one.members.values() if member.counts), key=lambda member: member.launched)
    kinds = missing_of(one.members[first.rank].counts, furthest.counts)
    return f"{verb} not launched {kinds} of {place}, which {waiting} did"


def missing_of(less: Mapping[str, int], more: Mapping[str, int]) -> str:
    """Describe the collectives that one rank has launched and the other has not: ``AllReduce 42``."""
    kinds = []
    for kind, count in more.items():
        if (had := less.get(kind, 0)) < count:
            name = "collective" if kind == "collective" else kind
            kinds.append(f"{name} {had + 1}" if count == had + 1 else f"{name} {had + 1} to {count}")
    return ", ".join(kinds) or "collectives"


def place_of(found: Found, one: Communicator) -> str:
    """Describe a communicator: ``the communicator of all 8 ranks``, ``communicator 0xab12 (4 ranks)``."""
    if one.key in found.places.whole:
        return f"the communicator of all {counted(one.size, 'rank')}"
    return f"communicator {one.name} ({counted(one.size, 'rank')})"


def _named(found: Found, suspects: list[Suspect]) -> str:
    """Name ranks: by global rank where all are known, else also by communicator, process and node."""
    rows = [(one, rank_row(found.places, one)) for one in suspects]
    known = sorted({row.global_rank for _, row in rows if row.global_rank is not None})
    others = [
        f"rank {row.rank} of {place_of(found, one.communicator)}{where(row)}" for one, row in rows if row.global_rank is None
    ]
    return " and ".join(filter(None, [ranks_text(known) if known else "", first_of(others, _SHOWN) if others else ""]))


def where(row: RasRank) -> str:
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


def detail_of(found: Found, one: Suspect) -> str:
    """Describe the evidence against one rank in a sentence."""
    row = rank_row(found.places, one)
    if one.why == "error":
        text = f"NCCL reports: {found_error(one)}"
    elif one.why == "behind":
        launched = ", ".join(f"{count:,} {kind}" for kind, count in (row.launched or {}).items() if count) or "nothing"
        text = f"has launched {launched} of {place_of(found, one.communicator)}"
        text += f"; {counted(found.waiting[one.communicator.key], 'rank')} launched more"
    else:
        text = _DETAILS[one.why]
    return text + where(row)


def names_of(found: Found, hosts: Mapping[int, str]) -> list[str]:
    """Return a name of each named rank that says where it is."""
    names = []
    for one in found.named:
        row = rank_row(found.places, one)
        if row.global_rank is None:
            names.append(f"rank {row.rank} of {place_of(found, one.communicator)}{where(row)}")
        else:
            host = hosts.get(row.global_rank, row.host)
            process = "" if row.pid is None else f" (process {row.pid})"
            names.append(f"rank {row.global_rank}" + (f" on {host}" if host else "") + process)
    return list(dict.fromkeys(names))
