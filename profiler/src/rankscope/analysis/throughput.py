"""Samples, tokens and floating-point operations per second, and model FLOP/s utilisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.batches import batch_of
from rankscope.analysis.peak_flops import half_precision, peaks_of
from rankscope.analysis.step_order import of_blocks
from rankscope.analysis.steps import StepTable
from rankscope.analysis.throughput_result import Throughput
from rankscope.runs.records import RankInfo


def throughput_of(
    table: StepTable, keep: NDArray[np.bool_], infos: Mapping[int, RankInfo], world_size: int | None
) -> Throughput | None:
    """Return the rates over the steps where ``keep`` [steps] is true; ``None`` without such steps."""
    records, wall_us = _sums(table, None, keep)
    if not records.any():
        return None
    step_us = float(wall_us.sum() / records.sum())
    if step_us <= 0:
        return None
    whole = len(table.ranks) == (world_size or len(table.ranks))
    batches = _batches(table, infos)
    rates = {name: _rate(*_sums(table, name, keep), batches) if whole else None for name in ("samples", "tokens")}
    flops, flops_us = _sums(table, "flops", keep)
    rate = float(flops.sum() / flops_us.sum()) * 1e6 if flops_us.sum() > 0 else None
    names = {info.gpu_name for info in infos.values()}
    name = names.pop() if len(names) == 1 else None
    peaks = peaks_of(name)
    quoted = half_precision(peaks)
    ranks = world_size or len(table.ranks)
    return Throughput(
        steps=int(keep.sum()),
        step_us=step_us,
        replicas=len(batches) if whole else None,
        samples_per_second=rates["samples"],
        tokens_per_second=rates["tokens"],
        samples_per_second_per_rank=None if rates["samples"] is None else rates["samples"] / ranks,
        tokens_per_second_per_rank=None if rates["tokens"] is None else rates["tokens"] / ranks,
        flops_per_second_per_rank=rate,
        gpu_name=name,
        peak_dtype=None if quoted is None else quoted[0],
        peak_flops=None if quoted is None else quoted[1],
        mfu=None if rate is None or quoted is None else rate / quoted[1],
        mfu_by_dtype={} if rate is None else {dtype: rate / peak for dtype, peak in peaks.items()},
    )


def _batches(table: StepTable, infos: Mapping[int, RankInfo]) -> list[list[int]]:
    """Return the rows of the table, grouped by the batch that their ranks work on."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, rank in enumerate(map(int, table.ranks)):
        groups.setdefault(batch_of(rank, infos.get(rank)), []).append(row)
    return list(groups.values())


def _sums(table: StepTable, name: str | None, keep: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return counts and microseconds of each rank, over the steps that have both; ``name`` ``None`` counts the steps."""
    if name is not None and not table.is_known(name):
        return np.zeros(len(table.ranks)), np.zeros(len(table.ranks))

    def of(steps: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        wall = table.some("wall_us", steps)
        counts = np.ones_like(wall) if name is None else table.some(name, steps)
        both = np.isfinite(counts) & np.isfinite(wall) & keep[steps]
        return counts.sum(axis=1, dtype=np.float64, where=both), wall.sum(axis=1, dtype=np.float64, where=both)

    found = of_blocks(table.profiled.shape, of)
    zero = np.zeros(len(table.ranks))
    return sum((counts for counts, _ in found), start=zero), sum((us for _, us in found), start=zero)


def _rate(counts: NDArray[np.float64], us: NDArray[np.float64], batches: list[list[int]]) -> float | None:
    """Return the job's rate per second; ``None`` if a batch has no known rank.

    Of the ranks that share a batch, the one with the highest rate counts, because some stages do not see the samples.
    """
    total = 0.0
    for rows in batches:
        known = [row for row in rows if us[row] > 0]
        if not known:
            return None
        total += float((counts[known] / us[known]).max()) * 1e6
    return total
