"""Partition of a window: compute, exposed communication, exposed copies, idle."""

from __future__ import annotations

import msgspec

from rankscope.analysis.trace.intervals import Spans, clip, intersect, join, measure, subtract


class Work(msgspec.Struct, frozen=True):
    """Work of one rank, as merged sets of absolute nanoseconds. The sets may overlap each other."""

    compute: Spans
    communication: Spans
    copies: Spans

    def clip(self, start: int, end: int) -> Work:
        """Return the part inside the window ``[start, end)``."""
        return Work(clip(self.compute, start, end), clip(self.communication, start, end), clip(self.copies, start, end))

    def extent(self) -> tuple[int, int] | None:
        """Return the first start and the last end of all work, or ``None`` when there is none."""
        everything = join(self.compute, self.communication, self.copies)
        return (int(everything[0, 0]), int(everything[-1, 1])) if len(everything) else None


class Partition(msgspec.Struct, frozen=True):
    """Partition of a window, in microseconds: compute + exposed_communication + exposed_memcpy + idle == window."""

    start_ns: int
    window_us: float
    compute_us: float
    communication_us: float
    overlap_us: float
    """Communication that compute hid."""
    exposed_communication_us: float
    memcpy_us: float
    exposed_memcpy_us: float
    """Copies that neither compute nor communication hid."""
    idle_us: float


def partition(work: Work, start: int, end: int) -> Partition:
    """Partition the window ``[start, end)`` (nanoseconds); work outside it does not count."""
    assert end >= start, "a window cannot end before it starts"
    inside = work.clip(start, end)
    compute = measure(inside.compute)
    communication = measure(inside.communication)
    overlap = measure(intersect(inside.communication, inside.compute))
    exposed_communication = measure(subtract(inside.communication, inside.compute))
    busy = join(inside.compute, inside.communication)
    exposed_copies = measure(subtract(inside.copies, busy))
    idle = (end - start) - measure(join(busy, inside.copies))
    # Whole nanoseconds, so these hold exactly.
    assert overlap + exposed_communication == communication
    assert compute + exposed_communication + exposed_copies + idle == end - start
    return Partition(
        start_ns=start,
        window_us=(end - start) / 1000,
        compute_us=compute / 1000,
        communication_us=communication / 1000,
        overlap_us=overlap / 1000,
        exposed_communication_us=exposed_communication / 1000,
        memcpy_us=measure(inside.copies) / 1000,
        exposed_memcpy_us=exposed_copies / 1000,
        idle_us=idle / 1000,
    )
