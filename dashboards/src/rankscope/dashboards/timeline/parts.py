"""Lanes: the time of a rank cut into parts of one kind each, from a profile."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.intervals import Spans

Numbers = NDArray[np.int64]


class ActivityKind(IntEnum):
    """Kind of activity. The order is that of the legend."""

    COMPUTE = 0
    OVERLAP = 1
    """Communication at the same time as compute."""
    TRANSFER = 2
    """In a collective after all of its ranks have arrived, without compute."""
    WAITING = 3
    """In a collective before its last rank has arrived, without compute."""
    COMMUNICATION = 4
    """In an unmatched collective, or in an event of a raw trace: waiting and transfer cannot be separated."""
    COPY = 5
    IDLE = 6
    NOT_SEPARATED = 7
    """In a profiled step, outside of collectives: compute, copies and idle cannot be separated without the raw trace."""


NO_VALUE: Final = -1
"""No collective, or an unknown wait."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of several lanes, in nanoseconds: disjoint within a lane, ascending by lane and start."""

    lane: Numbers
    start: Numbers
    end: Numbers
    kind: Numbers
    """Value of ``ActivityKind``."""
    about: Numbers
    """Number of the window's collective that the part belongs to, else ``NO_VALUE``."""

    def of(self, lanes: Numbers, first: int, past: int) -> Parts:
        """Return the parts of ``lanes`` (ascending), renumbered in their order and cut to ``[first, past)``."""
        at = np.searchsorted(lanes, self.lane)
        inside = at < len(lanes)
        inside[inside] = lanes[at[inside]] == self.lane[inside]
        inside &= (self.start < past) & (self.end > first)
        return Parts(
            at[inside],
            np.maximum(self.start[inside], first),
            np.minimum(self.end[inside], past),
            self.kind[inside],
            self.about[inside],
        )


@dataclass(frozen=True, slots=True)
class RecordedIntervals:
    """Recorded intervals of one rank on the common clock; all but ``collectives`` are merged sets."""

    steps: Spans
    collectives: Spans
    """[n, 2]: arrival and end, in any order; may overlap."""
    waits: Numbers
    """[n]: how long each collective waited for its last rank; ``NO_VALUE`` where not known."""
    numbers: Numbers
    """[n]: numbers of the collectives, for ``Parts.about``."""
    compute: Spans
    copies: Spans
    is_whole: bool
    """True if compute and copies are known for the whole steps, not only within collectives."""


def parts_of(lane: int, recorded: RecordedIntervals) -> Parts:
    """Return the rank's time as parts: every moment of a step or a collective is in exactly one part.

    If collectives overlap, the part belongs to the one that began last. Waiting in one during transfer in another is transfer.
    """
    arrivals, ends, waits = recorded.collectives[:, 0], recorded.collectives[:, 1], recorded.waits
    lasts = np.minimum(arrivals + np.maximum(waits, 0), ends)
    sets = [recorded.steps, recorded.collectives, recorded.compute, recorded.copies]
    edges = np.unique(np.concatenate([lasts, *(spans.ravel() for spans in sets)]))
    if len(edges) < 2:
        return _no_parts()
    has_wait = waits != NO_VALUE
    in_step, computes, copies = (
        _depth(edges, spans[:, 0], spans[:, 1]) for spans in (recorded.steps, recorded.compute, recorded.copies)
    )
    waiting = _depth(edges, arrivals[has_wait], lasts[has_wait])
    transfers = _depth(edges, lasts[has_wait], ends[has_wait])
    unknown = _depth(edges, arrivals[~has_wait], ends[~has_wait])
    talks = waiting | transfers | unknown
    remaining_kind = np.where(in_step, ActivityKind.IDLE if recorded.is_whole else ActivityKind.NOT_SEPARATED, NO_VALUE)
    kind = np.select(
        [talks & computes, transfers, waiting, unknown, computes, copies],
        [
            ActivityKind.OVERLAP,
            ActivityKind.TRANSFER,
            ActivityKind.WAITING,
            ActivityKind.COMMUNICATION,
            ActivityKind.COMPUTE,
            ActivityKind.COPY,
        ],
        remaining_kind,
    )
    about = np.full(len(kind), NO_VALUE)
    places = np.searchsorted(edges, recorded.collectives).tolist()
    for at in np.argsort(arrivals, kind="stable").tolist():
        first, past = places[at]
        about[first:past] = recorded.numbers[at]
    opens = np.concatenate(([True], (kind[1:] != kind[:-1]) | (about[1:] != about[:-1])))
    begin = np.flatnonzero(opens)
    past_ = np.append(begin[1:], len(kind))
    real = kind[begin] != NO_VALUE
    begin, past_ = begin[real], past_[real]
    return Parts(np.full(len(begin), lane), edges[begin], edges[past_], kind[begin], about[begin])


def _depth(edges: Numbers, starts: Numbers, ends: Numbers) -> NDArray[np.bool_]:
    """Return, per pair of consecutive edges, whether any interval ``[starts, ends)`` covers it; their bounds must be edges."""
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, starts), 1)
    np.add.at(change, np.searchsorted(edges, ends), -1)
    return np.cumsum(change)[:-1] > 0


def _no_parts() -> Parts:
    return Parts(*(np.empty(0, np.int64) for _ in range(5)))


def join_parts(parts: list[Parts]) -> Parts:
    """Concatenate the parts of lanes, in their order."""
    all_parts = [_no_parts(), *parts]
    return Parts(*(np.concatenate([getattr(part, name) for part in all_parts]) for name in Parts.__slots__))
