"""Compare two snapshots of NCCL RAS, and name the ranks that the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rankscope.analysis.hang.ras.places import Places, find_places
from rankscope.analysis.hang.ras.snapshot import Communicator, Device, Snapshot
from rankscope.analysis.hang.result import HangCause, HangKind, RasCommunicator, RasRank

MOST_LISTED: Final = 1024
MOST_COMMUNICATORS: Final = 64

Why = Literal["behind", "mismatch", "left", "unreachable", "dead", "error"]
Who = int | Device | tuple[str, int]
"""A rank in all its communicators: its global rank, else its device, else its rank in one communicator."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that differs in a communicator."""

    communicator: Communicator
    rank: int
    why: Why


@dataclass(slots=True)
class Found:
    """What the snapshots show."""

    places: Places
    moved: bool | None
    suspects: list[Suspect]
    waiting: dict[str, int]
    """Number of ranks that wait for those behind, by key of the communicator."""
    kind: HangKind = "insufficient_data"
    cause: HangCause | None = None
    named: list[Suspect] = field(default_factory=list)
    certain: bool = False


def judge(
    latest: Snapshot, before: Snapshot | None, *, world_size: int | None = None, pids: Mapping[int, int] | None = None
) -> Found:
    """Judge one or two snapshots; see ``find_places`` for the rest. A pure function.

    Only ranks that are behind in both snapshots, while no rank launches anything, hang: a job that trains has ranks that are
    behind at every moment.
    """
    places = find_places(latest, world_size=world_size, pids=pids or {})
    suspects = [suspect for one in latest.communicators for suspect in _suspects(one)]
    waiting = {one.key: _waiting(one) for one in latest.communicators}
    found = Found(places, None if before is None else _moved(before, latest), suspects, waiting)
    lost = [one for one in suspects if one.why in ("unreachable", "dead")]
    if lost and found.moved is not True:
        lasting = before is not None and all(_was_lost(before, one) for one in lost)
        _name(found, "unreachable", lost, certain=lasting or all(one.why == "dead" for one in lost))
    elif found.moved:
        found.kind = "insufficient_data" if lost else "no_hang"
    elif before is not None:
        _judge_standing(found)
    return found


def _judge_standing(found: Found) -> None:
    """Judge a job in which nothing moved."""
    errors = [one for one in found.suspects if one.why == "error"]
    # Where a rank fails, NCCL reports a remote error on the others.
    own = [one for one in errors if "remote" not in (one.communicator.members[one.rank].error or "")]
    behind = [one for one in found.suspects if one.why in ("behind", "left")]
    mismatched = [one for one in found.suspects if one.why == "mismatch"]
    if own:
        _name(found, "nccl_error", own, certain=True)
    elif behind:
        roots = _roots(found, behind)
        _name(found, "not_arrived" if roots else "deadlock", roots or behind)
    elif mismatched:
        _name(found, "mismatch", mismatched, certain=True)
    elif errors:
        _name(found, "nccl_error", [])


def _name(found: Found, cause: HangCause, named: list[Suspect], *, certain: bool = False) -> None:
    found.kind, found.cause, found.certain = "hang", cause, certain
    found.named = sorted(named, key=lambda one: (-found.waiting[one.communicator.key], one.communicator.key, one.rank))


def _suspects(one: Communicator) -> list[Suspect]:
    found = [
        Suspect(one, rank, "dead" if absent.dead else "left" if absent.reachable else "unreachable")
        for rank, absent in one.absent.items()
        # A communicator that its ranks are leaving is no sign of a hang.
        if not absent.reachable or any(member.state in ("running", "initializing") for member in one.members.values())
    ]
    found += [Suspect(one, rank, "error") for rank, member in one.members.items() if member.error is not None]
    counted = {rank: member for rank, member in one.members.items() if member.counts}
    least, most = _extent(one)
    if least < most:
        found += [Suspect(one, rank, "behind") for rank, member in counted.items() if member.launched == least]
    else:
        ways = Counter(tuple(sorted(member.counts.items())) for member in counted.values())
        usual = max(ways, key=lambda way: ways[way], default=())
        if len(ways) > 1:
            alone = 2 * ways[usual] > len(counted)
            found += [
                Suspect(one, rank, "mismatch")
                for rank, member in counted.items()
                if not alone or tuple(sorted(member.counts.items())) != usual
            ]
    return found


