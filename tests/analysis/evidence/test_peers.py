"""Comparison of ranks: those of different pipeline stages are not compared; order statistics over the ranks at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from tests.analysis.conftest import plan_for

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence import order
from rankscope.analysis.evidence.order import last_ranks, of_blocks, ordered
from rankscope.analysis.evidence.peers import peer_groups, stage_of
from rankscope.analysis.inference.judging.excess import excess
from rankscope.analysis.run_analysis import analyze_run
from rankscope.runs.records import RankInfo

Synthetic = Callable[..., Any]


def info(rank: int, **coordinates: int) -> RankInfo:
    return RankInfo(rank=rank, world_size=8, host="n", pid=1, start_unix_ns=1, coordinates=coordinates)


def stages(name: str, ranks: int, per_stage: int) -> dict[int, dict[str, int]]:
    """Return rank to its coordinates: one stage after the other."""
    return {rank: {name: rank // per_stage, "dp": rank % per_stage} for rank in range(ranks)}


def by_design(
    per_stage: int, also: Callable[[int, int], float] = lambda _rank, _step: 0.0
) -> Callable[[int, int], dict[str, Any]]:
    """Return a plan in which the second stage has twice the layers and takes 60 ms longer."""
    return lambda rank, step: {"phase": "forward", "us": 60_000 * (rank // per_stage) + also(rank, step)}


def test_peers_are_the_ranks_of_a_stage() -> None:
    infos = {rank: info(rank, pp=rank // 4, dp=rank // 2 % 2, tp=rank % 2) for rank in range(8)}
    assert peer_groups(range(8), infos) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [stage_of(infos[rank]) for rank in (0, 7)] == [0, 1]


def test_all_ranks_without_a_pipeline_are_peers() -> None:
    infos = {0: info(0, dp=0, tp=0), 1: info(1, dp=0, tp=1), 2: info(2)}
    assert peer_groups(range(4), infos) == [[0, 1, 2, 3]]
    assert stage_of(None) is None


@pytest.mark.parametrize("name", ["pp", "pipe", "pipeline", "stage"])
def test_stage_slow_by_design_accuses_no_rank_if_stages_are_known(synthetic: Synthetic, name: str) -> None:
    run = synthetic(plan=by_design(2), coordinates=stages(name, 4, 2))
    assert analyze([run.write()]).verdict.kind != "straggler"
    # Without known stages, one of the ranks would be called slow, or both be called normal
    unknown = analyze([synthetic(ranks=4, plan=by_design(3)).write()]).verdict
    assert (unknown.kind, unknown.rank) == ("straggler", 3)


@pytest.mark.parametrize("slow", range(4))
def test_slow_rank_is_found_among_its_peers_with_its_stage(synthetic: Synthetic, slow: int) -> None:
    plan = by_design(2, lambda rank, _step: 40_000.0 if rank == slow else 0.0)
    analysis = analyze([synthetic(plan=plan, coordinates=stages("pp", 4, 2)).write()])
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.stage, verdict.phase) == ("straggler", slow, slow // 2, "forward")
    assert max(analysis.imposed_wait, key=lambda row: row.imposed_us).rank == slow


def test_costlier_of_two_slow_ranks_in_two_stages_is_named(synthetic: Synthetic) -> None:
    plan = by_design(3, lambda rank, _step: {1: 30_000.0, 4: 50_000.0}.get(rank, 0.0))
    verdict = analyze([synthetic(ranks=6, plan=plan, coordinates=stages("pp", 6, 3)).write()]).verdict
    assert (verdict.rank, verdict.stage) == (4, 1)


def test_stages_of_one_rank_have_no_peers_to_compare(synthetic: Synthetic) -> None:
    by_stage = stages("pp", 4, 1)
    analysis = analyze([synthetic(plan=by_design(1), coordinates=by_stage).write()])
    assert (analysis.verdict.kind, analysis.verdict.rank, analysis.verdict.stage) == ("pipeline_bubble", None, 3)
    assert "Every pipeline stage is on one rank" in analysis.verdict.summary
    assert analysis.imposed_wait == []


def test_stages_of_one_rank_that_hardly_wait_are_insufficient_data(synthetic: Synthetic) -> None:
    verdict = analyze([synthetic(coordinates=stages("pp", 4, 1)).write()]).verdict
    assert verdict.kind == "insufficient_data"
    assert "every pipeline stage is on one rank" in verdict.summary


@pytest.mark.parametrize("seed", [20, 31])  # compared within its own stage, one rank is slow beyond chance
def test_noise_among_many_stages_accuses_no_rank(synthetic: Synthetic, seed: int) -> None:
    run = synthetic(ranks=32, steps=14, noise=0.4, seed=seed, coordinates=stages("pp", 32, 2))
    assert analyze([run.write()]).verdict.kind != "straggler"


def test_clearly_slow_rank_is_found_among_many_stages(synthetic: Synthetic) -> None:
    plan = by_design(32, lambda rank, _step: 60_000.0 if rank == 21 else 0.0)
    verdict = analyze([synthetic(ranks=32, steps=14, plan=plan, coordinates=stages("pp", 32, 2)).write()]).verdict
    assert (verdict.kind, verdict.rank, verdict.stage) == ("straggler", 21, 10)


matrices = st.tuples(st.integers(2, 7), st.integers(0, 600)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0, 1.5, 7.0, 2.0**24, 2.0**24 + 2]))
)


@given(matrices)
def test_partial_sort_equals_a_sort_and_the_last_is_the_first_maximum(values: NDArray[np.float32]) -> None:
    places = [0, len(values) // 2, len(values) - 1]
    assert np.array_equal(ordered(values, places), np.sort(values, axis=0)[places])
    assert np.array_equal(last_ranks(values), values.argmax(axis=0))


@given(matrices)
def test_excess_equals_the_difference_to_the_median_of_the_others(values: NDArray[np.float32]) -> None:
    wide = values.astype(np.float64)
    expected = [wide[row] - np.median(np.delete(wide, row, axis=0), axis=0) for row in range(len(wide))]
    assert np.array_equal(excess(values), np.reshape(expected, wide.shape))


def test_parallel_blocks_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "_WORTH_A_THREAD", 0)
    result = of_blocks((2, 1000), lambda steps: (steps.start, steps.stop))
    assert result == [(0, 256), (256, 512), (512, 768), (768, 1000)]


def test_verdict_does_not_depend_on_the_number_of_cores(synthetic: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = synthetic(plan=plan_for(2, us=40_000.0, phase="forward"), ranks=4, steps=600).write()
    alone = analyze_run(run)
    monkeypatch.setattr(order, "_WORTH_A_THREAD", 0)
    assert analyze_run(run) == alone
