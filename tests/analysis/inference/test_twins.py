"""Of two replicas and a few steps, one is slow only if that is neither chance nor what other stages show to be usual."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.analysis.evidence.kernels.device_times import DeviceOwnTimes
from rankscope.analysis.inference.judging.judge import judge_ranks
from rankscope.analysis.inference.judging.twins import slow_twin

STAGES = 4
STEP_US = 150.0


def stages(steps: int, *, seed: int, apart_us: float = 0.3, lasting: float = 0.8, noise_us: float = 1.0) -> list[DeviceOwnTimes]:
    """Return the own times of two replicas of each stage, whose noise lasts, and whose means are ``apart_us`` apart."""
    rng = np.random.default_rng(seed)
    collected = []
    for stage in range(STAGES):
        own = np.empty((2, steps))
        state = rng.normal(0, noise_us, 2)
        for step in range(steps):
            own[:, step] = 100 + 20 * stage + state
            state = lasting * state + np.sqrt(1 - lasting**2) * rng.normal(0, noise_us, 2)
        own[0] += apart_us
        collected.append(DeviceOwnTimes([stage, STAGES + stage], list(range(steps)), own, STEP_US))
    return collected


@pytest.mark.parametrize("steps", [6, 10, 16])
@pytest.mark.parametrize("seed", range(4))
def test_a_steady_excess_is_a_slow_rank(steps: int, seed: int) -> None:
    first, *others = stages(steps, seed=seed)
    first.own[1] += 30.0
    slow = slow_twin(first, STAGES, others)
    assert slow is not None
    assert (slow.ranks, slow.pattern) == ([STAGES], "fixed")
    assert slow.gain_us == pytest.approx(30, abs=4)


def test_ten_steps_of_two_ranks_do_not_show_it_by_themselves() -> None:
    """Else these rules would not be needed."""
    first, *others = stages(10, seed=1, lasting=0.95)
    first.own[1] += 30.0
    assert judge_ranks(first).slow is None
    assert slow_twin(first, STAGES, others) is not None
    assert slow_twin(first, STAGES, []) is None


def test_replicas_that_differ_as_much_in_other_stages_are_no_outliers() -> None:
    first, *others = stages(10, seed=0, apart_us=20.0)
    first.own[1] += 40.0
    assert slow_twin(first, STAGES, others) is None


def test_what_costs_too_little_is_not_named() -> None:
    first, *others = stages(10, seed=0)
    first.own[1] += 0.04 * STEP_US
    assert slow_twin(first, STAGES, others) is None


def test_some_pauses_may_be_chance() -> None:
    first, *others = stages(10, seed=0)
    first.own[1, ::3] += 90.0
    assert slow_twin(first, STAGES, others) is None


def test_lasting_noise_names_hardly_any_rank() -> None:
    named = 0
    for seed in range(200):
        first, *others = stages(10, seed=seed, apart_us=0.0, noise_us=8.0)
        worst = int(first.own.mean(axis=1).argmax())
        named += slow_twin(first, first.ranks[worst], others) is not None
    assert named <= 2
