"""More work of a rank on a device, by the blocks that its kernels are launched with."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rankscope.analysis.evidence.kernels.device_times import DeviceTimes, more_work
from rankscope.analysis.trace.work import KernelTime

USUAL = {"gemm": (128, 600.0), "attention": (128, 300.0), "elementwise": (4096, 100.0)}
"""Blocks of a kernel, and the time of all its calls."""


def more(kernels: Mapping[str, tuple[int, float]]) -> float | None:
    times = {
        rank: DeviceTimes([], [KernelTime(name, f"[{blocks}, 1, 1]", 10, us) for name, (blocks, us) in of_rank.items()])
        for rank, of_rank in enumerate((kernels, USUAL, USUAL))
    }
    return more_work(times, 0, [1, 2])


def test_more_blocks_that_take_more_time_are_more_work() -> None:
    result = more({name: (round(blocks * 1.5), us * 1.5) for name, (blocks, us) in USUAL.items()})
    assert result == pytest.approx(0.5)


def test_a_slow_device_has_no_more_work() -> None:
    assert more({name: (blocks, us * 1.5) for name, (blocks, us) in USUAL.items()}) == 0.0


def test_kernels_with_one_grid_for_any_work_have_as_much_more_as_the_others() -> None:
    longer = {name: (blocks, us * 1.5) for name, (blocks, us) in USUAL.items()}
    assert more(longer | {"elementwise": (6144, 150.0)}) == pytest.approx(0.5)


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_another_tiling_is_no_more_work(factor: float) -> None:
    """Four times the blocks that take no longer than the device is slow."""
    slow = {name: (blocks, us * factor) for name, (blocks, us) in USUAL.items()}
    result = more(slow | {"attention": (512, 300.0 * factor)})
    assert result is not None
    assert result < 0.1


def test_without_a_kernel_in_common_nothing_is_known() -> None:
    assert more({"other": (1, 100.0)}) is None
