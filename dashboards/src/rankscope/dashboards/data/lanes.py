"""What a rank did when: its time cut into parts of one kind each, from what a profile recorded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.intervals import Spans

Numbers = NDArray[np.int64]


class Kind(IntEnum):
    """What time is spent on. The order is that of the legend."""

    COMPUTE = 0
    OVERLAP = 1
    """Communication with compute at the same time."""
    TRANSFER = 2
    """In a collective whose ranks are all there, nothing computed meanwhile."""
    WAITING = 3
    """In a collective, before its last rank is there, nothing computed meanwhile."""
    COMMUNICATION = 4
    """In a collective that could not be matched, or in an event of a raw trace: waiting and transfer are not told apart."""
    COPY = 5
    IDLE = 6
    NOT_TOLD = 7
    """In a profiled step, outside of collectives: compute, copies and idle time are not told apart without the raw trace."""


NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of time of several lanes: disjoint within a lane, ascending by lane and start. Nanoseconds."""

    lane: Numbers
    start: Numbers
    end: Numbers
    kind: Numbers
    """Of ``Kind``."""
    about: Numbers
    """Which of the window's collectives it belongs to, else ``NOBODY``."""

    def of(self, lanes: Numbers, first: int, past: int) -> Parts:
        """Those of ``lanes`` (ascending), numbered anew in their order, cut to ``[first, past)``."""
        at = np.searchsorted(lanes, self.lane)
        held = at < len(lanes)
        held[held] = lanes[at[held]] == self.lane[held]
        held &= (self.start < past) & (self.end > first)
        return Parts(
            at[held],
            np.maximum(self.start[held], first),
            np.minimum(self.end[held], past),
            self.kind[held],
            self.about[held],
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of one rank; merged sets of intervals on the common clock, but for ``collectives``."""

    steps: Spans
    collectives: Spans
    """[n, 2] from arrival to end, in any order; may overlap."""
    waits: Numbers
    """[n] how long each waited for its last rank; ``NOBODY`` where that is not known."""
    numbers: Numbers
    """[n] what to call them."""
    compute: Spans
    copies: Spans
    is_whole: bool
    """Whether compute and copies are known of all of the steps, not of collectives alone."""


def parts_of(lane: int, recorded: Recorded) -> Parts:
    """Its time as parts: every moment of a step or a collective is in exactly one.

    Of collectives at the same time the one that began last counts; waiting in one and transferring in another is transfer.
    """
    arrivals, ends, waits = recorded.collectives[:, 0], recorded.collectives[:, 1], recorded.waits
    lasts = np.minimum(arrivals + np.maximum(waits, 0), ends)
    sets = [recorded.steps, recorded.collectives, recorded.compute, recorded.copies]
    edges = np.unique(np.concatenate([lasts, *(one.ravel() for one in sets)]))
    if len(edges) < 2:
        return _no_parts()
    known = waits != NOBODY
    in_step, computes, copies = (
        _depth(edges, one[:, 0], one[:, 1]) for one in (recorded.steps, recorded.compute, recorded.copies)
    )
    waiting = _depth(edges, arrivals[known], lasts[known])
    transfers = _depth(edges, lasts[known], ends[known])
    unknown = _depth(edges, arrivals[~known], ends[~known])
    talks = waiting | transfers | unknown
    rest = np.where(in_step, Kind.IDLE if recorded.is_whole else Kind.NOT_TOLD, NOBODY)
    kind = np.select(
        [talks & computes, transfers, waiting, unknown, computes, copies],
        [Kind.OVERLAP, Kind.TRANSFER, Kind.WAITING, Kind.COMMUNICATION, Kind.COMPUTE, Kind.COPY],
        rest,
    )
    about = np.full(len(kind), NOBODY)
    for at in np.argsort(arrivals, kind="stable"):
        first, past = np.searchsorted(edges, recorded.collectives[at])
        about[first:past] = recorded.numbers[at]
    opens = np.concatenate(([True], (kind[1:] != kind[:-1]) | (about[1:] != about[:-1])))
    begin = np.flatnonzero(opens)
    past_ = np.append(begin[1:], len(kind))
    real = kind[begin] != NOBODY
    begin, past_ = begin[real], past_[real]
    return Parts(np.full(len(begin), lane), edges[begin], edges[past_], kind[begin], about[begin])


def _depth(edges: Numbers, starts: Numbers, ends: Numbers) -> NDArray[np.bool_]:
    """Between each edge and the next: whether any of ``[starts, ends)``, whose bounds are among the edges, is there."""
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, starts), 1)
    np.add.at(change, np.searchsorted(edges, ends), -1)
    return np.cumsum(change)[:-1] > 0


def _no_parts() -> Parts:
    return Parts(*(np.empty(0, np.int64) for _ in range(5)))


def joined(parts: list[Parts]) -> Parts:
    """Parts of lanes, in the order of these."""
    together = [_no_parts(), *parts]
    return Parts(*(np.concatenate([getattr(one, name) for one in together]) for name in Parts.__slots__))
