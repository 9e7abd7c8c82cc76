"""Dependency graph of a step: which operation waits for which, and the step time for given durations, as they were or ideal.

Replicas and steps run the same program in all scenarios, so one graph serves all. The durations of a node are an array whose
first axis is the data-parallel replicas, and each event is played for the whole array at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


class CycleError(ValueError):
    """Operations wait for each other in a cycle; ``nodes`` are the nodes of the cycle, in order."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__("operations wait for each other in a circle")
        self.nodes = nodes


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """Operations that begin together when all that they wait for have ended: a single one, or all members of a collective."""

    nodes: tuple[int, ...]
    after: tuple[int, ...]
    """Nodes that must have ended."""
    across_replicas: bool
    """True if the members in all replicas of the step begin together."""
    done_with: tuple[int, ...]
    """Nodes whose end no later event needs."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Events in topological order."""

    events: tuple[GraphEvent, ...]
    last: tuple[int, ...]
    """Nodes without successors: the step ends when all of them have ended."""


def build_graph(
    count: int, edges: Sequence[tuple[int, int]], groups: Sequence[Sequence[int]], across_replicas: Sequence[bool]
) -> Graph:
    """Build the graph of the nodes 0 to ``count`` - 1; an edge (a, b) lets b begin when a has ended.

    The nodes of each of ``groups`` begin together, in all replicas where ``across_replicas`` is true. Nodes in no group begin
    alone. Raises ``CycleError``.
    """
    event_of = np.full(count, -1, dtype=np.int64)
    for number, members in enumerate(groups):
        event_of[list(members)] = number
    alone = np.flatnonzero(event_of < 0)
    event_of[alone] = np.arange(len(groups), len(groups) + len(alone))
    members_of: list[tuple[int, ...]] = [*map(tuple, groups), *((int(node),) for node in alone)]
    owner = event_of.tolist()
    before: list[dict[int, None]] = [{} for _ in members_of]
    waiting: list[set[int]] = [set() for _ in members_of]
    following: list[list[int]] = [[] for _ in members_of]
    followed = [False] * count
    for first, then in edges:
        before[owner[then]][first] = None
        followed[first] = True
        if owner[first] not in waiting[owner[then]]:
            waiting[owner[then]].add(owner[first])
            following[owner[first]].append(owner[then])
    open_for = [len(events) for events in waiting]
    order = [number for number, open_count in enumerate(open_for) if not open_count]
    for number in order:
        for later in following[number]:
            open_for[later] -= 1
            if not open_for[later]:
                order.append(later)
    if len(order) < len(members_of):
        raise CycleError(_circle(waiting, set(order), members_of))
    events: list[GraphEvent] = []
    is_optional = [False] * count
    for number in reversed(order):
        members, after = members_of[number], tuple(before[number])
        done_with = tuple(node for node in (*after, *members) if not is_optional[node])
        for node in done_with:
            is_optional[node] = True
        events.append(GraphEvent(members, after, number < len(groups) and across_replicas[number], done_with))
    return Graph(events=tuple(reversed(events)), last=tuple(node for node in range(count) if not followed[node]))


def _circle(waiting: list[set[int]], finished: set[int], members_of: list[tuple[int, ...]]) -> list[int]:
    """Return a cycle among the unfinished events: walk back from any of them until one repeats."""
    at = next(number for number in range(len(waiting)) if number not in finished)
    path: dict[int, None] = {}
    while at not in path:
        path[at] = None
        at = next(number for number in sorted(waiting[at]) if number not in finished)
    walked = list(path)
    return [members_of[number][0] for number in reversed(walked[walked.index(at) :])]


def step_times(graph: Graph, took: Callable[[int], Times]) -> Times:
    """Return the end [...] of each step that begins at 0, for the durations [replicas, ...] that ``took`` returns per node.

    ``took`` is called once per node. Ends are kept only while a later event needs them, so that they stay in the cache.
    """
    ends: dict[int, Times] = {}
    finish: Times = np.zeros(())
    last = frozenset(graph.last)
    for event in graph.events:
        begin: Times = reduce(np.maximum, [ends[node] for node in event.after]) if event.after else np.zeros(())
        if event.across_replicas and event.after:
            begin = begin.max(axis=0, keepdims=True)
        for node in event.nodes:
            ends[node] = begin + took(node)
        for node in event.done_with:
            end = ends.pop(node)
            if node in last:
                finish = np.maximum(finish, end)
    latest: Times = finish.max(axis=0)
    return latest


Mask = NDArray[np.bool_]
"""Mask [nodes, replicas] of the operations that are as they were."""

_CELLS_AT_ONCE: Final = 2**15
"""Maximum durations of one node (replicas, steps and scenarios) played at once, so that they stay in the cache."""

_MASKED_AT_ONCE: Final = 2**26
"""Maximum entries of the masks played at once, so that many scenarios of a large job need little memory."""


@dataclass(frozen=True, slots=True)
class NodeDurations:
    """Time of every operation itself, measured and ideal. Seconds."""

    real: Times
    """Measured time, [nodes, replicas, steps]."""
    ideal: Times
    """Ideal time, [nodes]."""


def play(graph: Graph, durations: NodeDurations, masks: Iterable[Mask]) -> Times:
    """Return step times [scenarios, steps]: operations in the scenario's mask as they were, all others ideal."""
    real, ideal = durations.real[..., None], durations.ideal.tolist()
    nodes, replicas, steps = durations.real.shape
    at_once = max(1, min(_CELLS_AT_ONCE // (replicas * steps), _MASKED_AT_ONCE // (nodes * replicas)))
    coming = iter(masks)
    blocks = [np.empty((0, steps))]
    while mask_batch := list(islice(coming, at_once)):
        chosen = np.stack(mask_batch, axis=-1)[:, :, None, :]
        blocks.append(step_times(graph, partial(_either, chosen, real, ideal)).T)
    return np.concatenate(blocks)


def _either(chosen: NDArray[np.bool_], real: Times, ideal: Sequence[float], node: int) -> Times:
    """Return the durations of a node, [replicas, steps, scenarios]."""
    return np.where(chosen[node], real[node], ideal[node])


def with_and_without(masks: Iterable[Mask]) -> Iterator[Mask]:
    """Yield two scenarios per part: only the part as it was, and only the part ideal. A generator, to save memory."""
    for mask in masks:
        yield mask
        yield ~mask
