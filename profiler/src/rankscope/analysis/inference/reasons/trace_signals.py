"""Signals of a slow rank in its trace: what its host did while the device waited, in excess of its peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from rankscope.analysis.evidence.kernels.device_times import DeviceTimes, more_rows, more_work
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.result.cause import MORE_WORK
from rankscope.analysis.statistics import excess_of_rank
from rankscope.analysis.trace.annotations import HostKind
from rankscope.runs.records import PHASES

_ACTIVITIES: Final[tuple[Literal["checkpoint", "evaluation"], ...]] = ("checkpoint", "evaluation")
_ALONE: Final = 0.9
"""Share of the rank's time in an activity that must be beyond its peers' for the rank to do it alone."""


def _host_times(
    times: Mapping[int, DeviceTimes], ranks: Sequence[int], steps: Collection[int]
) -> dict[HostKind, dict[int, float]]:
    """Return the mean time of the hosts in each phase and activity, by rank.

    A rank with annotations of its host, but none of a kind, spends no time in it. Ranks without annotations are left out.
    """
    hosts = {rank: kinds for rank in ranks if (kinds := times[rank].host_us) is not None} if steps else {}
    return {
        kind: {rank: sum(kinds.get(kind, {}).get(step, 0.0) for step in steps) / len(steps) for rank, kinds in hosts.items()}
        for kind in {kind for kinds in hosts.values() for kind in kinds}
    }


def with_traces(
    signals: Signals,
    times: Mapping[int, DeviceTimes],
    rank: int,
    peers: Sequence[int],
    steps: Collection[int],
    *,
    per: float = 1.0,
) -> Signals:
    """Return the signals of ``rank`` with what its trace shows of its work, and of its host in ``steps``, against its ``peers``.

    ``per``: number of steps to which the other signals refer. Unchanged where its trace or those of its peers are not known.
    """
    peers = [peer for peer in peers if peer in times]
    if rank not in times or not peers:
        return signals
    work = [more for more in (more_work(times, rank, peers), more_rows(times, rank, peers)) if more is not None]
    host = _host_times(times, [rank, *peers], steps)
    over = {kind: us * per for kind, of_ranks in host.items() if (us := excess_of_rank(of_ranks, rank, peers)) is not None}
    return replace(
        signals,
        work=max(work, default=None),
        same_calls=bool(work) and max(work) < MORE_WORK,
        phases_us={phase: over[phase] for phase in PHASES if phase in over},
        gc_us=over.get("gc"),
        activities_us={kind: over[kind] for kind in _ACTIVITIES if kind in over},
        alone=frozenset(kind for kind in _ACTIVITIES if kind in over and over[kind] >= _ALONE * per * host[kind][rank]),
    )