def _extent(one: Communicator) -> tuple[int, int]:
    launched = [member.launched for member in one.members.values() if member.counts]
    return min(launched, default=0), max(launched, default=0)


def _waiting(one: Communicator) -> int:
    least, _ = _extent(one)
    return sum(member.launched > least for member in one.members.values() if member.counts)


def _moved(before: Snapshot, latest: Snapshot) -> bool | None:
    """Return whether any rank launched a collective in between; ``None`` where the answers do not tell."""
    earlier, later = (_counts(one) for one in (before, latest))
    if earlier != later:
        # In text, the communicators in which ranks differ come and go as the job moves.
        return True
    return False if later else None


def _counts(snapshot: Snapshot) -> dict[tuple[str, int], object]:
    found: dict[tuple[str, int], object] = {(one.key, -1): one.halves for one in snapshot.communicators if one.halves}
    for one in snapshot.communicators:
        found |= {(one.key, rank): dict(row.counts) for rank, row in one.members.items() if any(row.counts.values())}
    return found


def _was_lost(before: Snapshot, suspect: Suspect) -> bool:
    earlier = next((one for one in before.communicators if one.key == suspect.communicator.key), None)
    absent = None if earlier is None else earlier.absent.get(suspect.rank)
    return absent is not None and not absent.reachable


def _roots(found: Found, behind: list[Suspect]) -> list[Suspect]:
    """Return those that are behind and wait in no other communicator themselves."""
    waits: set[Who] = set()
    for communicator in {one.communicator.key: one.communicator for one in behind}.values():
        least, _ = _extent(communicator)
        waits |= {
            who(found.places, communicator, rank)
            for rank, member in communicator.members.items()
            if member.counts and member.launched > least
        }
    return [one for one in behind if who(found.places, one.communicator, one.rank) not in waits]


def who(places: Places, communicator: Communicator, rank: int) -> Who:
    """Return what identifies the rank in all communicators, as far as it is known."""
    known = places.of(communicator, rank)
    if known is not None:
        return known
    return communicator.device(rank) or (communicator.key, rank)


def differing(found: Found) -> list[RasCommunicator]:
    """Return the communicators in which ranks differ, those with most waiting ranks first."""
    by_key: dict[str, list[Suspect]] = {}
    for one in found.suspects:
        by_key.setdefault(one.communicator.key, []).append(one)
    keys = sorted(by_key, key=lambda key: (-found.waiting[key], key))[:MOST_COMMUNICATORS]
    return [_communicator(found, by_key[key]) for key in keys]


def _communicator(found: Found, suspects: list[Suspect]) -> RasCommunicator:
    one = suspects[0].communicator
    counted = [member for member in one.members.values() if member.counts]
    furthest = max(counted, key=lambda member: member.launched, default=None)
    return RasCommunicator(
        hash=one.name,
        size=one.size,
        whole_job=one.key in found.places.whole,
        furthest=None if furthest is None else dict(furthest.counts),
        waiting=found.waiting[one.key] if counted else None,
        ranks=[rank_row(found.places, suspect) for suspect in suspects[:MOST_LISTED]],
    )


def rank_row(places: Places, suspect: Suspect) -> RasRank:
    """Return the row of the result for a rank that differs."""
    one, rank = suspect.communicator, suspect.rank
    device, member = one.device(rank), one.members.get(rank)
    return RasRank(
        rank=rank,
        global_rank=places.of(one, rank),
        host=None if device is None else device.host,
        pid=None if device is None else device.pid,
        gpu=None if device is None else device.gpu,
        why=suspect.why,
        launched=dict(member.counts) if member is not None and member.counts else None,
        error=None if member is None else member.error,
    )
