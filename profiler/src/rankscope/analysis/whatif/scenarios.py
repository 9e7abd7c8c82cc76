"""Step times with some operations as they were and the others ideal.

Durations are split into what an operation takes by itself: its duration where it waits for nobody, its transfer (end minus the
last start of those that begin together) where it does. Ideal is the mean over all operations of its type where it computes and
the median where it communicates.
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
"""[nodes, replicas]: the operations that are as they were."""

_CELLS_AT_ONCE: Final = 2**15
"""Durations of one node that are played at once, over replicas, steps and scenarios: they stay in the cache."""

_MASKED_AT_ONCE: Final = 2**26
"""Entries of the masks that are played at once: many scenarios of a large job need little memory."""


@dataclass(frozen=True, slots=True)
class Durations:
    """What every operation took by itself, and would ideally take. Seconds."""

    real: Times
    """[nodes, replicas, steps]"""
    ideal: Times
    """[nodes]"""


def own_durations(operations: Operations, graph: Graph) -> Times:
    """[nodes, replicas, steps]: durations without waiting for those that begin together; never below 0."""
    took = operations.duration.copy()
    for event in graph.events:
        if len(event.nodes) > 1 or event.across_replicas:
            nodes = list(event.nodes)
            began = operations.start[nodes].max(axis=(0, 1) if event.across_replicas else 0)
            # Clocks of ranks differ, so that a transfer may seem to end before it began.
            took[nodes] = np.maximum(operations.start[nodes] + operations.duration[nodes] - began, 0.0)
    return took


def ideal_durations(operations: Operations, real: Times) -> Times:
    """[nodes]: one duration per type, over all ranks and steps."""
    ideal = np.empty(len(operations.kind))
    for code in set(operations.kind.tolist()):
        own = operations.kind == code
        values = real[own]
        # Counted from the least: equal durations have exactly themselves as their mean.
        low = values.min()
        ideal[own] = np.median(values) if TYPES[code].communicates else low + (values - low).mean()
    return ideal


def play(graph: Graph, durations: Durations, masks: Iterable[Mask]) -> Times:
    """Step times [scenarios, steps]: operations in the mask of the scenario as they were, all others ideal."""
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
    """Durations of a node [replicas, steps, scenarios]."""
    return np.where(chosen[node], real[node], ideal[node])


def with_and_without(masks: Iterable[Mask]) -> Iterator[Mask]:
    """Of each part, the scenario with only it as it was, and that with only it ideal; one by one, as many would fill memory."""
    for mask in masks:
        yield mask
        yield ~mask
