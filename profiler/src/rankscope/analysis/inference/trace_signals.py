"""Signals of a slow rank in its trace: what its host did while the device waited, in excess of its peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rankscope.analysis.causes import MORE_WORK, Cause
from rankscope.analysis.evidence.device_times import DeviceTimes, more_rows, more_work
from rankscope.analysis.inference.diagnosis import Diagnosis
from rankscope.analysis.inference.signals import Signals
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.trace.annotations import HostKind
from rankscope.runs.records import PHASES


@dataclass(frozen=True, slots=True)
class HostExcess:
    """Mean time per step of a rank's host in a phase or activity, beyond its peers'."""

    over_us: float
    usual_us: float
    """Median of the peers."""

    @property
    def is_alone(self) -> bool:
        """True if the peers do not do it, or hardly."""
        return self.usual_us <= _ALONE * (self.over_us + self.usual_us)


_ACTIVITIES: Final[tuple[Literal["checkpoint", "evaluation"], ...]] = ("checkpoint", "evaluation")
_NOTABLE: Final = 0.1
"""Share of the excess from which it is evidence."""
_ALONE: Final = 0.1
"""Share of the rank's time in an activity up to which its peers may have some, and the rank still does it alone."""


def host_excess(
    times: Mapping[int, DeviceTimes], rank: int, peers: Sequence[int], steps: Collection[int]
) -> dict[HostKind, HostExcess]:
    """Return the host's excess over the median of the peers in each phase and activity.

    A rank with annotations of its host, but none of a kind, spends no time in it. Without such ranks the result is empty.
    """
    host = {one: times[one].host_us for one in (rank, *peers) if one in times}
    known = {one: kinds for one, kinds in host.items() if kinds is not None}
    if rank not in known or len(known) < 2 or not steps:
        return {}
    found: dict[HostKind, HostExcess] = {}
    for kind in {kind for kinds in known.values() for kind in kinds}:
        mean = {one: _mean(kinds.get(kind, {}), steps) for one, kinds in known.items()}
        usual = float(np.median([mean[one] for one in peers if one in mean]))
        found[kind] = HostExcess(mean[rank] - usual, usual)
    return found


def _mean(by_step: Mapping[int, float], steps: Collection[int]) -> float:
    return sum(by_step.get(step, 0.0) for step in steps) / len(steps)


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
    excess = host_excess(times, rank, peers, steps)
    over = {kind: one.over_us * per for kind, one in excess.items()}
    known: dict[Cause, float] = {kind: over[kind] for kind in _ACTIVITIES if kind in over}
    return replace(
        signals,
        work=max(work, default=None),
        same_calls=bool(work) and max(work) < MORE_WORK,
        phases_us={phase: over[phase] for phase in PHASES if phase in over},
        gc_us=over.get("gc"),
        activities_us=known,
        alone=frozenset(kind for kind in _ACTIVITIES if kind in over and excess[kind].is_alone),
    )


def with_host_evidence(diagnosis: Diagnosis, signals: Signals) -> Diagnosis:
    """Return ``diagnosis`` with the evidence of its host: phases that have a tenth of the excess, the data loader, and gc."""
    detail = "of the host by its annotations, over the median of its peers"
    rows = [
        Evidence(name=f"phase_excess.{phase}", value=over, unit="us", detail=detail)
        for phase, over in signals.phases_us.items()
        if phase == "data" or signals.part(over) >= _NOTABLE
    ]
    if signals.gc_us is not None and signals.part(signals.gc_us) >= _NOTABLE:
        rows.append(Evidence(name="gc_excess", value=signals.gc_us, unit="us", detail=detail))
    known = {row.name for row in diagnosis.evidence}
    return replace(diagnosis, evidence=[*diagnosis.evidence, *(row for row in rows if row.name not in known)])
