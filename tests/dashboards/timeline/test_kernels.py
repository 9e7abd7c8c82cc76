"""Table of the costliest kernels of a rank in a window."""

from __future__ import annotations

import msgspec
import pytest

from rankscope.analysis.result.analysis import Analysis
from rankscope.dashboards.timeline.kernels import compared_ranks, kernel_rows
from rankscope.runs.records import KernelRecord


def kernel(step: int, name: str, us: float, calls: int = 2) -> KernelRecord:
    return KernelRecord(step=step, name=name, kind="compute", total_us=us, calls=calls, kernel_class="gemm")


def test_rows_are_means_per_step_with_their_share_beside_a_healthy_rank() -> None:
    """Given two steps of a rank and one of a healthy rank, when rows are made, then times are per step and comparable."""
    mine = [kernel(20, "gemm", 3_000), kernel(21, "gemm", 5_000), kernel(20, "copy", 2_000, calls=1)]
    rows = kernel_rows(mine, [kernel(20, "gemm", 2_000), kernel(20, "other", 9_000)])

    assert [row["name"] for row in rows] == ["gemm", "copy"], "the costliest first"
    gemm, copy = rows
    assert (gemm["ms"], gemm["calls"], gemm["share_percent"]) == (4.0, 2.0, 80.0)
    assert (gemm["healthy_ms"], gemm["ratio"]) == (2.0, 2.0)
    assert (copy["ms"], copy["calls"]) == (2.0, 1.0), "per step that has it: in others it may be below the costliest"
    assert (copy["healthy_ms"], copy["ratio"]) == (None, None), "not known, and not 0"
    assert kernel_rows([], []) == []


def test_a_kernel_that_one_side_has_in_fewer_steps_is_as_slow_there() -> None:
    """Given a kernel among the costliest in five steps of one rank and in one of the other, then the ratio is that of a step."""
    often = [kernel(step, name, 1_000) for step in range(5) for name in ("gemm", "copy")]
    seldom = [kernel(step, "gemm", 1_000) for step in range(5)] + [kernel(3, "copy", 1_000)]

    for item, healthy in ((often, seldom), (seldom, often)):
        _, copy = kernel_rows(item, healthy)
        assert (copy["ms"], copy["calls"], copy["healthy_ms"], copy["ratio"]) == (1.0, 2.0, 1.0, 1.0)


def test_records_of_one_kernel_in_one_step_are_summed() -> None:
    (row,) = kernel_rows([kernel(3, "gemm", 1_000), kernel(3, "gemm", 2_000)], [])
    assert (row["ms"], row["calls"]) == (3.0, 4.0)


@pytest.mark.parametrize(("picked", "shown"), [(None, 2), (1, 1)])
def test_the_picked_rank_else_the_blamed_one_is_compared_with_one_that_is_not_blamed(
    analysis: Analysis, picked: int | None, shown: int
) -> None:
    rank, healthy = compared_ranks(analysis, picked)

    assert rank == shown
    assert healthy not in (None, 2, shown)
    assert compared_ranks(msgspec.structs.replace(analysis, ranks=[]), None)[1] is None
