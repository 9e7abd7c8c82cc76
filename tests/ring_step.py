"""Step in the format of the ring, for tests of its readers."""

from __future__ import annotations

from rankscope.profiler.entries import StepEntry, Usage, pack
from rankscope.profiler.phases import UNSEEN
from rankscope.runs.records import PHASES


def packed(number: int, *, wall_ns: int = 1_000_000, profiled: bool = False) -> bytes:
    """Return a step of one long forward phase, with no other known values."""
    return pack(
        StepEntry(
            step=number,
            start_unix_ns=10**18,
            wall_ns=wall_ns,
            phases_ns=[wall_ns if phase == "forward" else UNSEEN for phase in PHASES],
            blocked_ns=None,
            profiled=profiled,
            awaits_device=False,
            cpu_ns=0,
            gc_ns=0,
            samples=None,
            tokens=None,
            input_elements=None,
            flops=None,
            memory=None,
            sections_ns={},
            tags=[],
            usage=Usage(number, None, 0, 0),
        )
    )
