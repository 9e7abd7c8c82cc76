"""Who is on a GPU or MIG device: from its holders, its processes and the claims of ranks in the spool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rankscope.exporter.jobs.devices import bare_uuid
from rankscope.exporter.jobs.environment import number, word
from rankscope.exporter.jobs.party import GpuUse, PartyIdentity, Ranks
from rankscope.exporter.source import Labels
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey

MULTIPLE: Final = "multiple"

_IDENTITY: Final = ("job_id", "user", "account", "partition")
_RANKS: Final = ("rank", "local_rank", "world_size", "run_id")
_POD: Final = ("namespace", "pod", "container")
LABEL: Final = {"namespace": "namespace_k8s", "pod": "pod_k8s", "container": "container_k8s"}
"""Names of labels that differ from those of the fields of ``PartyIdentity``: Prometheus has labels of these names itself."""

_UNNAMED_POD: Final = "pod uid "


class Claim(msgspec.Struct, frozen=True):
    """A rank's own statement, in the spool, that it uses this device; ``uid`` is the owner of its file."""

    uid: int
    ranks: Ranks
    silent: bool = False


class Occupancy(msgspec.Struct, frozen=True):
    """Jobs and users on a device: the known labels in the catalogue's order, and the number of jobs, pods and other users."""

    labels: Labels
    parties: int


def join(
    holders: Sequence[PartyIdentity],
    uses: Iterable[GpuUse],
    *,
    jobs: Mapping[str, PartyIdentity],
    claims: Sequence[Claim],
    names: Mapping[int, str],
) -> Occupancy:
    """Combine the holders of a device with the processes that use it.

    Holders supply job, user, account, partition and pod. Processes supply the rank, and the other labels only on a device without
    a holder. A label is ``multiple`` if the parties differ in it, or only some have it. A label that may be about another device
    is left out.

    ``jobs`` are all jobs of the node by id; ``names`` are user names by uid.
    """
    groups = uses_by_party(holders, [use for use in uses if not use.service], jobs)
    holders_of_party: dict[str, list[PartyIdentity]] = {}
    for holder in holders:
        holders_of_party.setdefault(holder.party, []).append(holder)
    # A process that is not the holder's says nothing about the holder's ranks.
    own = {party: group for party, group in groups.items() if _is_holders(party, holders_of_party)}
    users = own or groups
    claimed = {} if groups else _claimed(holders, claims)
    identities = (
        list(holders_of_party.values())
        or [[identity_of(use, jobs, names) for use in group] for group in groups.values()]
        or [[PartyIdentity(user=names.get(uid), uid=uid)] for uid in claimed]
    )
    ranks = [_ranks(group, claims) for group in users.values()] or list(claimed.values())
    values = {name: _shared([_values(name, members) for members in identities]) for name in (*_IDENTITY, *_POD)}
    if holders_of_party and values["job_id"] is None:  # a Slurm node that runs in a pod
        values["job_id"] = _shared([_job_ids_in_pod(group) for group in own.values()])
    values |= {name: _shared([_values(name, members) for members in ranks]) for name in _RANKS}
    unnamed = {party for party in groups if is_unnamed(party)}
    listed = (holders_of_party.keys() | groups.keys()) - unnamed
    idle_pods = [party for party in holders_of_party.keys() - groups.keys() if party.startswith("pod ")]
    ordered = ((name, values[name]) for name in (*_IDENTITY, *_RANKS, *_POD))
    labels = tuple((LABEL.get(name, name), value) for name, value in ordered if value is not None)
    # A pod of which only the uid is known may be one of the holders, which are known by name; the count is a lower bound.
    named_parties = len(listed) + max(0, len(unnamed) - len(idle_pods))
    return Occupancy(labels, named_parties or len(claimed))


def uses_by_party(
    holders: Sequence[PartyIdentity], uses: Iterable[GpuUse], jobs: Mapping[str, PartyIdentity]
) -> dict[str, list[GpuUse]]:
    """Group processes by the job, pod, container or user to which they belong."""
    groups: dict[str, list[GpuUse]] = {}
    for use in uses:
        groups.setdefault(_party(use, holders, jobs), []).append(use)
    return groups


def _party(use: GpuUse, holders: Sequence[PartyIdentity], jobs: Mapping[str, PartyIdentity]) -> str:
    if use.pod_uid is not None:
        return f"{_UNNAMED_POD}{use.pod_uid}" if use.pod is None else f"pod {use.namespace}/{use.pod}"
    job_id = _job_id(use, jobs, holders)
    if job_id is not None:
        return f"job {job_id}"
    if use.container_id is not None:
        return f"container {use.container_id}"
    of_uid = [holder for holder in holders if holder.uid == use.uid and holder.job_id is not None]
    return of_uid[0].party if len(of_uid) == 1 else f"user {use.uid}"


