"""Tenants of a shared device: each job, pod or user on it, with its memory and its share of the SMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rankscope.exporter.jobs.join import LABEL, identity_of, is_unnamed, uses_by_party
from rankscope.exporter.jobs.party import GpuUse, PartyIdentity
from rankscope.exporter.source import GpuProcess, Labels

MAX_TENANTS: Final = 64
"""Tenants of a device that are published, those with the most memory first: MPS has at most 60 clients."""

_SHOWN: Final = ("job_id", "user", "namespace", "pod", "container")


class Tenant(msgspec.Struct, frozen=True):
    """One of several parties on a device. ``memory_bytes`` and ``sm_ratio`` are None if the driver does not report them."""

    labels: Labels
    memory_bytes: float | None
    sm_ratio: float | None


def tenants_of(
    holders: Sequence[PartyIdentity],
    processes: Sequence[GpuProcess] | None,
    uses: Mapping[int, GpuUse],
    *,
    jobs: Mapping[str, PartyIdentity],
    names: Mapping[int, str],
    hidden: frozenset[str],
    is_mig: bool,
) -> list[Tenant]:
    """Return the tenants of a device. One without labels, which are unknown or ``hidden``, is left out.

    ``processes`` are those on the device, None while it does not answer; ``uses`` is what is known about them by pid.
    See ``join`` for ``jobs`` and ``names``.
    """
    complete, processes = processes is not None, processes or ()
    own = [uses[pid] for pid in {process.pid for process in processes} if pid in uses and not uses[pid].service]
    groups = uses_by_party(holders, own, jobs)
    identities: dict[str, PartyIdentity] = {}
    for holder in holders:
        first = identities.setdefault(holder.party, holder)
        if first.container != holder.container:  # the pod has the device in several containers
            identities[holder.party] = msgspec.structs.replace(first, container=None)
    identities |= {party: identity_of(group[0], jobs, names) for party, group in groups.items() if party not in identities}
    # A process of an unknown party may belong to any holder without a process of its own.
    attributed = complete and all(process.pid in uses for process in processes) and not any(map(is_unnamed, groups))
    # On a MIG device, drivers report no share of the SMs; without a process it is 0.
    sampled = any(process.sm_ratio is not None for process in processes) or not (processes or is_mig)
    by_labels: dict[Labels, list[Tenant]] = {}
    for party, identity in identities.items():
        values = ((LABEL.get(name, name), getattr(identity, name)) for name in _SHOWN)
        labels = tuple((name, value) for name, value in values if value is not None and name not in hidden)
        if labels:
            pids = {use.pid for use in groups.get(party, ())}
            of_party = [process for process in processes if process.pid in pids]
            is_attributed = bool(of_party) or attributed
            tenant = Tenant(
                labels,
                _total(process.used_bytes for process in of_party) if is_attributed else None,
                _total(process.sm_ratio for process in of_party) if is_attributed and sampled else None,
            )
            by_labels.setdefault(labels, []).append(tenant)
    tenants = [
        Tenant(labels, _total(tenant.memory_bytes for tenant in same), _total(tenant.sm_ratio for tenant in same))
        for labels, same in by_labels.items()
    ]
    return sorted(tenants, key=lambda tenant: (-(tenant.memory_bytes or 0), tenant.labels))[:MAX_TENANTS]


def _total(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a value is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
