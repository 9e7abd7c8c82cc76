"""Result of checking the device events of a trace."""

from __future__ import annotations

from typing import Literal

import msgspec

Problem = Literal["no_activity", "captured_graph", "damaged"]
"""The device's events are not in the trace, only the capture of a device graph is, or too many events are damaged."""


class DataQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what the check of a trace's device events found."""

    device_events: int
    """Kernels and copies in the file, also those left out."""
    without_time: int = 0
    """Events left out because the profiler could not time them: it then writes a start or a length of 0."""
    far: int = 0
    """Events left out because they are far in time from everything else."""
    overlong: int = 0
    """Events cut to the usual length of their kernel, as they last beyond the start of the next event of their stream."""
    launches: int = 0
    """Calls that launch a kernel by itself, and launches of graphs without any event; not those into a graph that is captured."""
    captured: int = 0
    """Launches into a device graph that is captured: they run nothing."""
    without_kernel: int = 0
    """Launches whose kernel is not in the trace."""
    before_launch: int = 0
    """Device events that begin more than a millisecond before their launch."""
    out_of_order: int = 0
    """Device events, at least, that a stream ran before another one that had been launched a millisecond earlier."""
    damaged_steps: int = 0
    """Annotated steps that miss, or have cut, more than 2 % of their device events; no figure of a step rests on them."""
    problem: Problem | None = None
    """Why no figure and no verdict rests on this trace; ``None`` if they do."""
    reason: str | None = None
    """The same as the end of a sentence about the trace: ``shows no device activity: …``."""
