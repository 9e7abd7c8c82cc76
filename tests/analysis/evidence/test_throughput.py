"""Samples and tokens per second, and model FLOP/s utilisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.step_files import table_of_records

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.throughput import throughput_of
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.costs import Throughput
from rankscope.runs.records import RankInfo, StepRecord

Synthetic = Callable[..., Any]

A100 = "NVIDIA A100-SXM4-80GB"


def throughput(
    ranks: dict[int, dict[str, Any]], *, steps: int = 4, wall_us: float = 500_000.0, world_size: int | None = None, **info: Any
) -> Throughput:
    """Return the throughput of ranks with these fields in every step record; ``coordinates`` and others go to ``rank.json``."""
    records = {
        rank: [
            StepRecord(
                step=step, start_unix_ns=10**18, wall_us=wall_us, **{k: v for k, v in fields.items() if k != "coordinates"}
            )
            for step in range(steps)
        ]
        for rank, fields in ranks.items()
    }
    infos = {
        rank: RankInfo(
            rank=rank, world_size=len(ranks), host="n", pid=1, start_unix_ns=1, coordinates=fields.get("coordinates", {}), **info
        )
        for rank, fields in ranks.items()
    }
    table = table_of_records(records)
    result = throughput_of(table, np.ones(len(table.steps), dtype=bool), infos, world_size or len(ranks))
    assert result is not None
    return result


def test_rates_cover_the_whole_job() -> None:
    rates = throughput({0: {"samples": 8, "tokens": 4096}, 1: {"samples": 16, "tokens": 1024}})
    assert (rates.samples_per_second, rates.tokens_per_second) == (48.0, 10_240.0)
    assert (rates.samples_per_second_per_rank, rates.tokens_per_second_per_rank) == (24.0, 5_120.0)
    assert (rates.replicas, rates.steps, rates.step_us) == (2, 4, 500_000.0)


def test_ranks_that_share_a_batch_count_once() -> None:
    # Given two replicas of two tensor-parallel ranks each, and stages that see no samples
    ranks: dict[int, dict[str, Any]] = {
        0: {"samples": 8, "coordinates": {"dp": 0, "tp": 0}},
        1: {"samples": 8, "coordinates": {"dp": 0, "tp": 1}},
        2: {"samples": 8, "coordinates": {"dp": 1, "tp": 0}},
        3: {"coordinates": {"dp": 1, "tp": 1}},
    }
    rates = throughput(ranks)
    assert (rates.replicas, rates.samples_per_second) == (2, 32.0)
    # And all GPUs are paid for nevertheless
    assert rates.samples_per_second_per_rank == 8.0


@pytest.mark.parametrize(("dimension", "replicas"), [("dp", 2), ("inter_host", 2), ("ep", 2), ("tp", 1), ("pp", 1), ("cp", 1)])
def test_layout_dimension_determines_whether_samples_are_shared(dimension: str, replicas: int) -> None:
    rates = throughput({rank: {"samples": 8, "coordinates": {dimension: rank}} for rank in (0, 1)})
    assert (rates.replicas, rates.samples_per_second) == (replicas, 16.0 * replicas)


@pytest.mark.parametrize("ranks", [{0: {"samples": 8}, 1: {}}, {0: {}, 1: {}}])
def test_work_that_one_rank_does_not_report_is_unknown(ranks: dict[int, dict[str, Any]]) -> None:
    rates = throughput(ranks)
    assert (rates.samples_per_second, rates.tokens_per_second, rates.mfu) == (None, None, None)


def test_incomplete_world_has_no_job_rate() -> None:
    rates = throughput({0: {"samples": 8, "flops": 1e12}}, world_size=4)
    assert (rates.replicas, rates.samples_per_second) == (None, None)
    assert rates.flops_per_second_per_rank == pytest.approx(2e12)


def test_mfu_is_relative_to_the_dense_16_bit_peak() -> None:
    rates = throughput({0: {"flops": 78e12}, 1: {"flops": 78e12}}, gpu_name=A100)
    assert (rates.peak_dtype, rates.peak_flops) == ("bf16", 312e12)
    assert rates.mfu == pytest.approx(0.5)
    assert rates.mfu_by_dtype["tf32"] == pytest.approx(1.0)


def test_gpu_outside_the_table_has_no_mfu() -> None:
    rates = throughput({0: {"flops": 78e12}}, gpu_name="A GPU of tomorrow")
    assert rates.flops_per_second_per_rank == pytest.approx(156e12)
    assert (rates.peak_flops, rates.mfu, rates.mfu_by_dtype) == (None, None, {})


@given(flops=st.floats(0, 1e18), wall=st.floats(1, 1e9))
def test_twice_the_work_in_the_same_time_is_twice_the_mfu(flops: float, wall: float) -> None:
    result, two = (throughput({0: {"flops": factor * flops}}, wall_us=wall, gpu_name=A100).mfu for factor in (1, 2))
    assert result is not None
    assert two == pytest.approx(2 * result)


def test_ideal_time_is_part_of_the_compute(synthetic: Synthetic) -> None:
    run = synthetic(
        noise=0.005, fields=lambda _rank, _step: {"flops": 3.12e12, "tokens": 1000}, rank_fields={"gpu_name": A100}
    ).write()
    analysis = analyze([run])
    assert analysis.throughput is not None
    assert analysis.waterfall is not None
    # 3.12 TFLOP take 10 ms at 312 TFLOP/s
    assert analysis.throughput.mfu == pytest.approx(10 / 104, rel=0.02)
    assert next(part.us for part in analysis.waterfall.parts if part.name == "ideal") == pytest.approx(10_000, rel=0.01)
    assert "MFU 9.6% of NVIDIA A100-SXM4-80GB's bf16 peak" in " ".join(render_text(analysis, detail=True).split())
    assert analysis.throughput.tokens_per_second == pytest.approx(4000 / 0.104, rel=0.02)
