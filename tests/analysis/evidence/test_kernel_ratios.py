"""Kernels of a rank compared with its peers': a slow device, slow kernels, other kernels, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.nccl.layouts import FAULTS, LAYOUTS, LayoutJob
from tests.nccl.traces import write_traces

from rankscope.analysis.evidence.kernels.device_times import DeviceTimes
from rankscope.analysis.evidence.kernels.kernel_ratios import compare_kernels
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.rank_traces import find_traces, read_ranks
from rankscope.analysis.trace.work import KernelTime

USUAL = {"gemm_large": 400.0, "gemm_small": 100.0, "flash_fwd": 300.0, "layer_norm": 160.0, "elementwise": 190.0}
"""Microseconds of a call; each kernel runs ten times."""


def rank(us: Mapping[str, float], *, grid: str = "[128,1,1]", steps: int = 4) -> DeviceTimes:
    kernels = [
        KernelTime(name, grid, 10 * steps, 10 * steps * took, dict.fromkeys(range(steps), took)) for name, took in us.items()
    ]
    return DeviceTimes([], kernels)


def fault(us: Mapping[str, float]) -> tuple[str | None, list[str], float]:
    times = {0: rank(us), 1: rank(USUAL), 2: rank(USUAL), 3: rank(USUAL)}
    result = compare_kernels(times, 0, [1, 2, 3], range(4))
    assert result is not None
    return result.fault, result.names, round(result.factor, 3)


def test_a_device_is_slow_if_all_kernels_take_longer() -> None:
    # Of the names, those with most of the excess.
    costly = ["gemm_large", "flash_fwd", "elementwise", "layer_norm"]
    assert fault({name: 1.3 * us for name, us in USUAL.items()}) == ("device", costly, 1.3)


def test_a_low_clock_leaves_kernels_alone_that_memory_limits() -> None:
    calculate = {name: us * (1.3 if "gemm" in name or "flash" in name else 1.0) for name, us in USUAL.items()}
    assert fault(calculate) == ("device", ["gemm_large", "flash_fwd", "gemm_small"], 1.3)


@pytest.mark.parametrize("name", ["gemm_large", "flash_fwd", "elementwise"])
def test_one_kernel_that_takes_longer_is_no_slow_device(name: str) -> None:
    assert fault({**USUAL, name: 2 * USUAL[name]}) == ("few_kernels", [name], 2.0)


def test_kernels_that_take_as_long_show_nothing() -> None:
    assert fault({name: us * (1.01 if "gemm" in name else 0.99) for name, us in USUAL.items()}) == (None, [], 1.0)


def test_another_algorithm_has_another_name() -> None:
    other = {**USUAL, "gemm_other": 700.0}
    del other["gemm_large"]
    assert fault(other)[0] == "other_kernels"


def test_other_grids_are_not_compared() -> None:
    times = {0: rank({name: 1.3 * us for name, us in USUAL.items()}, grid="[192,1,1]"), 1: rank(USUAL), 2: rank(USUAL)}
    assert compare_kernels(times, 0, [1, 2], range(4)) is None


def test_the_given_steps_are_compared() -> None:
    slow = [KernelTime("gemm", "[1,1,1]", 40, 500.0, {0: 10.0, 1: 10.0, 2: 20.0, 3: 10.0})]
    usual = [KernelTime("gemm", "[1,1,1]", 40, 400.0, dict.fromkeys(range(4), 10.0))]
    times = {0: DeviceTimes([], slow), 1: DeviceTimes([], usual), 2: DeviceTimes([], usual)}
    ratios = {step: compare_kernels(times, 0, [1, 2], [step]) for step in (1, 2)}
    assert [ratio.compared[0].ratio for ratio in ratios.values() if ratio is not None] == [1.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "moe", "pp"])
def test_no_rank_of_a_job_without_a_fault_has_slow_kernels(tmp_path: Path, layout: str) -> None:
    write_traces(LayoutJob(LAYOUTS[layout], FAULTS["none"], steps=6), tmp_path)
    traces, _, _ = read_ranks(*find_traces([tmp_path]), engine=LocalEngine())
    times = {trace.rank: trace.device for trace in traces}
    for item, device in times.items():
        peers = [other for other in times if other != item and times[other].stage == device.stage]
        result = compare_kernels(times, item, peers, range(6))
        assert result is not None
        assert (result.fault, list(result.longer)) == (None, [])
