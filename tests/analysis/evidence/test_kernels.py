"""Kernels of a rank compared with its peers': slow, other, more or unknown ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.nccl.faults import FAULTS
from tests.nccl.layouts import LAYOUTS, LayoutJob
from tests.nccl.traces import write_traces

from rankscope.analysis.evidence.kernels.device_times import DeviceTimes, more_work
from rankscope.analysis.evidence.kernels.kernel_ratios import compare_kernels
from rankscope.analysis.evidence.kernels.unknown_kernels import RankKernels, kernels_with_waits
from rankscope.analysis.parallel.workers import LocalEngine
from rankscope.analysis.rank_traces import find_traces, read_ranks
from rankscope.analysis.trace.work import KernelTime
from rankscope.analysis.verdict.builders import Setting
from rankscope.analysis.verdict.unnamed_communication import with_unnamed_waits

USUAL = {"gemm_large": 400.0, "gemm_small": 100.0, "flash_fwd": 300.0, "layer_norm": 160.0, "elementwise": 190.0}
"""Microseconds of a call; each kernel runs ten times."""


def rank(us: Mapping[str, float], *, grid: str = "[128,1,1]", steps: int = 4) -> DeviceTimes:
    kernels = [
        KernelTime(name, grid, 10 * steps, 10 * steps * took, dict.fromkeys(range(steps), took)) for name, took in us.items()
    ]
    return DeviceTimes([], kernels)


def fault(us: Mapping[str, float]) -> tuple[str | None, list[str], float]:
    times = {0: rank(us), 1: rank(USUAL), 2: rank(USUAL), 3: rank(USUAL)}
    ratios = compare_kernels(times, 0, [1, 2, 3], range(4))
    assert ratios is not None
    return ratios.fault, ratios.names, round(ratios.factor, 3)


def test_device_is_slow_if_all_kernels_take_longer() -> None:
    # Of the names, those with most of the excess.
    costly = ["gemm_large", "flash_fwd", "elementwise", "layer_norm"]
    assert fault({name: 1.3 * us for name, us in USUAL.items()}) == ("device", costly, 1.3)


def test_low_clock_does_not_slow_memory_bound_kernels() -> None:
    calculate = {name: us * (1.3 if "gemm" in name or "flash" in name else 1.0) for name, us in USUAL.items()}
    assert fault(calculate) == ("device", ["gemm_large", "flash_fwd", "gemm_small"], 1.3)


@pytest.mark.parametrize("name", ["gemm_large", "flash_fwd", "elementwise"])
def test_single_slow_kernel_is_no_slow_device(name: str) -> None:
    assert fault({**USUAL, name: 2 * USUAL[name]}) == ("few_kernels", [name], 2.0)


def test_slow_kernel_without_others_may_be_a_slow_device() -> None:
    times = {0: rank({"gemm": 600.0}), 1: rank({"gemm": 400.0}), 2: rank({"gemm": 400.0})}
    comparison = compare_kernels(times, 0, [1, 2], range(4))
    assert comparison is not None
    assert (comparison.fault, comparison.factor) == (None, 1.5)


def test_kernels_of_equal_duration_show_no_fault() -> None:
    assert fault({name: us * (1.01 if "gemm" in name else 0.99) for name, us in USUAL.items()}) == (None, [], 1.0)


def test_other_kernel_names_show_another_algorithm() -> None:
    other = {**USUAL, "gemm_other": 700.0}
    del other["gemm_large"]
    assert fault(other)[0] == "other_kernels"


def test_kernels_of_different_grids_are_not_compared() -> None:
    times = {0: rank({name: 1.3 * us for name, us in USUAL.items()}, grid="[192,1,1]"), 1: rank(USUAL), 2: rank(USUAL)}
    assert compare_kernels(times, 0, [1, 2], range(4)) is None


def test_kernels_are_compared_in_the_given_steps() -> None:
    slow = [KernelTime("gemm", "[1,1,1]", 40, 500.0, {0: 10.0, 1: 10.0, 2: 20.0, 3: 10.0})]
    usual = [KernelTime("gemm", "[1,1,1]", 40, 400.0, dict.fromkeys(range(4), 10.0))]
    times = {0: DeviceTimes([], slow), 1: DeviceTimes([], usual), 2: DeviceTimes([], usual)}
    ratios = {step: compare_kernels(times, 0, [1, 2], [step]) for step in (1, 2)}
    assert [ratio.compared[0].ratio for ratio in ratios.values() if ratio is not None] == [1.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "moe", "pp"])
def test_job_without_a_fault_has_no_slow_kernels(tmp_path: Path, layout: str) -> None:
    write_traces(LayoutJob(LAYOUTS[layout], FAULTS["none"], steps=6), tmp_path)
    traces, _, _ = read_ranks(*find_traces([tmp_path]), engine=LocalEngine())
    times = {trace.rank: trace.device for trace in traces}
    for item, device in times.items():
        peers = [other for other in times if other != item and times[other].stage == device.stage]
        ratios = compare_kernels(times, item, peers, range(6))
        assert ratios is not None
        assert (ratios.fault, list(ratios.longer)) == (None, [])


USUAL_BLOCKS = {"gemm": (128, 600.0), "attention": (128, 300.0), "elementwise": (4096, 100.0)}
"""Blocks of a kernel, and the time of all its calls."""


def more(kernels: Mapping[str, tuple[int, float]]) -> float | None:
    times = {
        rank: DeviceTimes([], [KernelTime(name, f"[{blocks}, 1, 1]", 10, us) for name, (blocks, us) in of_rank.items()])
        for rank, of_rank in enumerate((kernels, USUAL_BLOCKS, USUAL_BLOCKS))
    }
    return more_work(times, 0, [1, 2])


def test_more_blocks_with_more_time_are_more_work() -> None:
    result = more({name: (round(blocks * 1.5), us * 1.5) for name, (blocks, us) in USUAL_BLOCKS.items()})
    assert result == pytest.approx(0.5)


def test_slow_device_has_no_more_work() -> None:
    assert more({name: (blocks, us * 1.5) for name, (blocks, us) in USUAL_BLOCKS.items()}) == 0.0


def test_kernels_with_a_fixed_grid_count_as_the_others() -> None:
    longer = {name: (blocks, us * 1.5) for name, (blocks, us) in USUAL_BLOCKS.items()}
    assert more(longer | {"elementwise": (6144, 150.0)}) == pytest.approx(0.5)


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_other_tiling_is_no_more_work(factor: float) -> None:
    """Four times the blocks that take no longer than the device is slow."""
    slow = {name: (blocks, us * factor) for name, (blocks, us) in USUAL_BLOCKS.items()}
    result = more(slow | {"attention": (512, 300.0 * factor)})
    assert result is not None
    assert result < 0.1


def test_work_without_a_common_kernel_is_unknown() -> None:
    assert more({"other": (1, 100.0)}) is None


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
def test_ranks_that_compute_less_wait_longer_in_the_unnamed_kernel(name: str) -> None:
    ranks = job(COMPUTE | {name: (310.0, 300.0, 5.0)})
    (row,) = kernels_with_waits(ranks)
    assert (row.name, row.least_us, row.most_us) == (name, 5, 310)
    verdict = with_unnamed_waits(ranks, "traces", SETTING)
    assert verdict is not None
    assert (verdict.kind, verdict.unknown_kernels) == ("insufficient_data", [row])
    assert name in verdict.summary


def test_wait_for_idle_ranks_is_found_in_the_kernel() -> None:
    # given a rank whose host is late, so that its device is idle while the others wait
    (row,) = kernels_with_waits(
        job({"sgemm_128x64": (500.0, 500.0, 500.0), "my_op": (310.0, 300.0, 5.0)}, idle=(0.0, 0.0, 300.0))
    )
    assert row.name == "my_op"


def test_wait_may_be_split_over_two_kernels() -> None:
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
def test_kernel_time_differences_of_other_patterns_are_no_waits(
    times: Mapping[str, Sequence[float]], calls: Sequence[int]
) -> None:
    ranks = job(COMPUTE | dict(times), calls)
    assert kernels_with_waits(ranks) == []
    assert with_unnamed_waits(ranks, "traces", SETTING) is None


def test_compute_kernels_contain_no_waits() -> None:
    assert kernels_with_waits(job(COMPUTE | {"cutlass_gemm": (310.0, 300.0, 5.0)})) == []
