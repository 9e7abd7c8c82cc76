"""Cases between "this rank" and "no rank": a rank that was late at a cost, though chance cannot be excluded."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.breakdowns import breakdown
from tests.analysis.collectives_by_hand import collective_waits

from rankscope.analysis.causes import cause_of
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.analysis.inference.judging.job_judgement import judge
from rankscope.analysis.inference.judging.late_ranks import find_late, late_suspect
from rankscope.analysis.inference.profiled_steps import confidence_of_slow, late_signals


def blame(gains_of_rank_1: list[float], gains_of_rank_0: list[float]) -> Blame:
    """Return the blame of two ranks with one collective a step; gains in microseconds of steps of 1,000."""
    gain = np.array([gains_of_rank_0, gains_of_rank_1], dtype=float).T
    totals = {0: float(gain[:, 0].sum()), 1: float(gain[:, 1].sum())}
    return Blame(
        ranks=[0, 1],
        imposed_us=totals,
        exposed_us=totals,
        transfer_us={0: 1.0, 1: 1.0},
        wait_us={0: 1.0, 1: 1.0},
        waits=collective_waits(list(range(len(gain))), gain, gain[:, ::-1]),
    )


@pytest.mark.parametrize(
    ("rank_1", "rank_0", "named", "suspect"),
    [
        ([400.0] * 16, [0.0] * 16, 1, None),
        # one step in eight the other way: too likely by chance to name a rank, too unlikely to name none
        ([400.0] * 7 + [0.0], [0.0] * 7 + [300.0], None, 1),
        # both equally often: no rank
        ([400.0, 0.0] * 8, [0.0, 380.0] * 8, None, None),
        # always the same rank, but without cost
        ([10.0] * 16, [0.0] * 16, None, None),
    ],
)
def test_rank_is_named_suspected_or_neither(
    rank_1: list[float], rank_0: list[float], named: int | None, suspect: int | None
) -> None:
    blamed = blame(rank_1, rank_0)
    window_us = 1000.0 * len(rank_1)
    late = find_late(blamed, window_us)
    assert (late.ranks[0] if late else None) == named
    if late is None:
        assert late_suspect(blamed, window_us) == suspect


def test_intermittent_cause_is_determined_from_the_slow_steps() -> None:
    """A rank with less to do in most steps is throttled in the others: on average over all its device is less busy."""
    steps = 24
    blamed = blame([400.0 * (step % 2) for step in range(steps)], [1.0 * (1 - step % 2) for step in range(steps)])
    late = find_late(blamed, 1000.0 * steps)
    assert late is not None
    assert (late.ranks, late.pattern) == ([1], "intermittent")
    busy = {0: [500.0] * steps, 1: [900.0 if step % 2 else 50.0 for step in range(steps)]}
    breakdowns = {
        rank: [breakdown(step, compute=us, idle=1000.0 - us) for step, us in enumerate(rows)] for rank, rows in busy.items()
    }
    signals = late_signals(late, breakdowns, blamed, steps=steps)
    assert (signals.own_us, signals.device_busy_us) == pytest.approx((400, 400), rel=0.02)
    assert cause_of(signals).cause == "compute"


def test_rank_late_at_some_collectives_of_each_step_is_fixed() -> None:
    """It is last at four of ten, and what follows is noise."""
    ranks, steps, each = 4, 2, 10
    rng = np.random.default_rng(0)
    gain = rng.exponential(1.0, (steps * each, ranks))
    gain[np.arange(steps * each) % each < 4, 1] = 100.0
    total = {rank: float(gain[:, rank].sum()) for rank in range(ranks)}
    blamed = Blame(
        ranks=list(range(ranks)),
        imposed_us=total,
        exposed_us=total,
        transfer_us=dict.fromkeys(range(ranks), 1.0),
        wait_us=dict.fromkeys(range(ranks), 1.0),
        waits=collective_waits(np.repeat(np.arange(steps), each).tolist(), gain, gain.max(axis=1, keepdims=True) - gain),
    )
    late = find_late(blamed, 1000.0 * steps)
    assert late is not None
    assert (late.ranks, late.pattern) == ([1], "fixed")


@pytest.mark.parametrize(
    ("lateness", "named", "confidence"),
    [
        # Each of three steps shows it, by about as much.
        ([300.0, 310.0, 295.0], True, 0.8),
        # Each shows it, but the difference between the steps is as large as the effect.
        ([600.0, 90.0, 200.0], False, 0.0),
        # One of them does not show it.
        ([300.0, 300.0, 0.0], False, 0.0),
        # More steps may be intermittent, but the next one is not surely like the slow ones.
        ([300.0] * 3 + [0.0] * 3, True, 4 / 8),
    ],
)
def test_few_steps_name_one_of_many_ranks_only_if_they_agree(lateness: list[float], named: bool, confidence: float) -> None:
    """Among many ranks, chance seldom takes the same one even three times. That does not show that it will be late again."""
    ranks, steps = 512, len(lateness)
    noise = np.random.default_rng(0).exponential(4.0, (ranks, steps))
    noise[7] = np.maximum(noise[7], lateness)
    device = DeviceOwnTimes(list(range(ranks)), list(range(steps)), noise, 1000.0)
    judgement = judge([device])
    straggler = judgement.straggler
    assert (straggler is not None) == named
    if straggler is None:
        assert judgement.suspects == [7]
    else:
        assert straggler.slow.ranks == [7]
        assert confidence_of_slow(straggler.slow, steps) == pytest.approx(confidence, abs=0.001)


def test_ranks_of_a_host_slow_in_turn_are_one_straggler_in_windows() -> None:
    """No single rank is slow often enough, but the longest of the host is at each step."""
    ranks, steps = 16, 48
    own = 1000.0 + np.random.default_rng(1).exponential(4.0, (ranks, steps))
    for step in range(steps):
        own[4 + step % 4, step] += 200.0
    device = DeviceOwnTimes(list(range(ranks)), list(range(steps)), own, 1200.0)
    straggler = judge([device], hosts={rank: f"node{rank // 4}" for rank in range(ranks)}).straggler
    assert straggler is not None
    assert straggler.slow.hosts == ["node1"]
    assert sorted(straggler.slow.ranks) == [4, 5, 6, 7]
