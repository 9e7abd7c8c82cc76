"""Ranks of different pipeline stages do different work and are not compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.peers import peer_groups, stage_of
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


def test_peers_are_the_ranks_of_a_stage_whatever_else_differs() -> None:
    infos = {rank: info(rank, pp=rank // 4, dp=rank // 2 % 2, tp=rank % 2) for rank in range(8)}
    assert peer_groups(range(8), infos) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [stage_of(infos[rank]) for rank in (0, 7)] == [0, 1]


def test_without_a_pipeline_all_ranks_are_peers() -> None:
    infos = {0: info(0, dp=0, tp=0), 1: info(1, dp=0, tp=1), 2: info(2)}
    assert peer_groups(range(4), infos) == [[0, 1, 2, 3]]
    assert stage_of(None) is None


@pytest.mark.parametrize("name", ["pp", "pipe", "pipeline", "stage"])
def test_a_stage_that_takes_longer_by_design_accuses_nobody(synthetic: Synthetic, name: str) -> None:
    run = synthetic(plan=by_design(2), coordinates=stages(name, 4, 2))
    assert analyze([run.write()]).verdict.kind != "straggler"
    # Without known stages, one of the ranks would be called slow, or both be called normal
    unknown = analyze([synthetic(ranks=4, plan=by_design(3)).write()]).verdict
    assert (unknown.kind, unknown.rank) == ("straggler", 3)


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_rank_is_found_among_its_peers_and_its_stage_is_named(synthetic: Synthetic, slow: int) -> None:
    plan = by_design(2, lambda rank, _step: 40_000.0 if rank == slow else 0.0)
    analysis = analyze([synthetic(plan=plan, coordinates=stages("pp", 4, 2)).write()])
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.stage, verdict.phase) == ("straggler", slow, slow // 2, "forward")
    assert max(analysis.imposed_wait, key=lambda row: row.imposed_us).rank == slow


def test_of_two_slow_ranks_in_two_stages_the_one_that_costs_more_is_named(synthetic: Synthetic) -> None:
    plan = by_design(3, lambda rank, _step: {1: 30_000.0, 4: 50_000.0}.get(rank, 0.0))
    verdict = analyze([synthetic(ranks=6, plan=plan, coordinates=stages("pp", 6, 3)).write()]).verdict
    assert (verdict.rank, verdict.stage) == (4, 1)


def test_stages_of_one_rank_each_have_nobody_to_be_compared_with(synthetic: Synthetic) -> None:
    apart = stages("pp", 4, 1)
    analysis = analyze([synthetic(plan=by_design(1), coordinates=apart).write()])
    assert (analysis.verdict.kind, analysis.verdict.rank, analysis.verdict.stage) == ("pipeline_bubble", None, 3)
    assert "Every pipeline stage is on one rank" in analysis.verdict.summary
    assert analysis.imposed_wait == []


def test_stages_of_one_rank_each_that_hardly_wait_leave_nothing_to_say(synthetic: Synthetic) -> None:
    verdict = analyze([synthetic(coordinates=stages("pp", 4, 1)).write()]).verdict
    assert verdict.kind == "insufficient_data"
    assert "every pipeline stage is on one rank" in verdict.summary


@pytest.mark.parametrize("seed", [20, 31])  # compared within its own stage, one rank is slow beyond chance
def test_among_many_stages_one_that_noise_makes_stand_out_accuses_nobody(synthetic: Synthetic, seed: int) -> None:
    run = synthetic(ranks=32, steps=14, noise=0.4, seed=seed, coordinates=stages("pp", 32, 2))
    assert analyze([run.write()]).verdict.kind != "straggler"


def test_among_many_stages_a_rank_that_is_clearly_slow_is_found(synthetic: Synthetic) -> None:
    plan = by_design(32, lambda rank, _step: 60_000.0 if rank == 21 else 0.0)
    verdict = analyze([synthetic(ranks=32, steps=14, plan=plan, coordinates=stages("pp", 32, 2)).write()]).verdict
    assert (verdict.kind, verdict.rank, verdict.stage) == ("straggler", 21, 10)
