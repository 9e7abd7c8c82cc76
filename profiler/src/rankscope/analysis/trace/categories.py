"""Categories of a trace's events as codes, and the arguments that events of each category have."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.classify import (
    ANNOTATION,
    CPU_OP,
    GPU_ANNOTATION,
    GPU_COPY,
    GPU_KERNEL,
    LAUNCH,
    PYTHON_FUNCTION,
)

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

_CATEGORIES: Final[dict[str, int]] = {
    **dict.fromkeys(GPU_KERNEL, KERNEL),
    **dict.fromkeys(GPU_COPY, COPY),
    **dict.fromkeys(CPU_OP, OPERATOR),
    **dict.fromkeys(ANNOTATION, NOTE),
    **dict.fromkeys(LAUNCH, LAUNCHED),
    **dict.fromkeys(GPU_ANNOTATION, DEVICE_NOTE),
    **dict.fromkeys(PYTHON_FUNCTION, FUNCTION),
}

_UNKNOWN_VENDOR: Final = re.compile(r"^(?!cpu)\w+_(?:(kernel|memcpy|memset)|runtime|driver)$", re.IGNORECASE)
"""Category of another vendor that spells its categories as CUDA's are: ``musa_runtime``, ``gcu_kernel``."""

_SPELLINGS: Final = 1000
"""Number of spellings of categories that are kept."""


class CategoryCodes(dict[str | None, int]):
    """Category codes by their spelling in the file; -1 for irrelevant categories."""

    def __missing__(self, category: str | None) -> int:
        code = UNLABELLED if category is None else _CATEGORIES.get(category.lower(), -1)
        if code < 0 and (found := _UNKNOWN_VENDOR.search(category or "")):
            code = {"kernel": KERNEL, "memcpy": COPY, "memset": COPY}.get(found[1] or "", LAUNCHED)
        if len(self) < _SPELLINGS:
            self[category] = code
        return code
