"""One answer per GPU or MIG device from its holders, its processes and the claims of ranks in the spool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rankscope.exporter.jobs.devices import bare
from rankscope.exporter.jobs.environment import number, word
from rankscope.exporter.jobs.party import Identity, Ranks, Use
from rankscope.exporter.source import Labels
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey

MULTIPLE: Final = "multiple"

_IDENTITY: Final = ("job_id", "user", "account", "partition")
_RANKS: Final = ("rank", "local_rank", "world_size", "run_id")
_POD: Final = ("namespace", "pod", "container")
_LABEL: Final = {"namespace": "namespace_k8s", "pod": "pod_k8s", "container": "container_k8s"}


class Claim(msgspec.Struct, frozen=True):
    """A rank's own word, in the spool, that it is on this device; ``uid`` is the owner of its file."""

    uid: int
    ranks: Ranks
    silent: bool = False


class Answer(msgspec.Struct, frozen=True):
    """Who is on a device: labels of what is known, in the catalogue's order, and how many jobs, pods and other users they are."""

    labels: Labels
    parties: int


def join(
    holders: Sequence[Identity],
    uses: Iterable[Use],
    *,
    jobs: Mapping[str, Identity],
    claims: Sequence[Claim],
    names: Mapping[int, str],
) -> Answer:
    """Put together who holds a device and who uses it.

    Who holds it gives job, user, account, partition and pod; who uses it gives the rank, and the rest only where nobody holds it.
    Parties that differ in a label, or of which only some are known, make it ``multiple``. ``jobs`` are all of the node by their
    number; ``names`` are those of users. A label that cannot be trusted to be about this device is not there.
    """
    groups = _grouped(holders, [use for use in uses if not use.service], jobs)
    held: dict[str, list[Identity]] = {}
    for holder in holders:
        held.setdefault(holder.party, []).append(holder)
    # Somebody's stray process says nothing about the holder's ranks.
    own = {party: group for party, group in groups.items() if _is_holders(party, held)}
    told = own or groups
    claimed = {} if groups else _claimed(holders, claims)
    identities = (
        list(held.values())
        or [[_identity(use, jobs, names) for use in group] for group in groups.values()]
        or [[Identity(user=names.get(uid), uid=uid)] for uid in claimed]
    )
    ranks = [_ranks(group, claims) for group in told.values()] or list(claimed.values())
    values = {name: _shared([_values(name, members) for members in identities]) for name in (*_IDENTITY, *_POD)}
    if held and values["job_id"] is None:  # a node of Slurm that runs in a pod
        values["job_id"] = _shared([{use.job_id for use in group if use.job_id} for group in own.values()])
    values |= {name: _shared([_values(name, members) for members in ranks]) for name in _RANKS}
    pods = {party for party in groups if party.startswith("pod uid ")}
    held_pods = [party for party in held if party.startswith("pod ")]
    others = (held.keys() | groups.keys()) - pods - set(held_pods)
    ordered = ((name, values[name]) for name in (*_IDENTITY, *_RANKS, *_POD))
    labels = tuple((_LABEL.get(name, name), value) for name, value in ordered if value is not None)
    # The kubelet names pods, the kernel their uids: which is which is not known, how many there are at least is.
    known = len(others) + max(len(held_pods), len(pods))
    return Answer(labels, known or len(claimed))


def _grouped(holders: Sequence[Identity], uses: list[Use], jobs: Mapping[str, Identity]) -> dict[str, list[Use]]:
    groups: dict[str, list[Use]] = {}
    for use in uses:
        groups.setdefault(_party(use, holders, jobs), []).append(use)
    return groups


def _party(use: Use, holders: Sequence[Identity], jobs: Mapping[str, Identity]) -> str:
    if use.pod_uid is not None:
        return f"pod uid {use.pod_uid}"
    job_id = _job_id(use, jobs, holders)
    if job_id is not None:
        return f"job {job_id}"
    if use.container_id is not None:
        return f"container {use.container_id}"
    mine = [holder for holder in holders if holder.uid == use.uid and holder.job_id is not None]
    return mine[0].party if len(mine) == 1 else f"user {use.uid}"


