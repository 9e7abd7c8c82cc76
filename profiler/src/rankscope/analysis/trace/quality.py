"""Check of a trace's device events: events without times, far from the rest or too long, and launches without their kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.data_quality import DataQuality, Problem
from rankscope.analysis.result.text import counted
from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, LEFT_OUT
from rankscope.analysis.trace.event_times import are_far, device_events_of, host_events, in_order, without_overruns
from rankscope.analysis.trace.runtime_calls import (
    GIVES_WORK,
    RuntimeCalls,
    before_launch,
    kernel_launches,
    launch_about,
    out_of_order,
)
from rankscope.runs.records import DeviceKind

MOST_MISSING: Final = 0.02
"""Largest share of device events that may be missing from a step, or have impossible times, for its figures to count."""
MOST_CUT: Final = 0.2
"""The same for events that were cut: their new length is an estimate, which is about right."""

_MOST_WITHOUT_KERNEL: Final = 0.5
"""Share of launches without their kernel above which a trace does not show what its device did."""
_CAPTURED_PER_KERNEL: Final = 9
"""Launches into a device graph per kernel above which a trace shows little but the capture of that graph."""


class CheckedEvents(msgspec.Struct, frozen=True):
    """Result of the check. Times have no base."""

    missing: NDArray[np.int64]
    """Launch times of the device events that are missing from the trace or left out, ascending."""
    cut: NDArray[np.int64]
    """Launch times of the device events that were cut, ascending."""
    quality: DataQuality
    launches_work: bool
    """True if the host gave any work to a device."""
    host_left_out: int = 0
    """Number of the host's events without a believable time."""


def check_columns(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], base_ns: int, kind: DeviceKind, *, torn: bool
) -> CheckedEvents:
    """Check the times of a trace's events, mark those that are left out, and cut those that last too long.

    Times have no base yet. ``torn``: the end of the file is missing, so that kernels may be missing, too.
    """
    end, category = columns["end"], columns["category"]
    rows = np.flatnonzero(category <= COPY)
    host = host_events(columns, base_ns)
    at = np.flatnonzero(category[host.rows] == LAUNCHED)
    launching = host.rows[at]
    calls = RuntimeCalls(
        start=host.start[at],
        end=host.end[at],
        thread=columns["thread"][launching],
        correlation=columns["correlation"][launching],
        names=names,
        name=columns["name"][launching],
    )
    device = device_events_of(columns, names, calls, base_ns, kind)
    is_distant = ~device.untimed & are_far(device, calls, host)
    keep = ~device.untimed & ~is_distant
    kept_rows = in_order(device, np.flatnonzero(keep))
    cut = np.zeros(len(rows), dtype=bool)
    ends = device.end.copy()
    ends[kept_rows], cut[kept_rows] = without_overruns(device, calls, host, kept_rows)
    # Without correlation ids on the device's side nothing can be said of single launches.
    shows_all = not torn and (bool((device.correlation >= 0).any()) or not len(rows))
    launched, lost, captured = kernel_launches(calls, device.call, device.correlation, shows_all=shows_all)

    launch, left_out = device.launch.copy(), ~keep
    unlinked = left_out & (device.call < 0)
    if unlinked.any() and len(at):
        bounds = (int(host.start.min()) - 1, int(host.end.max()) + 1)
        launch[unlinked] = launch_about(device.correlation[unlinked], calls, bounds)
    missing = [calls.start[lost], launch[left_out & (launch >= 0)]]
    if (left_out & (launch < 0)).any():
        # It is not known where they belong, so they may be missing anywhere.
        missing.append(device.start[keep])
    gives_work = bool(calls.named(GIVES_WORK).any())
    linked = kept_rows[device.call[kept_rows] >= 0]
    early, disordered = before_launch(device.start[linked], launch[linked]), out_of_order(launch[linked], device.queue[linked])
    quality = DataQuality(
        device_events=len(rows),
        launches=int(launched.sum()),
        captured=int(captured.sum()),
        without_time=int(device.untimed.sum()),
        far=int(is_distant.sum()),
        overlong=int(cut.sum()),
        without_kernel=int(lost.sum()),
        before_launch=early,
        out_of_order=disordered,
    )
    kernels = int((category[rows[keep]] == KERNEL).sum())
    problem, reason = _no_activity(quality, bool(keep.any()), kernels, gives_work=gives_work and not torn)
    if problem is None and (reason := _contradiction(quality, len(linked))) is not None:
        problem = "damaged"
    category[rows[left_out]] = LEFT_OUT
    end[rows[cut]] = ends[cut]
    return CheckedEvents(
        missing=np.sort(np.concatenate(missing)),
        cut=np.sort(np.where(launch >= 0, launch, device.start)[cut]),
        quality=msgspec.structs.replace(quality, problem=problem, reason=reason),
        launches_work=gives_work,
        host_left_out=host.left_out,
    )


def are_damaged(present: NDArray[np.int_], missing: NDArray[np.int_], cut: NDArray[np.int_]) -> NDArray[np.bool_]:
    """Return for which steps so many device events are missing or cut that their figures do not count, [steps].

    ``present``: events that are there, the cut ones included.
    """
    damaged: NDArray[np.bool_] = (missing > MOST_MISSING * (missing + present)) | (cut > MOST_CUT * present)
    return damaged


def _no_activity(quality: DataQuality, has_work: bool, kernels: int, *, gives_work: bool) -> tuple[Problem | None, str | None]:
    """Return why the trace does not show what the device did, see ``DataQuality``; nothing if it does.

    ``kernels``: number of those that count.
    """
    lost, launches, captured = quality.without_kernel, quality.launches, quality.captured
    is_capture = captured > _CAPTURED_PER_KERNEL * kernels
    if has_work and lost <= _MOST_WITHOUT_KERNEL * launches and not is_capture:
        return None, None
    if quality.device_events and not has_work:
        return "damaged", f"has no time for any of its {counted(quality.device_events, 'device event')}"
    if not gives_work:
        return None, None
    if is_capture and captured > lost:
        counts = f"{captured:,} of {captured + launches:,} kernel launches are part of it"
        return "captured_graph", f"shows the capture of a device graph, which does not run it: {counts}"
    if not launches:
        return "no_activity", "shows calls that give work to a device, but no device activity"
    return "no_activity", f"shows no device activity: {lost:,} of {launches:,} kernel launches have no kernel"


def _contradiction(quality: DataQuality, linked: int) -> str | None:
    """Return why a trace's clocks cannot be believed, as the end of a sentence about the trace; ``None`` if they can.

    ``linked``: number of device events whose launch is known.
    """
    early, disordered = quality.before_launch, quality.out_of_order
    for count, sentence in (
        (early, "has device events that begin before their launch: its clocks of host and device contradict each other"),
        (disordered, "has device events in another order than their launches: a clock was set back while it was recorded"),
    ):
        if count > 1 and count > MOST_MISSING * linked:  # a single event is damaged by itself
            return f"{sentence} ({count:,} of {counted(linked, 'event')})"
    return None
