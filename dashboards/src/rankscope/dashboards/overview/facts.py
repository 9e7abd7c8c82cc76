"""Throughput and memory of a run as named numbers."""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import Memory, RankMemory, Throughput
from rankscope.analysis.result.text import size
from rankscope.dashboards.model.page import Fact
from rankscope.dashboards.words import wording


def work_and_memory(analysis: Analysis) -> list[Fact]:
    """Return the run's throughput, its model FLOP/s utilisation, and its memory use."""
    return [*_work(analysis.throughput), *_memory(analysis.memory)]


def _work(work: Throughput | None) -> Iterator[Fact]:
    for name, rate in (
        ("Samples", None if work is None else work.samples_per_second),
        ("Tokens", None if work is None else work.tokens_per_second),
    ):
        missing = "the script does not tell them, or not all ranks are recorded"
        value = wording.UNKNOWN if rate is None else wording.rate(rate)
        yield Fact(name, value, detail=missing if rate is None else "of the job")
    if work is None or work.mfu is None:
        yield Fact("Model FLOP/s utilisation", wording.UNKNOWN, detail=_why_no_mfu(work))
    else:
        against = f"of the {work.peak_dtype} peak of {work.gpu_name}"
        yield Fact("Model FLOP/s utilisation", wording.percent(work.mfu, digits=1), meter=work.mfu, detail=against)


def _why_no_mfu(work: Throughput | None) -> str:
    if work is None or work.flops_per_second_per_rank is None:
        return "the script does not tell floating-point operations"
    return "the peak of these GPUs is not known" if work.gpu_name else "ranks have no GPU, or several models"


def _memory(memory: Memory | None) -> Iterator[Fact]:
    ranks = [] if memory is None else memory.ranks
    fullest = max((rank for rank in ranks if rank.peak_share is not None), key=_share, default=None)
    if fullest is None or fullest.device_bytes is None or fullest.peak_allocated_bytes is None:
        largest = max((rank.peak_allocated_bytes for rank in ranks if rank.peak_allocated_bytes is not None), default=None)
        if largest is None:
            yield Fact("GPU memory left", wording.UNKNOWN, detail="no sample of a GPU's memory")
        else:
            yield Fact(
                "GPU memory left",
                wording.UNKNOWN,
                detail=f"{size(largest)} used at most; the device's size is not known",
            )
    else:
        left = max(0, fullest.device_bytes - fullest.peak_allocated_bytes)
        of = f"of {size(fullest.device_bytes)}, on rank {fullest.rank}, the fullest"
        yield Fact("GPU memory left", size(left), meter=fullest.peak_share, detail=of, why="Size less the peak of tensors")
    resident = max(
        (rank for rank in ranks if rank.resident_bytes is not None), key=lambda rank: rank.resident_bytes or 0, default=None
    )
    if resident is not None and resident.resident_bytes is not None:
        yield Fact("Host memory", size(resident.resident_bytes), detail=f"of the process of rank {resident.rank}, the largest")
    leaks = [] if memory is None else [one for one in memory.growth if one.leaking]
    if leaks:
        full = min((one.steps_until_full for one in leaks if one.steps_until_full is not None), default=None)
        until = "" if full is None else f"; full in {full:,} steps at most"
        rate = size(round(abs(leaks[0].bytes_per_1000_steps)))
        yield Fact("Memory grows", f"{rate} per 1,000 steps", detail=f"{leaks[0].kind} memory of rank {leaks[0].rank}{until}")


def _share(rank: RankMemory) -> float:
    return rank.peak_share or 0.0
