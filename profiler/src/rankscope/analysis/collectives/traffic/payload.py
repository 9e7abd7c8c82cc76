"""Kinds of data that collectives carry: gradients, shards, activations of tensor parallelism, tokens, data between stages.

Where the parallel layout is known, they follow from the dimensions along which the ranks of a process group differ. Without it,
they follow from the pattern of a step. Compute waits for activations, many times alike, and continues between them. Gradients
and shards are sent beside compute, or back to back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np

from rankscope.analysis.collectives.arrivals import CollectiveColumns, Flags, Numbers, numbered
from rankscope.analysis.collectives.growing_columns import NONE
from rankscope.analysis.collectives.spans import covered, latest, unions
from rankscope.analysis.operations import operation
from rankscope.runs.records import SHARED_DIMENSIONS, STAGE_DIMENSIONS

Payload = Literal["gradients", "shards", "activations", "tokens", "stages"]
PAYLOADS: Final[tuple[Payload, ...]] = get_args(Payload)
UNKNOWN: Final = len(PAYLOADS)
"""Number of the payload of an operation that is not known, or none of these."""

_SHARDING: Final = ("all_gather", "reduce_scatter")
"""Families of the operations on sharded parameters."""
_STAGES: Final = frozenset(STAGE_DIMENSIONS)
_TENSOR: Final = frozenset(("tp", "tensor", "model", "mp"))

_ALIKE: Final = 4
"""Least number of all-reduces of one size in a step that are waited for: two layers have as many, forward and backward."""
_BARE: Final = 0.9
"""Least exposed share of an operation that is waited for."""
_LEAST_PAUSE: Final = 0.05
"""Least pause before such an operation, as a share of its duration; queued operations follow each other at once."""
_GATHERS: Final = 8
"""Least number of all-gathers in a step whose order tells activations from shards."""

Coordinates = Mapping[int, Mapping[str, int]]
"""Place of each rank in the parallel layout, by dimension; empty where unknown."""


def exposed_ns(records: CollectiveColumns) -> Numbers:
    """Return the time of each operation that no compute covers."""
    number = np.arange(len(records.rank))
    busy = np.repeat(number, np.diff(records.spans)), records.span_start, records.span_end
    bare = records.end - records.start - covered((number, records.start, records.end), unions(busy))
    return np.where(records.end > records.start, bare, 0)


def payloads_of(records: CollectiveColumns, coordinates: Coordinates, unstaged: Collection[int] = ()) -> Numbers:
    """Return the payload of each operation, as its number in ``PAYLOADS``; else ``UNKNOWN``.

    ``unstaged``: ranks whose sends and receives show that they are no stage of a pipeline.
    """
    dimensions = [_dimensions(ranks, coordinates) for ranks in records.members] if coordinates else [None] * len(records.members)
    dimensions.append(None)
    team = np.where(records.team == NONE, len(dimensions) - 1, records.team)
    is_shared = bool(_varying(coordinates.values()) & SHARED_DIMENSIONS - _STAGES)
    is_staged = ~np.isin(records.rank, list(unstaged))
    first, number = numbered(records.op, records.p2p.astype(np.int64), team, is_staged.astype(np.int64))
    kinds = [
        _payload(records.ops[records.op[at]], dimensions[team[at]], (bool(records.p2p[at]), is_shared, bool(is_staged[at])))
        for at in first.tolist()
    ]
    payloads = np.array([UNKNOWN if kind is None else PAYLOADS.index(kind) for kind in kinds], dtype=np.int64)[number]
    if not is_shared:
        is_open = np.array([names is None for names in dimensions])[team] & ~records.p2p
        payloads[_activations(records, np.flatnonzero(is_open))] = PAYLOADS.index("activations")
    return payloads


def _payload(op: str, names: frozenset[str] | None, flags: tuple[bool, bool, bool]) -> Payload | None:
    """Return what an operation carries.

    ``names``: dimensions of its group. ``flags``: whether it is a send or receive, whether ranks of the job share batches, and
    whether its rank is a stage of a pipeline.
    """
    is_p2p, is_shared, is_staged = flags
    if is_p2p:
        return "stages" if (is_staged and not is_shared if names is None else names & _STAGES) else None
    own_batches = not is_shared if names is None else not names <= SHARED_DIMENSIONS and not names & _STAGES
    family = operation(op).family
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
    values: dict[str, set[int]] = {}
    for place in places:
        for name, at in place.items():
            values.setdefault(name, set()).add(at)
    return frozenset(name for name, shapes in values.items() if len(shapes) > 1)


def _activations(records: CollectiveColumns, row: Numbers) -> Numbers:
    """Return the rows that the pattern of any step of their rank shows to carry activations; ``row``: collectives to look at.

    A group's all-gathers and reduce-scatters carry the same, whatever their size; its all-reduces of several sizes may not.
    """
    row = row[np.lexsort((records.start[row], records.step[row], records.rank[row]))]
    if not len(row):
        return row
    families = [operation(name).family for name in records.ops]
    reduces, gathers, scatters = (
        np.array([family == name for family in families])[records.op[row]] for name in ("all_reduce", *_SHARDING)
    )
    rank, step, group = records.rank[row], records.step[row], records.group[row]
    reduced = _reduced_activations(records, row, reduces)
    first, of_group = numbered(rank, group, step)
    place = np.arange(len(row))
    begins = np.full(len(first), len(row))
    np.minimum.at(begins, of_group[scatters], place[scatters])
    gathered, before = (
        np.bincount(of_group[chosen], minlength=len(first)) for chosen in (gathers, gathers & (place < begins[of_group]))
    )
    # In sequence parallelism they take turns from the start of a step. Shards are gathered by all layers before the first
    # gradients are scattered.
    takes_turns = (begins < len(row)) & (gathered >= _GATHERS) & (before <= 2)
    pair = numbered(rank, group)[1]
    carries = reduced | ((gathers | scatters) & np.isin(pair, pair[first[takes_turns]]))
    return np.asarray(row[carries])


def _reduced_activations(records: CollectiveColumns, row: Numbers, reduces: Flags) -> Flags:
    """Return which of the rows, ordered by rank, step and start, are of all-reduces that are waited for many times alike."""
    rank, step, start, length = records.rank[row], records.step[row], records.start[row], records.end[row] - records.start[row]
    of_step = numbered(rank, step)[1]
    ended = latest(of_step, records.end[row])
    is_first = np.diff(of_step, prepend=-1) != 0
    pause = start - np.append(start[:1], ended[:-1])
    waited = reduces & (is_first | (pause >= _LEAST_PAUSE * length)) & (exposed_ns(records)[row] >= _BARE * length)
    kind = numbered(rank, records.group[row], records.op[row], records.bytes[row])[1]
    first, number = numbered(kind, step)
    times, waits = (np.bincount(number[chosen], minlength=len(first)) for chosen in (reduces, waited))
    return reduces & np.isin(kind, kind[first[(waits >= _ALIKE) & (waits >= times / 2)]])
