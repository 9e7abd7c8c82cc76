"""Step times with some operations as they were and the others ideal.

Durations are split into what an operation takes by itself: its duration where it waits for nobody, its transfer (end minus the
last start of those that begin together) where it does. Ideal is the mean over all operations of its type where it computes and
the median where it communicates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.whatif.graph import Graph, Times, step_times
from rankscope.analysis.whatif.operation_types import TYPES
from rankscope.analysis.whatif.operations import Operations

Mask = NDArray[np.bool_]
"""[nodes, replicas]: the operations that are as they were."""

_CELLS_AT_ONCE: Final = 2**20
"""Durations that are played at once: they stay in the cache, and many scenarios need little memory."""


@dataclass(frozen=True, slots=True)
class Durations:
    """What every operation took by itself, and would ideally take. Seconds."""

    real: Times
    """[nodes, steps, replicas]"""
    ideal: Times
    """[nodes]"""


def own_durations(operations: Operations, graph: Graph) -> Times:
    """[nodes, steps, replicas]: durations without waiting for those that begin together; never below 0."""
    took = operations.duration.copy()
    for event in graph.events:
        if len(event.nodes) > 1 or event.across_replicas:
            nodes = list(event.nodes)
            began = operations.start[nodes].max(axis=0)
            if event.across_replicas:
                began = began.max(axis=-1, keepdims=True)
            # Clocks of ranks differ, so that a transfer may seem to end before it began.
            took[nodes] = np.maximum(operations.start[nodes] + operations.duration[nodes] - began, 0.0)
    return took


def ideal_durations(operations: Operations, real: Times) -> Times:
    """[nodes]: one duration per type, over all ranks and steps."""
    ideal = np.empty(len(operations.kind))
    for code in np.unique(operations.kind):
        own = operations.kind == code
        values = real[own]
        # Counted from the least: equal durations have exactly themselves as their mean.
        low = values.min()
        ideal[own] = np.median(values) if TYPES[code].communicates else low + (values - low).mean()
    return ideal


def play(graph: Graph, durations: Durations, masks: Iterable[Mask]) -> Times:
    """Step times [scenarios, steps]: operations in the mask of the scenario as they were, all others ideal."""
    real, ideal = durations.real, durations.ideal[:, None, None, None]
    at_once = max(1, _CELLS_AT_ONCE // real.size)
    coming = iter(masks)
    found = [np.empty((0, real.shape[1]))]
    while some := list(islice(coming, at_once)):
        chosen = np.stack(some, axis=1)[:, :, None, :]
        found.append(step_times(graph, np.where(chosen, real[:, None], ideal)))
    return np.concatenate(found)
