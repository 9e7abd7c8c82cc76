"""Check of a trace's columns: rows without a believable time are left out, and device events that last too long are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.calls import HostEvents
from rankscope.analysis.trace.categories import COPY, KERNEL, LAUNCHED, LEFT_OUT, OPERATOR
from rankscope.analysis.trace.quality import HOST_PLACE, Checked, DeviceEvents, check, is_near, places, untimed
from rankscope.runs.records import DeviceKind

_ONE_AFTER_THE_OTHER: Final = frozenset({"cuda", "rocm", "xpu"})
"""Kinds of devices of which the events of a stream run one after the other."""


def check_columns(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], base_ns: int, kind: DeviceKind, *, torn: bool
) -> Checked:
    """Check the times of a trace's events, mark those that are left out, and cut those that last too long.

    Times have no base yet.
    """
    start, end, category = columns["start"], columns["end"], columns["category"]
    device = np.flatnonzero(category <= COPY)
    host = np.flatnonzero((category >= OPERATOR) & (category <= LAUNCHED))
    begin, done, latest = start[host], end[host], int(start.max(initial=0))
    timed = ~untimed(begin, done, base_ns, latest)
    near = places(begin, done, share=HOST_PLACE) if timed.all() else places(begin[timed], done[timed], share=HOST_PLACE)
    alone = np.flatnonzero(~is_near(begin, near))
    # One event may span the minutes before all others.
    timed[alone] &= is_near(done[alone], near)
    left_out = host[~timed]
    category[left_out] = LEFT_OUT
    if len(left_out):
        host, begin, done = host[timed], begin[timed], done[timed]
    calls = np.flatnonzero(category[host] == LAUNCHED)
    starts, ends, stream = start[device], end[device], columns["stream"][device]
    # Numbers of streams are below 2**46. The queues of other devices are not known to run one event after the other.
    queue = (stream << 16) + columns["device"][device] + 1
    queue[(stream < 0) | (kind not in _ONE_AFTER_THE_OTHER)] = -1
    checked = check(
        DeviceEvents(
            start=starts,
            end=ends,
            queue=queue,
            correlation=columns["correlation"][device],
            kernel=(columns["name"][device].astype(np.int64) << 32) + columns["grid"][device] + 1,
            untimed=untimed(starts, ends, base_ns, latest, category[device] == KERNEL),
        ),
        HostEvents(
            start=begin,
            end=done,
            places=near,
            thread=columns["thread"][host],
            calls=calls,
            correlation=columns["correlation"][host[calls]],
            names=names,
            name=columns["name"][host[calls]],
        ),
        torn=torn,
    )
    category[device[~checked.keep]] = LEFT_OUT
    if len(checked.cut):
        end[device] = checked.end
    return msgspec.structs.replace(checked, host_left_out=len(left_out))
