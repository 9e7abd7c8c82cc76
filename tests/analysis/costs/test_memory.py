"""Memory: peaks, fragmentation, and growth distinguished from noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.step_files import table_of_records

from rankscope.analysis.costs.cost_figures import figures_of_memory
from rankscope.analysis.costs.memory import MINIMUM_SAMPLES, is_leak, memory_of, slope_of
from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.text import json_of
from rankscope.runs.paths import host_dir
from rankscope.runs.records import HardwareSample, StepRecord
from rankscope.runs.segment_writer import JsonLinesWriter

Synthetic = Callable[..., Any]

GIB = 1 << 30
MIB = 1 << 20
STEPS = np.arange(50.0, 2050.0, 50.0)


def leaks(values: Any, steps: Any = STEPS, series: int = 1) -> bool:
    slope = slope_of(steps, values, series=series)
    assert slope is not None
    return is_leak(values, slope)


@given(
    slope=st.floats(-1e6, 1e6),
    start=st.floats(0, 1e12),
    outliers=st.lists(st.tuples(st.integers(0, 39), st.floats(-1e12, 1e12)), max_size=5),
)
def test_few_outliers_hardly_move_the_slope(slope: float, start: float, outliers: list[tuple[int, float]]) -> None:
    values = start + slope * STEPS
    clean = slope_of(STEPS, values)
    for place, by in outliers:
        values[place] += by
    result = slope_of(STEPS, values)
    assert clean is not None
    assert result is not None
    assert clean.middle == pytest.approx(slope, abs=1e-3)
    assert result.low <= result.middle <= result.high
    assert result.low - 1e-3 <= slope <= result.high + 1e-3


@given(values=st.lists(st.floats(0, 1e12), min_size=MINIMUM_SAMPLES, max_size=60), by=st.floats(-1e12, 1e12))
def test_slope_does_not_depend_on_the_level(values: list[float], by: float) -> None:
    steps = np.arange(len(values), dtype=np.float64)
    result, other = slope_of(steps, np.array(values)), slope_of(steps, np.array(values) + by)
    assert result is not None
    assert other is not None
    assert other.middle == pytest.approx(result.middle, rel=1e-6, abs=1e-2)


def test_few_samples_have_no_slope() -> None:
    few = STEPS[: MINIMUM_SAMPLES - 1]
    assert slope_of(few, few) is None


@pytest.mark.parametrize("seed", range(5))
def test_steady_growth_in_noise_is_a_leak(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 5 * MIB, len(STEPS))
    assert leaks(GIB + 0.05 * MIB * STEPS + noise)


def test_stationary_noise_is_no_leak() -> None:
    rng = np.random.default_rng(0)
    assert not any(leaks(GIB + rng.normal(0, 20 * MIB, len(STEPS))) for _ in range(200))


def test_random_walk_is_no_leak() -> None:
    rng = np.random.default_rng(0)
    assert sum(leaks(10 * GIB + np.cumsum(rng.normal(0, 50 * MIB, len(STEPS)))) for _ in range(200)) <= 2


@pytest.mark.parametrize(
    "values",
    [
        GIB + 500 * MIB * (1 - np.exp(-STEPS / 200)),  # caches that fill
        GIB + 500 * MIB * (STEPS > 1000),  # a jump, as at the first evaluation
        GIB + 0.001 * MIB * STEPS,  # 2 MiB of 1 GiB: too little to report
        GIB - 0.1 * MIB * STEPS,
        np.full(len(STEPS), float(GIB)),
    ],
)
def test_growth_that_ends_or_is_negligible_is_no_leak(values: Any) -> None:
    assert not leaks(values)


def table(samples: dict[int, list[dict[str, int | None]]]) -> StepTable:
    return table_of_records(
        {
            rank: [
                StepRecord(step=50 * number, start_unix_ns=10**18, wall_us=1000.0, **fields)  # type: ignore[arg-type]
                for number, fields in enumerate(rows)
            ]
            for rank, rows in samples.items()
        },
    )


def device(allocated: int, reserved: int, peak: int, retries: int = 0) -> dict[str, int | None]:
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "peak_allocated_bytes": peak,
        "allocator_retries": retries,
        "resident_bytes": GIB,
    }


def test_fragmentation_is_reserved_memory_beyond_the_peak() -> None:
    memory = memory_of(table({0: [device(10, 60, 40), device(20, 80, 60, 3)]}), {0: 100})
    assert memory is not None
    (row,) = memory.ranks
    assert (row.allocated_bytes, row.reserved_bytes, row.peak_allocated_bytes) == (20, 80, 60)
    assert (row.fragmentation, row.peak_share, row.allocator_retries) == (0.25, 0.6, 3)
    assert row.later_allocator_retries == 3
    assert memory.growth == []


def test_allocator_retries_at_startup_are_no_evidence_of_short_memory() -> None:
    memory = memory_of(table({0: [device(10, 60, 40, 2), device(20, 80, 60, 2)], 1: [device(10, 60, 40, 2)]}), {0: 100})
    assert memory is not None
    assert [row.later_allocator_retries for row in memory.ranks] == [0, None]
    assert figures_of_memory(memory)["memory.retries"].value == 0


def test_a_rank_without_a_device_has_resident_memory_only() -> None:
    memory = memory_of(table({0: [{"resident_bytes": 7}]}), {})
    assert memory is not None
    (row,) = memory.ranks
    assert row.resident_bytes == 7
    unknown = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "device_bytes", "fragmentation", "allocator_retries")
    assert {getattr(row, name) for name in unknown} == {None}


def test_ranks_without_memory_samples_have_no_memory_result() -> None:
    assert memory_of(table({0: [{}, {}]}), {}) is None


def test_reset_peak_shows_no_fragmentation() -> None:
    memory = memory_of(table({0: [device(10, 60, 90)]}), {})
    assert memory is not None
    assert (memory.ranks[0].fragmentation, memory.ranks[0].peak_share) == (None, None)


@given(order=st.permutations(range(4)))
def test_ranks_are_listed_by_number_and_growth_by_speed(order: list[int]) -> None:
    rows = {
        rank: [device((1 + rank) * MIB * number, 80 * GIB, (1 + rank) * MIB * number) for number in range(40)]
        for rank in range(4)
    }
    memory = memory_of(table({rank: rows[rank] for rank in order}), {})
    assert memory is not None
    assert [row.rank for row in memory.ranks] == [0, 1, 2, 3]
    assert [row.rank for row in memory.growth if row.kind == "device"] == [3, 2, 1, 0]


def test_insignificant_growth_is_no_leak_in_the_json_output() -> None:
    # Given a rank whose caches fill
    ints = [int(GIB + 500 * MIB * (1 - np.exp(-number / 4))) for number in range(40)]
    memory = memory_of(table({0: [device(size, 2 * GIB, size) for size in ints]}), {})
    # Then the JSON output reports no leak
    growth = msgspec.json.decode(json_of(memory))["growth"]
    assert [row["leaking"] for row in growth if row["kind"] == "device"] == [False]


def test_leak_on_one_rank_is_named_with_the_remaining_steps(synthetic: Synthetic) -> None:
    # Given rank 1 of two, whose device keeps 1 MiB more every step; samples come every fifth step
    def fields(rank: int, step: int) -> dict[str, Any]:
        used_bytes = 10 * GIB + (MIB * step if rank == 1 else 0)
        return device(used_bytes, 24 * GIB, used_bytes + 10 * GIB) if step % 5 == 0 else {}

    run = synthetic(ranks=2, steps=300, fields=fields, rank_fields={"gpu_uuid": "GPU-1"}).write()
    writer = JsonLinesWriter(host_dir(run, "n0"), "gpu")
    writer.append(HardwareSample(unix_ns=10**18, gpu_uuid="GPU-1", memory_total_bytes=24 * GIB))
    writer.close()
    analysis = analyze([run])
    assert analysis.memory is not None
    (leak,) = [row for row in analysis.memory.growth if row.leaking]
    assert (leak.rank, leak.kind) == (1, "device")
    assert leak.bytes_per_1000_steps == pytest.approx(1000 * MIB)
    assert leak.steps_until_full == pytest.approx(4096 - 295, abs=2)
    text = " ".join(render_text(analysis).split())
    assert "leak: rank 1 grows on the device by 1,000 MiB per 1,000 steps" in text
    assert "full in at most 3,801 steps" in text
    (advice,) = [advice_item for advice_item in analysis.advice if advice_item.name == "device_leak"]
    assert advice.gain_share_at_most is None
    assert advice.evidence[0].value == pytest.approx(1000)
