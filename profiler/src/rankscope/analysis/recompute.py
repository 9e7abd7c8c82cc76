"""Activation checkpointing: forward operators that run inside backward.

Autograd numbers the operators that it records while gradients are on. Backward itself runs with gradients off. So an operator
inside a backward operator that has a number, but no forward thread, is a recomputed forward operator. This holds for every
checkpointing implementation. A backward that is itself differentiated (``create_graph=True``) looks the same. Recomputation
inside a compiled backward is not visible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.traces import BACKWARD, RECORDED, Trace
from rankscope.analysis.work import outermost, within


def recomputing_rows(trace: Trace) -> NDArray[np.intp] | None:
    """Return the rows of the outermost recomputed operators; ``None`` if no operator has an autograd number."""
    if not trace.autograd.any():
        return None
    recorded = np.flatnonzero(trace.autograd == RECORDED)
    again = np.zeros(len(trace.start), dtype=bool)
    again[recorded[within(trace, recorded, np.flatnonzero(trace.autograd == BACKWARD))]] = True
    return outermost(trace, again)
