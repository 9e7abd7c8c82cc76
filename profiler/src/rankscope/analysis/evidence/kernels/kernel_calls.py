"""Calls of the costliest kernels and operators of profiled steps on a rank and on its peers: more work, or the same?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rankscope.analysis.collectives.windows import COSTLIEST
from rankscope.analysis.result.cause import MORE_WORK
from rankscope.base.text import one_line, shortened
from rankscope.runs.records import KernelRecord

_NAME: Final = 60
"""Characters shown of a name."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """Mean of the profiled steps."""

    calls: float
    total_us: float


_NONE: Final = _Calls(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class CallComparison:
    """Kernels or operators of a rank that compute, compared with its peers' by name. All values are per profiled step."""

    excess_us: float
    """Time beyond that of its peers, summed over those that take longer."""
    more_us: float
    """Part of ``excess_us`` that goes into additional calls: of those called more often by ``MORE_WORK`` or more."""
    more_calls: float
    """Number of these additional calls."""
    fewer_calls: float
    """Number of calls of others that only the peers make, as where the rank runs other kernels for the same."""
    name: str
    """The one with most of ``more_us``; empty without any."""
    calls: float
    usual_calls: float
    """Median of its calls on the peers."""

    @property
    def is_more_work(self) -> bool:
        """Whether at least half of the excess goes into additional calls that do not replace others."""
        return bool(self.name) and self.more_us >= 0.5 * self.excess_us and self.fewer_calls < 0.5 * self.more_calls

    @property
    def is_same_work(self) -> bool:
        """Whether all but a tenth of the excess is in kernels or operators that are called as often as on the peers."""
        return self.excess_us > 0 and self.more_us < MORE_WORK * self.excess_us

    @property
    def described(self) -> str:
        """The calls for people: "aten::conv2d runs 22 times per step, on the others 6 times"."""
        return f"{self.name} runs {_count(self.calls)} per step, on the others {_count(self.usual_calls)}"


def compare_calls(
    kernels: Mapping[int, Sequence[KernelRecord]], rank: int, peers: Sequence[int], steps: Collection[int] | None = None
) -> CallComparison | None:
    """Compare the kernels of ``rank`` with those of its ``peers``; ``None`` where the rank or all peers have none.

    ``steps``: those that count; ``None``: all that both sides have profiled. Only the costliest of each step are recorded, so one
    that a peer lacks has at most the time of the last that it has.
    """
    common = {row.step for row in kernels.get(rank, ())} if steps is None else set(steps)
    own_calls, least_us = _of_rank(kernels.get(rank, ()), common)
    others = [peer_calls for peer in peers if (peer_calls := _of_rank(kernels.get(peer, ()), common))[0]]
    if not own_calls or not others:
        return None
    excess = more = more_calls = fewer_calls = most = 0.0
    name, calls, usual_calls = "", 0.0, 0.0
    for call in dict.fromkeys([*own_calls, *(calls_of_peer for calls_of, _ in others for calls_of_peer in calls_of)]):
        usual = _median(
            [calls_of_peer.get(call) or _at_most(own_calls.get(call, _NONE), least) for calls_of_peer, least in others]
        )
        own = own_calls.get(call) or _at_most(usual, least_us)
        longer = max(0.0, own.total_us - usual.total_us)
        excess += longer
        if longer and own.calls >= (1 + MORE_WORK) * usual.calls:
            additional = min(longer, (own.calls - usual.calls) * own.total_us / own.calls)
            more += additional
            more_calls += own.calls - usual.calls
            if additional > most:
                most, name, calls, usual_calls = additional, shortened(one_line(call, " "), _NAME), own.calls, usual.calls
        elif usual.calls >= (1 + MORE_WORK) * own.calls:
            fewer_calls += usual.calls - own.calls
    return CallComparison(excess, more, more_calls, fewer_calls, name, calls, usual_calls)


def _median(rows: Sequence[_Calls]) -> _Calls:
    return _Calls(float(np.median([row.calls for row in rows])), float(np.median([row.total_us for row in rows])))


def _of_rank(rows: Sequence[KernelRecord], steps: Collection[int]) -> tuple[dict[str, _Calls], float]:
    """Return the calls by name, and the largest time that one not recorded may have; both are means of the profiled steps."""
    profiled_rows = [row for row in rows if row.step in steps and row.calls > 0 and row.total_us >= 0]
    count = len({row.step for row in profiled_rows})
    by_step: dict[int, list[float]] = defaultdict(list)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in profiled_rows:
        by_step[row.step].append(row.total_us)
        if row.kind == "compute":
            totals[row.name][0] += row.calls
            totals[row.name][1] += row.total_us
    least = sum(min(times) for times in by_step.values() if len(times) >= COSTLIEST) / max(1, count)
    return {name: _Calls(calls / count, us / count) for name, (calls, us) in totals.items()}, least


def _at_most(calls: _Calls, least_us: float) -> _Calls:
    """Return the most calls that an unrecorded kernel has in ``least_us``, if each is as long as those in ``calls``."""
    part = min(1.0, least_us / calls.total_us) if calls.total_us > 0 else 1.0
    return _Calls(calls.calls * part, calls.total_us * part)


def _count(calls: float) -> str:
    return "not at all" if not round(calls) else "once" if round(calls) == 1 else f"{calls:.0f} times"
