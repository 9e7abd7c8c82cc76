"""Kinds of data that collectives transfer: gradients, shards, activations of tensor parallelism, tokens, data between stages.

Where the parallel layout is known, they follow from the dimensions along which the ranks of a process group differ. Without it,
they follow from the pattern of a step. Compute waits for activations, many times alike, and continues between them. Gradients
and shards are transferred beside compute, or back to back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

from rankscope.analysis.operations import operation
from rankscope.runs.records import SHARED_DIMENSIONS, STAGE_DIMENSIONS, CollectiveRecord

Transfer = Literal["gradients", "shards", "activations", "tokens", "stages"]

_SHARDING: Final = ("all_gather", "reduce_scatter")
"""Families of the operations on sharded parameters."""
_STAGES: Final = frozenset(STAGE_DIMENSIONS)
_TENSOR: Final = frozenset(("tp", "tensor", "model", "mp"))

_ALIKE: Final = 4
"""Least number of all-reduces of one size in a step that are waited for: two layers have as many, forward and backward."""
_BARE: Final = 0.9
"""Least exposed share of an operation that is waited for."""
_APART: Final = 0.05
"""Least pause before such an operation, as a share of its duration; queued operations follow each other at once."""
_GATHERS: Final = 8
"""Least number of all-gathers in a step whose order tells activations from shards."""

Coordinates = Mapping[int, Mapping[str, int]]
"""Place of each rank in the parallel layout, by dimension; empty where unknown."""


def exposed_us(row: CollectiveRecord) -> float:
    """Return the time of an operation that no compute covers."""
    start, end = (row.start_unix_ns - row.enqueue_unix_ns) / 1000, (row.end_unix_ns - row.enqueue_unix_ns) / 1000
    covered = 0.0
    for first, last in row.compute_spans_us:
        covered += max(0.0, min(end, last) - max(start, first))
    return max(0.0, end - start - covered)


def transfers_of(
    collectives: Sequence[Sequence[CollectiveRecord]], coordinates: Coordinates, staged: Sequence[bool] | None = None
) -> list[list[Transfer | None]]:
    """Return what each operation of each rank transfers; ``None``: unknown, or nothing of these.

    ``staged``: whether each rank is a stage of a pipeline by its sends and receives; ``None``: all ranks that have some are.
    """
    groups: dict[tuple[int, ...], frozenset[str] | None] = {}
    shared = bool(_varying(coordinates.values()) & SHARED_DIMENSIONS - _STAGES)
    staged = [True] * len(collectives) if staged is None else staged
    return [
        _of_rank(rows, coordinates, groups, shared=shared, staged=is_stage)
        for rows, is_stage in zip(collectives, staged, strict=True)
    ]


def _of_rank(
    rows: Sequence[CollectiveRecord],
    coordinates: Coordinates,
    groups: dict[tuple[int, ...], frozenset[str] | None],
    *,
    shared: bool,
    staged: bool,
) -> list[Transfer | None]:
    """Return what each operation of one rank transfers. ``groups``: cached dimensions of groups. The others: as ``_transfer``."""
    known: list[frozenset[str] | None] = []
    for row in rows if coordinates else ():
        ranks = tuple(row.group_ranks or ())
        if ranks not in groups:
            groups[ranks] = _dimensions(ranks, coordinates)
        known.append(groups[ranks])
    known = known or [None] * len(rows)
    unknown = [row for row, names in zip(rows, known, strict=True) if names is None]
    activations = set() if shared else _activations(unknown)
    return [
        "activations"
        if activations and names is None and _key(row) in activations
        else _transfer(row, names, shared=shared, staged=staged)
        for row, names in zip(rows, known, strict=True)
    ]


def _transfer(row: CollectiveRecord, names: frozenset[str] | None, *, shared: bool, staged: bool) -> Transfer | None:
    """Return what an operation transfers.

    ``names``: dimensions of its group. ``shared``: ranks of the job share batches. ``staged``: its rank is a stage of a pipeline.
    """
    if row.p2p:
        return "stages" if (staged and not shared if names is None else names & _STAGES) else None
    own_batches = not shared if names is None else not names <= SHARED_DIMENSIONS and not names & _STAGES
    family = operation(row.op).family
    if family == "all_to_all":
        return "tokens" if own_batches else None
    reduces, shards = family == "all_reduce", family in _SHARDING
    if names is not None and names <= _TENSOR:
        return "activations" if reduces or shards else None
    if not own_batches:
        return None
    return "gradients" if reduces else "shards" if shards else None


def _dimensions(ranks: Sequence[int], coordinates: Coordinates) -> frozenset[str] | None:
    """Return the dimensions along which the ranks of a group differ; ``None`` where that is not known."""
    places = [coordinates[rank] for rank in ranks if coordinates.get(rank)]
    return _varying(places) or None if len(places) > 1 else None


def _varying(places: Iterable[Mapping[str, int]]) -> frozenset[str]:
    values: dict[str, set[int]] = defaultdict(set)
    for place in places:
        for name, at in place.items():
            values[name].add(at)
    return frozenset(name for name, found in values.items() if len(found) > 1)


_Key = tuple[str, str, int | None]


def _key(row: CollectiveRecord) -> _Key:
    # A group's all-gathers and reduce-scatters are of one kind, whatever their size; its all-reduces may be of several.
    if operation(row.op).family in _SHARDING:
        return row.group, "", None
    return row.group, row.op, row.bytes


def _activations(rows: Collection[CollectiveRecord]) -> set[_Key]:
    """Return the groups, operations and sizes that the pattern of a step shows to be activations."""
    steps: dict[int, list[CollectiveRecord]] = defaultdict(list)
    for row in rows:
        if not row.p2p:
            steps[row.step].append(row)
    found: set[_Key] = set()
    for some in steps.values():
        some.sort(key=lambda row: row.start_unix_ns)
        found |= _reduced_activations(some) | _gathered_activations(some)
    return found


def _reduced_activations(rows: Sequence[CollectiveRecord]) -> set[_Key]:
    """Return the all-reduces of a step that are waited for many times alike. ``rows``: in the order of their starts."""
    times: Counter[_Key] = Counter()
    waited: Counter[_Key] = Counter()
    end = None
    for row in rows:
        if operation(row.op).family == "all_reduce":
            length = row.end_unix_ns - row.start_unix_ns
            apart = end is None or row.start_unix_ns - end >= _APART * length
            times[key := _key(row)] += 1
            waited[key] += int(apart and exposed_us(row) >= _BARE * length / 1000)
        end = row.end_unix_ns if end is None else max(end, row.end_unix_ns)
    return {key for key, count in waited.items() if count >= _ALIKE and count >= times[key] / 2}


def _gathered_activations(rows: Sequence[CollectiveRecord]) -> set[_Key]:
    """Return the groups whose all-gathers and reduce-scatters take turns from the start of a step, as in sequence parallelism.

    Shards of parameters are gathered by all layers before the first gradients are scattered.
    """
    before: Counter[str] = Counter()
    gathers: Counter[str] = Counter()
    scattered: set[str] = set()
    for row in rows:
        family = operation(row.op).family
        if family == "reduce_scatter":
            scattered.add(row.group)
        elif family == "all_gather":
            gathers[row.group] += 1
            before[row.group] += row.group not in scattered
    return {(group, "", None) for group in scattered if gathers[group] >= _GATHERS and before[group] <= 2}