def _job_id(use: GpuUse, jobs: Mapping[str, PartyIdentity], holders: Sequence[PartyIdentity]) -> str | None:
    """Return the job id of the cgroup, else the one of the environment unless another source contradicts it."""
    if use.job_id is not None or use.claimed_job_id is None:
        return use.job_id
    job = jobs.get(use.claimed_job_id)
    if job is None:
        return None if holders else use.claimed_job_id
    if use.sluid is not None and job.sluid is not None:  # the cgroup of another job
        return None
    return use.claimed_job_id if job.uid == use.uid else None


def _job_ids_in_pod(group: list[GpuUse]) -> set[str]:
    """Return the job ids of the cgroups; where a cgroup shows a job but not its id, that of the environment."""
    job_ids = (use.job_id or (use.claimed_job_id if use.sluid is not None else None) for use in group)
    return {job_id for job_id in job_ids if job_id is not None}


def _is_holders(party: str, holders: Mapping[str, list[PartyIdentity]]) -> bool:
    if is_unnamed(party):
        return any(holder.startswith("pod ") for holder in holders)
    return party in holders


def is_unnamed(party: str) -> bool:
    """Return whether only the uid of this pod is known."""
    return party.startswith(_UNNAMED_POD)


def identity_of(use: GpuUse, jobs: Mapping[str, PartyIdentity], names: Mapping[int, str]) -> PartyIdentity:
    """Return the identity of a process on a device without a holder. In a container, a uid is not a user of the node."""
    job_id = None if use.pod_uid is not None else _job_id(use, jobs, ())
    if job_id is not None and (job := jobs.get(job_id)) is not None:
        return job
    contained = use.pod_uid is not None or use.container_id is not None
    return PartyIdentity(
        job_id=job_id,
        user=None if contained else names.get(use.uid),
        uid=use.uid,
        account=use.account if job_id is not None else None,
        partition=use.partition if job_id is not None else None,
        namespace=use.namespace,
        pod=use.pod,
    )


def _ranks(group: list[GpuUse], claims: Sequence[Claim]) -> list[Ranks]:
    """Return the ranks of a group of processes.

    Claims come first, because they are exact: a process may also have other ranks' devices open.
    """
    uids = {use.uid for use in group}
    of_uids = [claim for claim in claims if claim.uid in uids]
    running = [claim.ranks for claim in of_uids if not claim.silent]
    if running:
        return running
    # A silent rank may have ended. Its claim counts only if no process of the group has a readable environment.
    silent = [claim.ranks for claim in of_uids if claim.silent] if not any(use.environ_read for use in group) else []
    return silent or [use.ranks for use in group]


def _claimed(holders: Sequence[PartyIdentity], claims: Sequence[Claim]) -> dict[int, list[Ranks]]:
    """Return the claimed ranks by uid, for a device on which no process is visible.

    Only claims of the holders' users count, unless there is no holder or a holder's user is unknown.
    """
    uids = {holder.uid for holder in holders}
    running = [claim for claim in claims if not claim.silent and (not holders or None in uids or claim.uid in uids)]
    by_user: dict[int, list[Ranks]] = {}
    for claim in running:
        by_user.setdefault(claim.uid, []).append(claim.ranks)
    return by_user


def _values(name: str, members: Iterable[msgspec.Struct]) -> set[str]:
    return {value for member in members if (value := getattr(member, name)) is not None}


def _shared(parties: list[set[str]]) -> str | None:
    """Return the value that all parties share; ``multiple`` if they differ, or only some of them have one."""
    union = set().union(*parties)
    if not union:
        return None
    return union.pop() if len(union) == 1 and all(parties) else MULTIPLE


def claims_of(sample: SpoolSample | None) -> dict[str, list[Claim]]:
    """Return the ranks' claims by device uuid without its prefix; the uid of a claim is the owner of the run's files."""
    claims: dict[str, list[Claim]] = {}
    if sample is None:
        return claims
    for family in sample.families:
        if family.name != "rank_info":
            continue
        for series in family.series:
            labels = dict(series.labels)
            run_id = labels.get("run_id", "")
            owner, uuid = sample.owners.get(run_id), labels.get("gpu_uuid")
            if owner is not None and uuid:
                silent = sample.states.get(RankKey.of(series.labels), "silent") == "silent"
                claims.setdefault(bare_uuid(uuid), []).append(Claim(owner, _claimed_ranks(labels), silent))
    return claims


def _claimed_ranks(labels: Mapping[str, str]) -> Ranks:
    return Ranks(
        rank=number(labels.get("rank")),
        local_rank=number(labels.get("local_rank")),
        world_size=number(labels.get("world_size")),
        run_id=word(labels.get("run_id")),
    )
