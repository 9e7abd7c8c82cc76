"""Loading of batches in a background thread or in worker processes, for which the training thread of a slow rank waits.

That a thread waits for an item of a queue says nothing of batches: a log or a lock may be behind it, too. It waits for batches if
what runs meanwhile on the rank loads data: code of a library for that, or a function that waits for room in its queue on healthy
ranks, which is what loading ahead looks like where it is fast enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.runs.records import BatchSource, LoaderSamples, StackLine, StackSamples

_MOSTLY: Final = 0.5
"""Least share of a loader's samples in which it loads, or is busy, while the training thread waits for it."""
_AHEAD: Final = 0.2
"""Least share of the samples on healthy ranks in which a function that loads ahead waits for room in its queue."""

_Target = tuple[str, str]


class LoadingLine(NamedTuple):
    """Line at which batches are loaded; ``None``: the loader is known, and its line is not."""

    line: StackLine | None
    in_process: bool


def loading_line(
    source: BatchSource | None, own_samples: Sequence[StackSamples], others: Iterable[Sequence[StackSamples]]
) -> LoadingLine | None:
    """Return where batches are loaded for which a slow rank waits; ``None``: it waits for no other thread or process, or for
    something else.

    ``source``: what the training thread waits for, see ``StackLine.batches_from``. ``own_samples``: of the rank, ``others``: of
    each healthy rank.
    """
    if source not in ("workers", "queue"):
        return None
    healthy = _together(row for rows in others for row in rows)
    loaders = {
        target: loader
        for target, loader in _together(own_samples).items()
        if source == "workers" or _loads(loader, healthy.get(target))
    }
    busy = {target: loader for target, loader in loaders.items() if loader.lines}
    if not busy:
        return LoadingLine(None, in_process=False) if loaders or source == "workers" else None
    # A thread that waits for its worker processes has few lines of its own.
    (kind, _), most = max(busy.items(), key=lambda item: item[1].lines[0].samples / item[1].samples)
    return LoadingLine(most.lines[0], in_process=kind == "process")


def _loads(loader: LoaderSamples, healthy: LoaderSamples | None) -> bool:
    """Return whether a thread or process loads data while the training thread waits for an item."""
    if loader.loads >= _MOSTLY * loader.samples:
        return True
    is_busy = loader.samples - loader.gets - loader.puts >= _MOSTLY * loader.samples
    return is_busy and healthy is not None and healthy.puts >= _AHEAD * healthy.samples


def _together(rows: Iterable[StackSamples]) -> dict[_Target, LoaderSamples]:
    """Return the samples of all rows by kind and target, without damaged ones."""
    by_target: dict[_Target, LoaderSamples] = {}
    for row in rows:
        for loader in row.loaders:
            if min(loader.samples, loader.samples - max(loader.loads, loader.gets, loader.puts)) >= 0 and loader.samples:
                target = loader.kind, loader.target
                before = by_target.get(target)
                by_target[target] = loader if before is None else _sum(before, loader)
    return by_target


def _sum(first: LoaderSamples, second: LoaderSamples) -> LoaderSamples:
    counts, lines = Counter[tuple[str, int, str]](), {}
    for line in (*first.lines, *second.lines):
        place = line.file, line.line, line.function
        counts[place] += line.samples
        lines[place] = line
    return LoaderSamples(
        kind=first.kind,
        target=first.target,
        samples=first.samples + second.samples,
        loads=first.loads + second.loads,
        gets=first.gets + second.gets,
        puts=first.puts + second.puts,
        lines=[msgspec.structs.replace(lines[place], samples=count) for place, count in counts.most_common()],
    )
