"""Step numbers of ranks that drift apart: steps of the same time are compared, or the ranks are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.conftest import AddWindows
from tests.step_files import table_of_records

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.compared import comparable
from rankscope.analysis.evidence.step_table.simultaneous import find_step_numbers
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.online import OnlineAnalysis
from rankscope.analysis.run_analysis import read_evidence
from rankscope.runs.records import CollectiveRecord, DeviceKind, PhaseTimes, RankInfo, StepRecord

STEPS, RANKS = 120, 4
STEP_US = 20_000.0
START = 10**18
Starts = list[tuple[int, float]]
"""Start and duration of each step of a rank, in nanoseconds and microseconds."""


def lockstep(*, seed: int = 0, steps: int = STEPS) -> list[Starts]:
    """Return the steps of ranks that start them together, of very different lengths."""
    rng = np.random.default_rng(seed)
    walls = STEP_US * rng.lognormal(0, 0.3, steps)
    starts = START + np.concatenate([[0], np.cumsum(walls * 1000)])[:-1]
    noise = rng.normal(0, 200_000, (RANKS, steps))
    return [[(int(at), wall) for at, wall in zip(starts + noise[rank], walls, strict=True)] for rank in range(RANKS)]


def with_extra(starts: Starts, *at: int) -> Starts:
    """Return the steps with an extra one, of a millisecond, before each of the steps ``at``."""
    made: Starts = []
    for place, (start, wall) in enumerate(starts):
        made += [(start, 1000.0), (start + 1_000_000, wall - 1000)] if place in at else [(start, wall)]
    return made


def table_of(ranks: list[Starts], *, own: float = 0.5, profiled: tuple[int, ...] = ()) -> StepTable:
    def record(step: int, start: int, wall: float) -> StepRecord:
        blocked = PhaseTimes(backward=(1 - own) * wall)
        return StepRecord(step=step, start_unix_ns=start, wall_us=wall, blocked_us=blocked, profiled=step in profiled)

    return table_of_records(
        {rank: [record(step, *values) for step, values in enumerate(steps)] for rank, steps in enumerate(ranks)}
    )


def infos(*, kind: DeviceKind = "cpu", hosts: bool = False, stages: bool = False) -> dict[int, RankInfo]:
    return {
        rank: RankInfo(
            rank=rank,
            world_size=RANKS,
            host=f"n{rank if hosts else 0}",
            pid=1,
            start_unix_ns=1,
            device_kind=kind,
            coordinates={"pp": rank} if stages else {},
        )
        for rank in range(RANKS)
    }


def shifted(starts: Starts, offset_ns: Callable[[int], float]) -> Starts:
    return [(start + int(offset_ns(start - START)), wall) for start, wall in starts]


def test_profiled_steps_are_compared_only_if_others_are_too_few() -> None:
    few, most = (table_of(lockstep(), profiled=tuple(range(count))) for count in (STEPS // 2, STEPS))
    for table, first in ((few, STEPS // 2), (most, 0)):
        compared = comparable(table, range(RANKS))
        assert compared is not None
        assert not compared[1][:first].any()
        assert compared[1][first:].any()


OFTEN = tuple(range(20, STEPS, 25))


@pytest.mark.parametrize(
    ("extra", "hosts"),
    # Between hosts the numbers of the first steps are taken to agree.
    [((30,), False), ((30,), True), (OFTEN, False), (OFTEN, True), ((0,), False)],
)
def test_extra_steps_of_a_rank_are_renumbered_by_time(extra: tuple[int, ...], hosts: bool) -> None:
    even = lockstep()
    clock_ns = 3_700_000_000 if hosts else 0
    ranks = [even[0], shifted(with_extra(even[1], *extra), lambda _: clock_ns), *even[2:]]
    numbers = find_step_numbers(table_of(ranks), infos(hosts=hosts))
    assert list(numbers.changed) == [1]
    assert numbers.reference != 1
    assert not numbers.separate_ranks
    table = table_of(ranks).renumbered(numbers)
    assert table.steps.tolist() == list(range(STEPS))
    late = slice(extra[-1] + 1, STEPS)
    wall = table.matrix("wall_us")
    np.testing.assert_allclose(wall[1, late], wall[0, late], rtol=1e-5)
    # an extra step and the one after it are one together
    np.testing.assert_allclose(np.nansum(wall[1]), np.nansum(wall[0]), rtol=0.03)
    assert any("rank 1" in warning and f"rank {numbers.reference}" in warning for warning in numbers.warnings())


def test_uneven_inputs_are_renumbered_at_every_epoch() -> None:
    even = lockstep()
    # Rank 0 has no steps at the end of each epoch of 30: it takes part in those of the others.
    ranks = [[step for place, step in enumerate(even[0]) if place % 30 < 27], *even[1:]]
    numbers = find_step_numbers(table_of(ranks), infos())
    table = table_of(ranks).renumbered(numbers)
    assert list(numbers.changed) == [0]
    missing = ~table.has_record[0]
    assert np.flatnonzero(missing).tolist() == [step for step in range(STEPS) if step % 30 >= 27]
    np.testing.assert_allclose(table.matrix("wall_us")[0, ~missing], table.matrix("wall_us")[1, ~missing], rtol=1e-5)


@pytest.mark.parametrize(
    "offset_ns",
    [
        pytest.param(lambda _: 0.0, id="same"),
        pytest.param(lambda _: 50_000_000.0, id="steps apart"),
        pytest.param(lambda ns: 7e9 + 1e-4 * ns, id="drifting"),
        pytest.param(lambda ns: 40_000_000 * (ns > 60 * STEP_US * 1000), id="set"),
        pytest.param(lambda ns: -40_000_000 * (ns > 60 * STEP_US * 1000), id="set back"),
    ],
)
def test_clock_offsets_of_hosts_are_no_different_step_numbers(offset_ns: Callable[[int], float]) -> None:
    for rank in range(RANKS):
        ranks = lockstep(seed=rank)
        ranks[rank] = shifted(ranks[rank], offset_ns)
        assert not find_step_numbers(table_of(ranks), infos(hosts=True)).warnings()


def test_host_times_of_devices_do_not_renumber_steps() -> None:
    even = lockstep()
    ranks = [even[0], with_extra(even[1], 30), *even[2:]]
    assert not find_step_numbers(table_of(ranks), infos(kind="cuda")).warnings()


def test_later_start_of_a_stage_keeps_the_step_numbers() -> None:
    ranks = [shifted(steps, lambda _, rank=rank: 0.3 * rank * STEP_US * 1000) for rank, steps in enumerate(lockstep())]  # type: ignore[misc]
    assert not find_step_numbers(table_of(ranks), infos(stages=True)).warnings()


def test_pauses_and_lost_records_keep_the_step_numbers() -> None:
    ranks = lockstep()
    for rank, steps in enumerate(ranks):
        pause = [(start + (2 * 10**9 if place > 40 - (rank != 1) else 0), wall) for place, (start, wall) in enumerate(steps)]
        ranks[rank] = pause
    assert not find_step_numbers(table_of(ranks), infos()).warnings()


def test_ranks_that_meet_every_n_steps_keep_their_step_numbers() -> None:
    ranks: list[Starts] = []
    for rank in range(RANKS):
        own = STEP_US * (1 - 0.1 * rank)
        steps = [(START + int((step // 10 * 10 * STEP_US + step % 10 * own) * 1000), own) for step in range(STEPS)]
        ranks.append(steps)
    assert not find_step_numbers(table_of(ranks), infos()).warnings()


def test_ranks_that_never_meet_cannot_be_compared() -> None:
    ranks = [
        [(START + int(step * STEP_US * (1 + 0.07 * rank) * 1000), STEP_US * (1 + 0.07 * rank)) for step in range(STEPS)]
        for rank in range(RANKS)
    ]
    numbers = find_step_numbers(table_of(ranks), infos())
    assert len(numbers.separate_ranks) == RANKS - 1
    assert not numbers.changed
    assert numbers.comparable(range(RANKS)) == [numbers.reference]
    example = numbers.separate_ranks[0]
    assert example.step != example.reference_step
    assert f"step {example.step} of rank 0" in numbers.incomparable()


@pytest.fixture
def drifted(synthetic: Callable[..., Any]) -> Callable[..., Path]:
    """Return a function that writes a run whose rank 1 counts one more step from step 40 on, and whose rank 2 is often slow."""

    def write(folder: str, ahead: int, **options: Any) -> Path:
        return synthetic(  # type: ignore[no-any-return]
            folder,
            steps=STEPS,
            device_kind="cpu",
            rank_fields={"host": "n0"},
            plan=lambda rank, step: {"us": 40_000 if step % 3 == 1 else 0} if rank == 2 else None,
            fields=lambda rank, step: {"step": step + ahead * (rank == 1 and step >= 40)},
            **options,
        ).write()

    return write


def test_run_with_drifting_step_numbers_gets_the_same_verdict(drifted: Callable[..., Path]) -> None:
    even, uneven = analyze([drifted("even", 0)]), analyze([drifted("uneven", 1)])
    assert even.verdict.rank == uneven.verdict.rank == 2
    assert uneven.verdict.saves == pytest.approx(even.verdict.saves, rel=0.05)
    assert uneven.source.steps == even.source.steps
    assert any("rank 1" in warning for warning in uneven.source.warnings)
    assert not even.source.warnings


def test_live_and_postponed_reads_use_the_renumbered_steps(drifted: Callable[..., Path]) -> None:
    run = drifted("uneven", 1)
    assert OnlineAnalysis(run).update() == analyze([run])
    table = read_evidence(run).table
    even = read_evidence(drifted("even", 0)).table
    for metric in ("cpu_us", "own_forward_us", "samples"):
        read, expected = table.matrix(metric)[1], even.matrix(metric)[1]
        result = np.isfinite(read)
        assert result.sum() >= STEPS - 2
        np.testing.assert_array_equal(read[result], expected[result])


def test_profiled_steps_at_different_times_are_not_matched(drifted: Callable[..., Path], add_windows: AddWindows) -> None:
    for ahead, matched in ((0, 1), (1, 0)):
        run = drifted(f"by-{ahead}", ahead)
        starts = read_evidence(run).table
        for rank in range(4):
            at = 10**18 if rank != 1 else 10**18 + ahead
            record = CollectiveRecord(
                step=60,
                group="0",
                index=0,
                op="all_reduce",
                enqueue_unix_ns=at,
                start_unix_ns=at,
                end_unix_ns=at + 10**6,
            )
            add_windows(run, rank, [], [record])
        assert starts.ranks.tolist() == [0, 1, 2, 3]
        assert analyze([run]).collectives.matched == matched