def _job_id(use: Use, jobs: Mapping[str, Identity], holders: Sequence[Identity]) -> str | None:
    """The kernel's word, or the environment's where it is not contradicted."""
    if use.job_id is not None or use.claimed_job_id is None:
        return use.job_id
    job = jobs.get(use.claimed_job_id)
    if job is None:
        return None if holders else use.claimed_job_id
    return use.claimed_job_id if job.uid == use.uid else None


def _is_holders(party: str, held: Mapping[str, list[Identity]]) -> bool:
    if party.startswith("pod uid "):
        return any(one.startswith("pod ") for one in held)
    return party in held


def _identity(use: Use, jobs: Mapping[str, Identity], names: Mapping[int, str]) -> Identity:
    """Of a process on a device that nobody holds. In a container a uid is not a user of the node."""
    job_id = None if use.pod_uid is not None else _job_id(use, jobs, ())
    if job_id is not None and (job := jobs.get(job_id)) is not None:
        return job
    contained = use.pod_uid is not None or use.container_id is not None
    return Identity(
        job_id=job_id,
        user=None if contained else names.get(use.uid),
        uid=use.uid,
        account=use.account if job_id is not None else None,
        partition=use.partition if job_id is not None else None,
    )


def _ranks(group: list[Use], claims: Sequence[Claim]) -> list[Ranks]:
    """What a rank says of its own device is exact; a process may have other ranks' devices open as well."""
    uids = {use.uid for use in group}
    mine = [claim for claim in claims if claim.uid in uids]
    running = [claim.ranks for claim in mine if not claim.silent]
    if running:
        return running
    # A silent rank may be long gone. It counts only where nothing else can be asked.
    silent = [claim.ranks for claim in mine if claim.silent] if not any(use.environ_read for use in group) else []
    return silent or [use.ranks for use in group]


def _claimed(holders: Sequence[Identity], claims: Sequence[Claim]) -> dict[int, list[Ranks]]:
    """Ranks by user where processes are not seen: the word of the holders, or the only one there is."""
    uids = {holder.uid for holder in holders}
    running = [claim for claim in claims if not claim.silent and (not holders or None in uids or claim.uid in uids)]
    by_user: dict[int, list[Ranks]] = {}
    for claim in running:
        by_user.setdefault(claim.uid, []).append(claim.ranks)
    return by_user


def _values(name: str, members: Iterable[msgspec.Struct]) -> set[str]:
    return {value for member in members if (value := getattr(member, name)) is not None}


def _shared(parties: list[set[str]]) -> str | None:
    """The value of all parties; ``multiple`` when they differ, or only some of them have one."""
    union = set().union(*parties)
    if not union:
        return None
    return union.pop() if len(union) == 1 and all(parties) else MULTIPLE


_METRIC = "rank_info"


def claims_of(sample: SpoolSample | None) -> dict[str, list[Claim]]:
    """The ranks by the uuid they name, without its prefix, each as the word of the user whose files speak of its run."""
    claims: dict[str, list[Claim]] = {}
    if sample is None:
        return claims
    for family in sample.families:
        if family.name != _METRIC:
            continue
        for series in family.series:
            labels = dict(series.labels)
            run_id = labels.get("run_id", "")
            owner, uuid = sample.owners.get(run_id), labels.get("gpu_uuid")
            if owner is not None and uuid:
                key = RankKey(labels.get("run", ""), labels.get("rank", ""), labels.get("slot", ""))
                silent = sample.states.get(key, "silent") == "silent"
                claims.setdefault(bare(uuid), []).append(Claim(owner, _claimed_ranks(labels), silent))
    return claims


def _claimed_ranks(labels: Mapping[str, str]) -> Ranks:
    return Ranks(
        rank=number(labels.get("rank")),
        local_rank=number(labels.get("local_rank")),
        world_size=number(labels.get("world_size")),
        run_id=word(labels.get("run_id")),
    )
