"""The judge of own times: patterns, several ranks at once, hosts, suspects, and none when there is only noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.compared import StepOwnTimes
from rankscope.analysis.evidence.step_table.steps import Matrices, StepTable
from rankscope.analysis.inference.judging.healing import period
from rankscope.analysis.inference.judging.moving_wait import moving_waits
from rankscope.analysis.inference.judging.rank_judge import GroupAnswer, SuspectedRanks, judge_ranks
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks

Matrix = NDArray[np.float64]


def noisy(seed: int, ranks: int, steps: int, *, lasts: int = 1, scatter: float = 0.1, bias: float = 0.01) -> Matrix:
    """Return own times around 100 ms; noise is autocorrelated over steps, and each rank differs a little."""
    rng = np.random.default_rng((seed, ranks, steps, lasts))
    keep = (lasts - 1) / (lasts + 1)
    noise = rng.normal(size=(ranks, steps))
    for step in range(1, steps):
        noise[:, step] = keep * noise[:, step - 1] + np.sqrt(1 - keep**2) * noise[:, step]
    times: Matrix = 100_000 * (1 + rng.normal(0, bias, size=(ranks, 1))) * np.exp(scatter * noise)
    return times


def spikes(seed: int, ranks: int, steps: int, share: float = 0.03) -> Matrix:
    """Return random delays of any rank at any step, of twice the step on average."""
    rng = np.random.default_rng((seed, ranks, steps))
    hit: Matrix = (rng.random((ranks, steps)) < share) * rng.exponential(200_000, (ranks, steps))
    return hit


def judged(own: Matrix) -> StepOwnTimes:
    ranks, steps = own.shape
    wall = own.max(axis=0) + 4_000
    table = StepTable(
        attempt=0,
        ranks=np.arange(ranks),
        steps=np.arange(steps),
        values=Matrices(
            {"own_us": own, "wall_us": np.tile(wall, (ranks, 1)), "blocked_us": wall - own}, np.arange(ranks), np.arange(steps)
        ),
        start_unix_ns=np.zeros((ranks, steps), dtype=np.int64),
        profiled=np.zeros((ranks, steps), dtype=bool),
        tags={},
    )
    return StepOwnTimes(table, np.arange(ranks), own, float(wall.mean()))


def judgement(own: Matrix, per_host: int | None = None) -> GroupAnswer:
    hosts = {} if per_host is None else {rank: f"n{rank // per_host}" for rank in range(len(own))}
    return judge_ranks(judged(own), hosts)


def found(own: Matrix) -> SlowRanks | None:
    return judgement(own).slow


def suspected(own: Matrix) -> SuspectedRanks | None:
    return judgement(own).suspect


def test_outlier_rank_is_named_despite_noise_as_long_as_the_run() -> None:
    named = by_noise = 0
    for seed in range(40):
        own = noisy(seed, 8, 10, lasts=40, scatter=0.01)
        by_noise += found(own) is not None
        own[-1] *= 1.3
        slow = found(own)
        named += slow is not None and slow.ranks == [7]
    assert named >= 39
    assert by_noise <= 1


@pytest.mark.slow
def test_at_most_one_noisy_run_in_fifty_accuses_a_rank() -> None:
    accused = runs = 0
    for ranks in (2, 3, 4, 8, 16, 64):
        for steps, lasts in ((35, 1), (35, 4), (200, 1), (200, 10), (200, 30)):
            for seed in range(5):
                runs += 1
                accused += found(noisy(seed, ranks, steps, lasts=lasts, scatter=0.2 if seed % 2 else 0.03)) is not None
    assert accused / runs <= 0.02, f"{accused} of {runs}"


@pytest.mark.slow
def test_spikes_of_random_ranks_accuse_no_rank() -> None:
    accused = runs = 0
    for ranks in (2, 3, 4, 6, 16):
        for steps in (35, 100, 200):
            for seed in range(8):
                runs += 1
                accused += found(noisy(seed, ranks, steps, scatter=0.05) + spikes(seed, ranks, steps)) is not None
    assert accused / runs <= 0.02, f"{accused} of {runs}"


@pytest.mark.parametrize(("ranks", "pauses", "excluded"), [(8, 2, False), (8, 3, False), (8, 6, True), (3, 4, False)])
def test_pauses_too_few_to_exclude_chance_name_no_rank(ranks: int, pauses: int, excluded: bool) -> None:
    """By chance all fall on the same of 8 ranks one time in 8 if there are two, and one time in 64 if there are three."""
    named = 0
    for seed in range(12):
        own = noisy(seed, ranks, 12, scatter=0.01, bias=0.0)
        own[1, np.random.default_rng(seed).choice(12, pauses, replace=False)] += 150_000
        slow = found(own)
        named += slow is not None and slow.ranks == [1]
    assert named == (12 if excluded else 0)


@pytest.mark.parametrize(("ranks", "slow"), [(4, [0, 2]), (5, [1, 4]), (6, [0, 1, 2]), (8, [1, 2, 5, 7])])
@pytest.mark.parametrize("lasts", [1, 6])
def test_half_of_the_ranks_may_be_slow_and_are_all_named(ranks: int, slow: list[int], lasts: int) -> None:
    own = noisy(1, ranks, 50, lasts=lasts, scatter=0.1)
    own[slow] += 50_000
    named = found(own)
    assert named is not None
    assert (sorted(named.ranks), named.pattern) == (slow, "fixed")
    assert named.p_value is not None
    assert named.p_value <= 0.01
    assert named.certainty > 0.95, "any one against those that are not slow, not against each other"
    assert named.gain_us == pytest.approx(50_000, rel=0.2)


def test_slow_majority_is_not_named() -> None:
    own = noisy(1, 5, 100, scatter=0.03)
    own[:3] += 50_000
    assert found(own) is None


def test_slowest_of_several_slow_ranks_is_named_with_the_next_ones() -> None:
    own = noisy(1, 8, 100, scatter=0.05)
    own[3] += 60_000
    own[6] += 40_000
    own[0] += 25_000
    named = found(own)
    assert named is not None
    assert (named.ranks, named.behind) == ([3], [6, 0])


def paused(seed: int, ranks: int) -> Matrix:
    """Return a hundred steps of about 40 ms with short pauses of every rank, and pauses of 50 to 150 ms of any rank."""
    rng = np.random.default_rng((seed, ranks))
    own = 40_000 * np.exp(0.03 * rng.normal(size=(ranks, 100))) + rng.exponential(4_000, (ranks, 100))
    steps = np.flatnonzero(rng.random(100) < 0.075)
    own[rng.integers(0, ranks, len(steps)), steps] += rng.uniform(50_000, 150_000, len(steps))
    return own


@pytest.mark.slow
def test_long_pauses_of_random_ranks_neither_hide_nor_fake_a_slow_rank() -> None:
    accused = right = runs = 0
    for ranks in (2, 4, 8):
        for seed in range(20):
            runs += 1
            own = paused(seed, ranks)
            accused += found(own) is not None
            own[1] += 15_000
            slow = found(own)
            right += slow is not None and (slow.ranks, slow.pattern) == ([1], "fixed")
    assert accused / runs <= 0.02, f"{accused} of {runs}"
    assert right / runs >= 0.95, f"{right} of {runs}"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_one_slow_step_in_ten_is_enough_among_few_ranks(ranks: int) -> None:
    own = noisy(2, ranks, 100, scatter=0.05)
    own[1, 5::10] += 500_000
    named = found(own)
    assert named is not None
    assert (named.ranks, named.pattern) == ([1], "intermittent")
    assert named.gain_us == pytest.approx(50_000, rel=0.05), "what noise costs in the other steps is not its doing"


def test_single_or_alternating_pauses_make_no_suspect() -> None:
    calm = noisy(2, 2, 47, scatter=0.02)
    once = calm.copy()
    once[1, 20] += 5_000_000
    assert suspected(once) is None
    in_turn = calm.copy()
    in_turn[[0, 1, 0, 1, 1], [3, 12, 25, 31, 44]] += 500_000
    assert suspected(in_turn) is None
    assert suspected(calm) is None


@pytest.mark.parametrize("ranks", [4, 8, 32])
@pytest.mark.parametrize("seed", range(3))
def test_one_step_in_ten_is_intermittent(ranks: int, seed: int) -> None:
    own = noisy(seed, ranks, 200, lasts=4, scatter=0.05)
    own[1, ::10] += 150_000
    slow = found(own)
    assert slow is not None
    assert (slow.ranks, slow.pattern) == ([1], "intermittent")
    assert slow.affected.mean() == pytest.approx(0.1, abs=0.01)
    assert period(np.flatnonzero(slow.affected)) == 10
    assert slow.certainty > 0.9


def test_second_rank_that_is_rarely_slowest_keeps_the_certainty() -> None:
    """Rank 3 is slow throughout, rank 5 for half of the run."""
    for seed in range(30):
        own = noisy(seed, 8, 200)
        own[3] += 30_000
        own[5, 10:110] += 16_000
        slow = found(own)
        assert slow is not None
        assert slow.ranks[0] == 3
        assert slow.certainty >= 0.95


@pytest.mark.parametrize("seed", range(3))
def test_slow_rank_behind_a_slower_one_is_listed_next_and_not_named(seed: int) -> None:
    own = noisy(seed, 4, 200, lasts=4, scatter=0.05)
    own[2] += 160_000
    own[0] += 25_000
    slow = found(own)
    assert slow is not None
    assert (slow.ranks, slow.behind) == ([2], [0])
    assert slow.certainty > 0.95
    # It is named where the others intermittently wait for it
    own[0, ::4] += 200_000
    slow = found(own)
    assert slow is not None
    assert (sorted(slow.ranks), slow.behind) == ([0, 2], [])


@pytest.mark.parametrize("seed", range(3))
def test_moving_slowness_names_no_rank_and_is_reported_as_rotating(seed: int) -> None:
    own = noisy(seed, 8, 300, scatter=0.05)
    own[np.arange(300) % 8, np.arange(300)] += 60_000
    assert found(own) is None
    moving = moving_waits(judged(own))
    assert moving.share == pytest.approx(0.38, abs=0.05)
    assert sorted(moving.shares) == list(range(8))
    assert max(moving.shares.values()) < 0.2
    assert moving.stands_out
    assert not moving_waits(judged(noisy(seed, 8, 300, scatter=0.05))).stands_out


def test_constant_excess_is_fixed_despite_noise() -> None:
    own = noisy(3, 4, 200, scatter=0.3)
    own[2] += 80_000
    slow = found(own)
    assert slow is not None
    assert (slow.ranks, slow.pattern) == ([2], "fixed")


def test_frequency_and_period_of_a_slowness_are_reported(synthetic: Callable[..., Any]) -> None:
    plan = lambda rank, step: {"us": 200_000} if rank == 3 and step % 10 == 0 else None  # noqa: E731
    analysis = analyze([synthetic(steps=120, plan=plan).write()])
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.pattern, verdict.cause) == ("straggler", 3, "intermittent", "host")
    assert "intermittently" in verdict.summary
    assert "It is slow in 10% of the steps, one in 10." in verdict.summary
    evidence = {row.name: row.value for row in analysis.findings[0].evidence}
    assert evidence["period"] == 10
    assert evidence["slow_steps"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0, 10, 20, 30, 40], 10),
        ([0, 10, 30, 40, 50, 60], 10),
        ([3, 10, 20, 30, 40, 50], 10),
        ([0, 1, 2, 3, 4], None),
        ([0, 7, 9, 30, 41], None),
        ([0, 10, 20, 30], None),
        ([], None),
    ],
)
def test_period_is_kept_by_most_slow_steps(steps: list[int], expected: int | None) -> None:
    assert period(np.array(steps, dtype=np.int64)) == expected


@given(st.integers(2, 50), st.integers(0, 10**6), st.lists(st.integers(0, 9), min_size=5, max_size=40, unique=True))
def test_period_does_not_depend_on_the_first_step(every: int, first: int, kept: list[int]) -> None:
    steps = np.array(sorted(kept), dtype=np.int64)
    assert period(steps * every + first) == period(steps * every)
    regular = np.arange(len(kept)) * every + first
    assert period(regular) == every


def test_host_is_named_if_all_its_ranks_are_slow() -> None:
    own = noisy(1, 32, 200, scatter=0.03)
    own[8:16] += 30_000
    slow = judgement(own, 8).slow
    assert slow is not None
    assert (slow.hosts, sorted(slow.ranks)) == (["n1"], list(range(8, 16)))


def test_host_with_ranks_slow_in_turn_is_named() -> None:
    own = noisy(1, 64, 800, scatter=0.03, bias=0.005)
    own[8 + np.arange(800) // 20 % 8, np.arange(800)] += 30_000
    assert judgement(own).slow is None or len(judgement(own).slow.ranks) < 8  # type: ignore[union-attr]
    slow = judgement(own, 8).slow
    assert slow is not None
    assert (slow.hosts, sorted(slow.ranks)) == (["n1"], list(range(8, 16)))


def test_slow_ranks_on_one_host_do_not_make_the_host_slow() -> None:
    own = noisy(1, 32, 200, scatter=0.03)
    own[[8, 9, 20]] += 30_000
    slow = judgement(own, 8).slow
    assert slow is not None
    assert (slow.hosts, sorted(slow.ranks)) == ([], [8, 9, 20])


def test_larger_hosts_are_not_slow_because_of_their_size() -> None:
    hosts = {rank: "large" if rank < 12 else f"small{rank // 2}" for rank in range(20)}
    for seed in range(10):
        assert judge_ranks(judged(noisy(seed, 20, 300, scatter=0.2)), hosts).slow is None


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("ranks", [2, 8])
def test_saving_equals_that_of_the_same_run_without_the_fault(share: float, ranks: int) -> None:
    clean = noisy(3, ranks, 1000, scatter=0.03)
    own = clean.copy()
    own[1] += 120_000 * (np.random.default_rng(4).random(1000) < share)
    slow = found(own)
    assert slow is not None
    assert slow.gain_us == pytest.approx((own.max(axis=0) - clean.max(axis=0)).mean(), rel=0.05)
