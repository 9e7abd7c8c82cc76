"""Categories of a trace's events as codes, the arguments that events of each category have, and what vendors do otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.classify import classify_kernel
from rankscope.analysis.trace.numbering import Processes, are_named
from rankscope.analysis.trace.schema import Device
from rankscope.runs.records import DeviceKind

KERNEL: Final = 0
COPY: Final = 1
OPERATOR: Final = 2
NOTE: Final = 3
LAUNCHED: Final = 4
DEVICE_NOTE: Final = 5
FUNCTION: Final = 6
"""Python function: kept as an annotation if it is an activity that interrupts training."""
UNLABELLED: Final = 7
"""Event without a category: work of a device if its process is a device's."""
LEFT_OUT: Final = 8
"""Event of a device without a believable time, or of no known kind."""

# Each argument occurs in some categories only. Reading it from all events would take as long as all other work together.
WORKS, LINKS, MOVES, OPERATES = (
    np.isin(np.arange(LEFT_OUT + 1), kinds) for kinds in ((KERNEL, COPY), (KERNEL, COPY, LAUNCHED), (COPY, LAUNCHED), (OPERATOR,))
)
EVENT_ARGUMENTS: Final[dict[str, tuple[NDArray[np.bool_], int]]] = {
    # column: (mask of the categories that have it, value in rows of the others)
    "stream": (WORKS, -1),
    "device": (WORKS, -1),
    "grid": (WORKS, -1),
    "correlation": (LINKS, -1),
}
DETAIL_ARGUMENTS: Final[dict[str, tuple[NDArray[np.bool_], int]]] = {
    "graphed": (WORKS, 0),
    "bytes": (MOVES, -1),
    "autograd": (OPERATES, 0),
}

GPU_KERNEL: Final = ("kernel", "concurrent_kernel", "mtia_ccp_events", "mtia_insight", "privateuse1_kernel")
GPU_COPY: Final = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
GPU_ANNOTATION: Final = ("gpu_user_annotation",)
_LAUNCH: Final = (
    *("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver"),
    *("mtia_runtime", "privateuse1_runtime", "privateuse1_driver"),
)
_CATEGORIES: Final[dict[str, int]] = {
    **dict.fromkeys(GPU_KERNEL, KERNEL),
    **dict.fromkeys(GPU_COPY, COPY),
    **dict.fromkeys(("cpu_op", "operator"), OPERATOR),
    "user_annotation": NOTE,
    **dict.fromkeys(_LAUNCH, LAUNCHED),
    **dict.fromkeys(GPU_ANNOTATION, DEVICE_NOTE),
    "python_function": FUNCTION,
}

_UNKNOWN_VENDOR: Final = re.compile(r"^(?!cpu)\w+_(?:(kernel|memcpy|memset)|runtime|driver)$", re.IGNORECASE)
"""Category of another vendor that spells its categories as CUDA's are: ``musa_runtime``, ``gcu_kernel``."""

_SPELLINGS: Final = 1000
"""Number of spellings of categories that are kept."""


class CategoryCodes(dict[str | None, int]):
    """Category codes by their spelling in the file; -1 for irrelevant categories."""

    def __missing__(self, category: str | None) -> int:
        code = UNLABELLED if category is None else _CATEGORIES.get(category.lower(), -1)
        if code < 0 and (match := _UNKNOWN_VENDOR.search(category or "")):
            code = {"kernel": KERNEL, "memcpy": COPY, "memset": COPY}.get(match[1] or "", LAUNCHED)
        if len(self) < _SPELLINGS:
            self[category] = code
        return code


_STEP: Final = "ProfilerStep#"

DEVICE_PROCESSES: Final[tuple[tuple[re.Pattern[str], bool], ...]] = (
    # (name of the process, True if only its collectives count, because their parts are on the device's own process, too)
    (re.compile(r"(ascend hardware|task scheduler)\b", re.IGNORECASE), False),
    (re.compile(r"((collective )?communication|hccl)\b", re.IGNORECASE), True),
)
"""Processes with device events: those of Ascend, as torch_npu writes them to ``trace_view.json``. A number may follow."""

PARTS_OF_COLLECTIVES: Final = frozenset({"memcpy", "reduce_inline", "rdmasend", "sdma"})
"""Tasks on the device of which collectives are made (lower case)."""


def device_events(
    names: Sequence[str], name: NDArray[np.int32], process: NDArray[np.int64], processes: Mapping[int, str]
) -> NDArray[np.bool_]:
    """Return which of the events without a category are kernels or collectives of a device, [events].

    ``process``: number of each event's process. ``processes``: names of processes by number, as the trace tells them.
    """
    role = {number: only for number, text in processes.items() for name_of, only in DEVICE_PROCESSES if name_of.match(text)}
    collective = are_named(names, name, lambda kernel: classify_kernel(kernel) == "communication")
    part = are_named(names, name, lambda task: task.lower() in PARTS_OF_COLLECTIVES)
    of_collectives = np.isin(process, [number for number, only in role.items() if only]) & collective
    on_device = np.isin(process, [number for number, only in role.items() if not only]) & ~part
    # A collective is on both; the process of collectives has it as a whole.
    on_device &= ~(collective & bool(of_collectives.any()))
    is_device: NDArray[np.bool_] = of_collectives | on_device
    return is_device


def label_events(columns: Mapping[str, NDArray[Any]], names: Sequence[str], processes: Processes) -> bool:
    """Give the events without a category one, and steps that are recorded as operators that of annotations.

    Return whether there is any device event among the events without a category.
    """
    category, name = columns["category"], columns["name"]
    unlabelled = np.flatnonzero(category == UNLABELLED)
    if not len(unlabelled):
        return False
    category[are_named(names, name, lambda text: text.startswith(_STEP)) & (category == OPERATOR)] = NOTE
    category[unlabelled] = LEFT_OUT
    thread = columns["thread"][unlabelled]
    works = device_events(names, name[unlabelled], processes.of_thread[thread], processes.names)
    category[unlabelled[works]] = KERNEL
    columns["stream"][unlabelled[works]] = thread[works]
    return bool(works.any())


def number_streams(columns: Mapping[str, NDArray[Any]]) -> None:
    """Give device events the number of their thread as stream, where most of them have none: profilers of XPU write none."""
    works = columns["category"] <= COPY
    if 2 * (columns["stream"][works] < 0).sum() > works.sum():
        columns["stream"][works] = columns["thread"][works]


def device_kind(devices: Sequence[Device], categories: Collection[str], calls: Iterable[str]) -> DeviceKind:
    """Return the kind of the device, from device names, event categories and names of runtime calls."""
    device_names = " ".join(device.name or "" for device in devices).lower()
    if "amd" in device_names or "instinct" in device_names or any(call.startswith("hip") for call in calls):
        return "rocm"
    if any(category.startswith("xpu_") for category in categories):
        return "xpu"
    if any(category.startswith(("mtia_", "privateuse1_")) for category in categories):
        return "other"
    return "cuda"
