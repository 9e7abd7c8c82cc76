"""What is particular to vendors: device events without a category, known by their process, and kinds of devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.categories import KERNEL, LEFT_OUT, NOTE, OPERATOR, UNLABELLED
from rankscope.analysis.trace.classify import classify_kernel
from rankscope.analysis.trace.numbering import Processes
from rankscope.analysis.trace.schema import Device
from rankscope.runs.records import DeviceKind

_STEP: Final = "ProfilerStep#"

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


def label_events(columns: Mapping[str, NDArray[Any]], names: Sequence[str], processes: Processes) -> bool:
    """Give the events without a category one, and steps that are recorded as operators that of annotations.

    Return whether there is any device event among the events without a category.
    """
    category, name = columns["category"], columns["name"]
    unlabelled = np.flatnonzero(category == UNLABELLED)
    if not len(unlabelled):
        return False
    step = np.array([spelling.startswith(_STEP) for spelling in names], dtype=bool)
    category[step[name] & (category == OPERATOR)] = NOTE
    category[unlabelled] = LEFT_OUT
    thread = columns["thread"][unlabelled]
    works = device_events(names, name[unlabelled], processes.of_thread[thread], processes.names)
    category[unlabelled[works]] = KERNEL
    columns["stream"][unlabelled[works]] = thread[works]
    return bool(works.any())


def device_kind(devices: Sequence[Device], categories: Collection[str], calls: Iterable[str]) -> DeviceKind:
    """Return the kind of the device, from device names, event categories and names of runtime calls."""
    said = " ".join(device.name or "" for device in devices).lower()
    if "amd" in said or "instinct" in said or any(call.startswith("hip") for call in calls):
        return "rocm"
    if any(category.startswith("xpu_") for category in categories):
        return "xpu"
    if any(category.startswith(("mtia_", "privateuse1_")) for category in categories):
        return "other"
    return "cuda"
