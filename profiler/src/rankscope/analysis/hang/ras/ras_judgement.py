"""Compare two snapshots of NCCL RAS, and name the ranks that the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.hang.hang_result import MOST_LISTED, HangCause, HangKind, RasCommunicator, RasRank, RasWhy
from rankscope.analysis.hang.ras.snapshot import Communicator, RasDevice, Snapshot

MOST_COMMUNICATORS: Final = 64

Identity = int | RasDevice | tuple[str, int]
"""A rank in all its communicators: its global rank, else its device, else its rank in one communicator."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that differs in a communicator."""

    communicator: Communicator
    row: RasRank
    """Its row in the result."""


@dataclass(frozen=True, slots=True)
class GlobalRanks:
    """Which communicators are of the whole job, and the global ranks of devices."""

    world_size: int | None
    job_communicators: frozenset[str]
    """Keys of the communicators of the whole job: their ranks are the global ones, as torch makes them."""
    by_device: Mapping[RasDevice, int]
    by_pid: Mapping[int, int]
    """Global rank by process id, where the run records one rank with it."""

    def of(self, communicator: Communicator, rank: int) -> int | None:
        """Return the global rank, or ``None`` if it is unknown."""
        if communicator.key in self.job_communicators:
            return rank
        device = communicator.members[rank].device
        return None if device is None else self.by_device.get(device, self.by_pid.get(device.pid))

    def identity(self, communicator: Communicator, rank: int) -> Identity:
        """Return what identifies the rank in all communicators, as far as it is known."""
        global_rank = self.of(communicator, rank)
        return global_rank if global_rank is not None else communicator.members[rank].device or (communicator.key, rank)


@dataclass(slots=True)
class RasJudgement:
    """What the snapshots show."""

    ranks: GlobalRanks
    moved: bool | None
    suspects: list[Suspect]
    kind: HangKind = "insufficient_data"
    cause: HangCause | None = None
    named: list[Suspect] = field(default_factory=list)
    certain: bool = False

    def suspected(self, *reasons: RasWhy) -> list[Suspect]:
        """Return the suspects for some reasons."""
        return [suspect for suspect in self.suspects if suspect.row.why in reasons]

    def name(self, cause: HangCause, named: list[Suspect], *, certain: bool = False) -> None:
        """Name ranks, those in the communicators with most waiting ranks first."""
        self.kind, self.cause, self.certain = "hang", cause, certain
        self.named = sorted(named, key=lambda suspect: (*_order(suspect.communicator), suspect.row.rank))


def judge(
    latest: Snapshot, before: Snapshot | None, *, world_size: int | None = None, pids: Mapping[int, int] | None = None
) -> RasJudgement:
    """Judge one or two snapshots. A pure function. ``world_size`` and ``pids`` (rank to process id): of the run, where known.

    Only ranks that are behind in both snapshots, while no rank launches anything, hang: a job that trains has ranks that are
    behind at every moment.
    """
    ranks = global_ranks(latest, world_size=world_size, pids=pids or {})
    suspects = [suspect for communicator in latest.communicators for suspect in _suspects(communicator, ranks)]
    judgement = RasJudgement(ranks, None if before is None else _moved(before, latest), suspects)
    lost = judgement.suspected("unreachable", "dead")
    if lost and judgement.moved is not True:
        lasting = before is not None and all(_was_lost(before, suspect) for suspect in lost)
        judgement.name("unreachable", lost, certain=lasting or all(suspect.row.why == "dead" for suspect in lost))
    elif judgement.moved:
        judgement.kind = "insufficient_data" if lost else "no_hang"
    elif before is not None:
        _judge_standing(judgement)
    return judgement


def global_ranks(snapshot: Snapshot, *, world_size: int | None, pids: Mapping[int, int]) -> GlobalRanks:
    """Find the communicators of the whole job, and the global ranks of devices."""
    world = world_size or snapshot.gpus
    job_communicators = [communicator for communicator in snapshot.communicators if communicator.size == world]
    by_device: dict[RasDevice, int] = {}
    unique = Counter(pids.values())
    # Several GPUs of one process are several ranks, which the run records as one.
    shared = Counter(device.pid for device in snapshot.devices())
    by_pid = {pid: rank for rank, pid in pids.items() if unique[pid] == 1 and shared[pid] == 1}
    for communicator in job_communicators:
        for rank, member in communicator.members.items():
            if member.device is not None and by_device.setdefault(member.device, rank) != rank:
                # A group of all ranks in another order: which one has the global ranks is unknown.
                return GlobalRanks(world, frozenset(), {}, by_pid)
    return GlobalRanks(world, frozenset(communicator.key for communicator in job_communicators), by_device, by_pid)


