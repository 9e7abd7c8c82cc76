"""Kernels of unknown names in which ranks wait for each other, beside communication that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rankscope.analysis.evidence.kernels.unknown_kernels import RankKernels, kernels_with_waits
from rankscope.analysis.trace.work import KernelTime
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.unnamed_communication import with_unnamed_waits

WINDOW_US = 1000.0

SETTING = Setting(source="traces", world_size=3, steps=None, step_count=1, unit="window", accelerated=True)


def job(
    times: Mapping[str, Sequence[float]], calls: Sequence[int] = (10, 10, 10), *, idle: Sequence[float] = (0.0, 0.0, 0.0)
) -> dict[int, RankKernels]:
    """Return three ranks, given the total time of each kernel by rank. They wait for the last in known communication."""
    busy = [idle[rank] + sum(total[rank] for total in times.values()) for rank in range(3)]
    return {
        rank: RankKernels(
            WINDOW_US,
            max(busy) - busy[rank],
            [KernelTime(name, "", calls[rank], total[rank]) for name, total in times.items() if total[rank]],
            frozenset(),
        )
        for rank in range(3)
    }


COMPUTE = {"sgemm_128x64": (500.0, 505.0, 800.0)}


@pytest.mark.parametrize("name", ["my_fused_op_kernel", "triton_ag_rs_persistent"])
def test_ranks_that_compute_less_wait_longer_in_the_kernel(name: str) -> None:
    ranks = job(COMPUTE | {name: (310.0, 300.0, 5.0)})
    (row,) = kernels_with_waits(ranks)
    assert (row.name, row.least_us, row.most_us) == (name, 5, 310)
    verdict = with_unnamed_waits(ranks, "traces", SETTING)
    assert verdict is not None
    assert (verdict.kind, verdict.unknown_kernels) == ("insufficient_data", [row])
    assert name in verdict.summary


def test_ranks_that_have_nothing_to_do_are_waited_for_in_the_kernel() -> None:
    # given a rank whose host is late, so that its device is idle while the others wait
    (row,) = kernels_with_waits(
        job({"sgemm_128x64": (500.0, 500.0, 500.0), "my_op": (310.0, 300.0, 5.0)}, idle=(0.0, 0.0, 300.0))
    )
    assert row.name == "my_op"


def test_the_wait_may_be_in_two_kernels() -> None:
    result = kernels_with_waits(job(COMPUTE | {"gather_fused": (160.0, 150.0, 5.0), "scatter_fused": (150.0, 150.0, 5.0)}))
    assert [row.name for row in result] == ["gather_fused", "scatter_fused"]


@pytest.mark.parametrize(
    ("times", "calls"),
    [
        # All of it is computing: one rank is slower in all kernels, or another one in the kernel alone.
        ({"elementwise": (100.0, 100.0, 160.0)}, (10, 10, 10)),
        ({"elementwise": (100.0, 100.0, 300.0)}, (10, 10, 10)),
        # Little of it.
        ({"elementwise": (90.0, 90.0, 5.0)}, (10, 10, 10)),
        # Stages of a pipeline run kernels of their own.
        ({"loss": (300.0, 0.0, 0.0), "embedding": (0.0, 300.0, 0.0)}, (10, 10, 10)),
        ({"elementwise": (310.0, 300.0, 5.0)}, (100, 100, 10)),
        ({}, (10, 10, 10)),
    ],
)
def test_other_differences_are_no_waits(times: Mapping[str, Sequence[float]], calls: Sequence[int]) -> None:
    ranks = job(COMPUTE | dict(times), calls)
    assert kernels_with_waits(ranks) == []
    assert with_unnamed_waits(ranks, "traces", SETTING) is None


def test_kernels_that_surely_compute_are_none_in_which_ranks_wait() -> None:
    assert kernels_with_waits(job(COMPUTE | {"cutlass_gemm": (310.0, 300.0, 5.0)})) == []
