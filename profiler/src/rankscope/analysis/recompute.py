"""Activation checkpointing: forward operators that run inside backward.

Autograd numbers the operators that it sees while gradients are on. Backward itself runs with gradients off, so a numbered
operator without a forward thread inside a backward operator is a forward operator run again, whoever wrote the checkpointing. A
backward that is itself differentiated (``create_graph=True``) looks the same; what a compiler recomputes inside a compiled
backward does not show.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.traces import BACKWARD, RECORDED, Trace
from rankscope.analysis.work import outermost, within


def recomputing_rows(trace: Trace) -> NDArray[np.intp] | None:
    """Rows of the outermost operators that are run again; ``None`` where no operator has autograd's numbers."""
    if not trace.autograd.any():
        return None
    recorded = np.flatnonzero(trace.autograd == RECORDED)
    again = np.zeros(len(trace.start), dtype=bool)
    again[recorded[within(trace, recorded, np.flatnonzero(trace.autograd == BACKWARD))]] = True
    return outermost(trace, again)
