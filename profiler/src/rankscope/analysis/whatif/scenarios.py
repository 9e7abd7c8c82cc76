"""Step times with some operations as they were and the others ideal.

The time of an operation itself is its duration if it waits for no rank, else its transfer: its end minus the last start of the
operations that begin together. The ideal time is the mean over all operations of the type if it computes, and the median if it
communicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.whatif.graph import Graph, Times, step_times
from rankscope.analysis.whatif.operation_types import TYPES
from rankscope.analysis.whatif.operations import Operations

Mask = NDArray[np.bool_]
"""Mask [nodes, replicas] of the operations that are as they were."""

_CELLS_AT_ONCE: Final = 2**15
"""Maximum durations of one node (replicas, steps and scenarios) played at once, so that they stay in the cache."""

_MASKED_AT_ONCE: Final = 2**26
"""Maximum entries of the masks played at once, so that many scenarios of a large job need little memory."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Time of every operation itself, measured and ideal. Seconds."""

    real: Times
    """Measured time, [nodes, replicas, steps]."""
    ideal: Times
    """Ideal time, [nodes]."""


def own_durations(operations: Operations, graph: Graph) -> Times:
    """Return the durations [nodes, replicas, steps] without the wait for operations that begin together; at least 0."""
    took = operations.duration.copy()
    for event in graph.events:
        if len(event.nodes) > 1 or event.across_replicas:
            nodes = list(event.nodes)
            began = operations.start[nodes].max(axis=(0, 1) if event.across_replicas else 0)
            # Clocks of ranks differ: a transfer may seem to end before it began.
            took[nodes] = np.maximum(operations.start[nodes] + operations.duration[nodes] - began, 0.0)
    return took


def ideal_durations(operations: Operations, real: Times) -> Times:
    """Return the ideal durations [nodes]: one value per type, over all ranks and steps."""
    ideal = np.empty(len(operations.kind))
    for code in set(operations.kind.tolist()):
        own = operations.kind == code
        values = real[own]
        # Mean of the differences from the minimum: exact for equal durations.
        low = values.min()
        ideal[own] = np.median(values) if TYPES[code].communicates else low + (values - low).mean()
    return ideal


def play(graph: Graph, durations: Durations, masks: Iterable[Mask]) -> Times:
    """Return step times [scenarios, steps]: operations in the scenario's mask as they were, all others ideal."""
    real, ideal = durations.real[..., None], durations.ideal.tolist()
    nodes, replicas, steps = durations.real.shape
    at_once = max(1, min(_CELLS_AT_ONCE // (replicas * steps), _MASKED_AT_ONCE // (nodes * replicas)))
    coming = iter(masks)
    found = [np.empty((0, steps))]
    while some := list(islice(coming, at_once)):
        chosen = np.stack(some, axis=-1)[:, :, None, :]
        found.append(step_times(graph, partial(_either, chosen, real, ideal)).T)
    return np.concatenate(found)


def _either(chosen: NDArray[np.bool_], real: Times, ideal: Sequence[float], node: int) -> Times:
    """Return the durations of a node, [replicas, steps, scenarios]."""
    return np.where(chosen[node], real[node], ideal[node])


def with_and_without(masks: Iterable[Mask]) -> Iterator[Mask]:
    """Yield two scenarios per part: only the part as it was, and only the part ideal. A generator, to save memory."""
    for mask in masks:
        yield mask
        yield ~mask