def _judge_standing(judgement: RasJudgement) -> None:
    """Judge a job in which nothing moved."""
    errors = judgement.suspected("error")
    # Where a rank fails, NCCL reports a remote error on the others.
    own = [suspect for suspect in errors if "remote" not in (suspect.row.error or "")]
    behind = judgement.suspected("behind", "left")
    mismatched = judgement.suspected("mismatch")
    if own:
        judgement.name("nccl_error", own, certain=True)
    elif behind:
        roots = _roots(judgement.ranks, behind)
        judgement.name("not_arrived" if roots else "deadlock", roots or behind)
    elif mismatched:
        judgement.name("mismatch", mismatched, certain=True)
    elif errors:
        judgement.name("nccl_error", [])


def _suspects(communicator: Communicator, ranks: GlobalRanks) -> list[Suspect]:
    # A communicator that its ranks are leaving is no sign of a hang.
    is_used = any(member.state in ("running", "initializing") for member in communicator.members.values())
    reasons: list[tuple[int, RasWhy]] = [
        (rank, member.loss)
        for rank, member in communicator.members.items()
        if member.loss is not None and (member.loss != "left" or is_used)
    ]
    reasons += [(rank, "error") for rank, member in communicator.members.items() if member.error is not None]
    counted = communicator.counted
    if waiting := set(communicator.waiting):
        reasons += [(rank, "behind") for rank in counted if rank not in waiting]
    ways = Counter(tuple(sorted(member.counts.items())) for member in counted.values())
    if len(ways) > 1 and not waiting:
        usual = max(ways, key=lambda way: ways[way])
        has_majority = 2 * ways[usual] > len(counted)
        odd_ranks = [
            rank for rank, member in counted.items() if not has_majority or tuple(sorted(member.counts.items())) != usual
        ]
        reasons += [(rank, "mismatch") for rank in odd_ranks]
    return [Suspect(communicator, _row(communicator, rank, why, ranks)) for rank, why in reasons]


def _row(communicator: Communicator, rank: int, why: RasWhy, ranks: GlobalRanks) -> RasRank:
    member = communicator.members[rank]
    device = member.device
    return RasRank(
        rank=rank,
        global_rank=ranks.of(communicator, rank),
        host=None if device is None else device.host,
        pid=None if device is None else device.pid,
        gpu=None if device is None else device.gpu,
        why=why,
        launched=dict(member.counts) if member.counts else None,
        error=member.error,
    )


def _moved(before: Snapshot, latest: Snapshot) -> bool | None:
    """Return whether any rank launched a collective in between; ``None`` where the answers do not tell."""
    earlier, later = (_counts(snapshot) for snapshot in (before, latest))
    if earlier != later:
        # In text, the communicators in which ranks differ come and go as the job moves.
        return True
    return False if later else None


def _counts(snapshot: Snapshot) -> dict[tuple[str, int], object]:
    counts: dict[tuple[str, int], object] = {}
    for communicator in snapshot.communicators:
        if communicator.halves:
            counts[communicator.key, -1] = communicator.halves
        for rank, member in communicator.members.items():
            if any(member.counts.values()):
                counts[communicator.key, rank] = dict(member.counts)
    return counts


def _was_lost(before: Snapshot, suspect: Suspect) -> bool:
    members = next((row.members for row in before.communicators if row.key == suspect.communicator.key), {})
    return suspect.row.rank in members and members[suspect.row.rank].loss in ("unreachable", "dead")


def _roots(ranks: GlobalRanks, behind: Sequence[Suspect]) -> list[Suspect]:
    """Return those that are behind and wait in no other communicator themselves."""
    communicators = {suspect.communicator.key: suspect.communicator for suspect in behind}
    waits = {ranks.identity(row, rank) for row in communicators.values() for rank in row.waiting}
    return [suspect for suspect in behind if ranks.identity(suspect.communicator, suspect.row.rank) not in waits]


def _order(communicator: Communicator) -> tuple[int, str]:
    return -len(communicator.waiting), communicator.key


def differing(judgement: RasJudgement) -> list[RasCommunicator]:
    """Return the communicators in which ranks differ, those with most waiting ranks first."""
    by_key: dict[str, list[Suspect]] = {}
    for suspect in judgement.suspects:
        by_key.setdefault(suspect.communicator.key, []).append(suspect)
    rows = []
    for suspects in sorted(by_key.values(), key=lambda suspects: _order(suspects[0].communicator))[:MOST_COMMUNICATORS]:
        communicator = suspects[0].communicator
        furthest = communicator.furthest
        rows.append(
            RasCommunicator(
                hash=communicator.name,
                size=communicator.size,
                whole_job=communicator.key in judgement.ranks.job_communicators,
                furthest=None if furthest is None else dict(furthest),
                waiting=None if furthest is None else len(communicator.waiting),
                ranks=[suspect.row for suspect in suspects[:MOST_LISTED]],
            )
        )
    return rows
