"""Device events that have no category in the trace: those of vendors that tell them by the process that they are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.classify import classify_kernel

DEVICE_PROCESSES: Final[Mapping[str, bool]] = {
    # process (lower case): True if only its collectives count, because their parts are on the device's own process, too
    "ascend hardware": False,
    "communication": True,
    "hccl": True,
}
"""Processes with device events: those of Ascend, as torch_npu writes them to ``trace_view.json``."""

PARTS_OF_COLLECTIVES: Final = frozenset({"memcpy", "reduce_inline", "rdmasend", "sdma"})
"""Tasks on the device of which collectives are made (lower case)."""


def device_events(
    names: Sequence[str], name: NDArray[np.int32], process: NDArray[np.int64], processes: Mapping[int, str]
) -> NDArray[np.bool_]:
    """Return which of the events without a category are kernels or collectives of a device, [events].

    ``process``: number of each event's process. ``processes``: names of processes by number, as the trace tells them.
    """
    role = {number: DEVICE_PROCESSES[said] for number, text in processes.items() if (said := text.lower()) in DEVICE_PROCESSES}
    collective = np.array([classify_kernel(one) == "communication" for one in names], dtype=bool)[name]
    part = np.array([one.lower() in PARTS_OF_COLLECTIVES for one in names], dtype=bool)[name]
    of_collectives = np.isin(process, [number for number, only in role.items() if only]) & collective
    on_device = np.isin(process, [number for number, only in role.items() if not only]) & ~part
    # A collective is on both; the process of collectives has it as a whole.
    on_device &= ~(collective & bool(of_collectives.any()))
    found: NDArray[np.bool_] = of_collectives | on_device
    return found
