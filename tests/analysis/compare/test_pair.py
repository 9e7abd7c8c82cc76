"""Comparison of two tables of steps: a change is found, named and sized, and noise is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.compare.simulated_steps import MadeUp, quantity

from rankscope.analysis.compare.comparable_steps import comparable_steps
from rankscope.analysis.compare.compare_result import Comparison, Quantity, RankShift
from rankscope.analysis.compare.pair import compare_pair
from rankscope.analysis.compare.quantities import PARTS
from rankscope.runs.records import PHASES


def pair(a: MadeUp, b: MadeUp, *, min_change: float = 0.01) -> Comparison:
    return compare_pair(comparable_steps(a.recording(), "A"), comparable_steps(b.recording(), "B"), min_change=min_change)


def slowed(phase: str, by_us: float) -> dict[str, float]:
    phases = dict(MadeUp().phases)
    phases[phase] += by_us
    return phases


QUIET = MadeUp(name="a", seed=1)


@pytest.mark.slow
def test_at_most_one_pair_of_equal_runs_in_twenty_differs() -> None:
    # given pairs of equal runs with autocorrelated noise, and every difference matters
    differing = 0
    for seed in range(0, 40, 2):
        comparison = pair(MadeUp(seed=seed), MadeUp(seed=seed + 1), min_change=1e-9)
        rows: list[Quantity | RankShift] = [*comparison.quantities, *comparison.ranks]
        shifts = [shift for row in rows for shift in (row.typical, row.average) if shift is not None]
        assert shifts
        differing += any(shift.real for shift in shifts)
    # then: 1 of 20 is expected at most, and 4 or more would be chance once in sixty times
    assert differing <= 3


@pytest.mark.parametrize("phase", PHASES[2:])
def test_a_slower_phase_is_found_with_its_size(phase: str) -> None:
    # given B needs 8 ms longer in one phase of a step of about 105 ms
    comparison = pair(QUIET, MadeUp(name="b", seed=2, phases=slowed(phase, 8_000)))
    # then
    step = quantity(comparison, "wall_us")
    assert (comparison.outcome, step.outcome, comparison.per, comparison.basis) == ("worse", "worse", "step", "own")
    assert step.typical is not None
    assert step.typical.low < 8_000 < step.typical.high
    worse = [item.name for item in comparison.quantities if item.role == "part" and item.outcome == "worse"]
    assert worse == [f"own_{phase}_us"]
    assert "B is slower than A" in comparison.summary
    assert PARTS[f"own_{phase}_us"].label in comparison.summary
    assert step.superiority is not None
    assert step.superiority > 0.9


def test_faster_run_is_better() -> None:
    comparison = pair(MadeUp(seed=2, phases=slowed("forward", 8_000)), QUIET)
    assert comparison.outcome == "better"
    assert "B is faster than A" in comparison.summary
    assert comparison.throughput[0].relative > 0.05


def test_parts_add_up_to_the_change_of_the_step() -> None:
    comparison = pair(QUIET, MadeUp(seed=3, phases=slowed("data", 9_000), transfer_us=6_000))
    step = quantity(comparison, "wall_us")
    parts = [part for part in comparison.quantities if part.role == "part"]
    for side in ("a", "b", "difference"):
        assert sum(getattr(part, side) for part in parts) == pytest.approx(getattr(step, side))
    assert step.of_step == pytest.approx(sum(part.of_step or 0.0 for part in parts))
    assert quantity(comparison, "communication_us").difference == pytest.approx(2_000)


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.floats(-4_000, 20_000))
def test_exchanging_the_runs_inverts_every_sign(seed: int, by_us: float) -> None:
    a, b = MadeUp(seed=seed, steps=80), MadeUp(seed=seed + 1, steps=95, phases=slowed("forward", by_us))
    # The smallest difference that matters is a share of A's step: an outcome at that limit may depend on which run is A.
    forward, back = pair(a, b, min_change=1e-9), pair(b, a, min_change=1e-9)
    opposite = {"worse": "better", "better": "worse"}
    assert back.outcome == opposite.get(forward.outcome, forward.outcome)
    for item, other in zip(forward.quantities, back.quantities, strict=True):
        assert item.name == other.name
        assert item.difference == pytest.approx(-(other.difference or 0.0), abs=1e-6)
        if item.typical is not None and other.typical is not None:
            assert item.typical.p_value == pytest.approx(other.typical.p_value)


def test_slower_rank_alone_is_named_with_host_and_phase() -> None:
    comparison = pair(QUIET, MadeUp(seed=4, late={2: ("optimizer", 15_000)}))
    assert [row.rank for row in comparison.ranks if row.outcome in ("worse", "better")] == [2]
    row = comparison.ranks[2]
    assert (row.host_b, row.phase) == ("n1", "optimizer")
    assert row.excess_b_us - row.excess_a_us == pytest.approx(15_000, rel=0.1)
    assert "Rank 2 on n1 became slower than its peers" in comparison.summary
    assert "in optimizer" in comparison.summary
    assert quantity(comparison, "waiting_us").outcome == "worse"
    assert comparison.slower_hosts == []


def test_host_with_all_ranks_slower_is_named() -> None:
    late = dict.fromkeys((4, 5), ("forward", 15000.0))
    comparison = pair(MadeUp(seed=5, ranks=8), MadeUp(seed=6, ranks=8, late=late))
    assert comparison.slower_hosts == ["n2"]
    assert "All ranks of host n2 became slower" in comparison.summary


def test_moved_rank_is_reported_with_both_hosts() -> None:
    comparison = pair(QUIET, MadeUp(seed=4, late={1: ("data", 15_000)}, hosts={1: "n7"}))
    assert "Rank 1 on n7 (before on n0) became slower" in comparison.summary
    assert any(text.startswith("hosts: ") for text in comparison.differs)


def test_common_slowdown_singles_out_no_rank() -> None:
    comparison = pair(QUIET, MadeUp(seed=7, phases=slowed("forward", 20_000)))
    assert {row.outcome for row in comparison.ranks} <= {"same", "undecided"}


def test_real_change_below_the_limit_is_the_same() -> None:
    calm: dict[str, Any] = {"noise": 0.002, "common": 0.001, "phi": 0.0, "steps": 400}
    comparison = pair(MadeUp(seed=1, **calm), MadeUp(seed=2, phases=slowed("forward", 400), **calm))
    step = quantity(comparison, "wall_us")
    assert step.typical is not None
    assert step.typical.real
    assert comparison.outcome == "same"
    assert "less than the 1% that matters" in comparison.summary
    # and a difference that matters with a smaller limit
    limit = pair(MadeUp(seed=1, **calm), MadeUp(seed=2, phases=slowed("forward", 400), **calm), min_change=0.002)
    assert limit.outcome == "worse"


def test_change_hidden_by_noise_is_undecided_with_the_detectable_size() -> None:
    comparison = pair(MadeUp(seed=1, common=0.2), MadeUp(seed=2, common=0.2, phases=slowed("forward", 2_000)))
    step = quantity(comparison, "wall_us")
    assert comparison.outcome == "undecided"
    assert step.typical is not None
    assert step.typical.detectable > 2_000
    assert "that the noise lets through" in comparison.summary
    assert "would most likely have been seen" in comparison.summary


def test_too_few_steps_still_show_the_numbers() -> None:
    comparison = pair(QUIET, MadeUp(seed=2, steps=20))
    step = quantity(comparison, "wall_us")
    assert (comparison.outcome, step.typical, step.average) == ("insufficient_data", None, None)
    assert step.difference is not None
    assert "16 usable steps on one side; 30 are needed" in comparison.summary


def test_long_lasting_noise_leaves_a_small_change_undecided() -> None:
    long: dict[str, Any] = {"phi": 0.98, "common": 0.2, "steps": 100}
    assert pair(MadeUp(seed=1, **long), MadeUp(seed=2, phases=slowed("forward", 2_000), **long)).outcome == "undecided"


def test_different_batch_sizes_are_compared_per_sample() -> None:
    # given B does twice the work in twice the time
    double = {phase: 2 * us for phase, us in MadeUp().phases.items()}
    comparison = pair(QUIET, MadeUp(seed=2, samples=16, phases=double, transfer_us=8_000))
    step = quantity(comparison, "wall_us")
    # then nothing became slower
    assert (comparison.per, comparison.outcome in ("same", "undecided")) == ("sample", True)
    assert step.a == pytest.approx(step.b, rel=0.03)
    assert comparison.throughput[0].relative == pytest.approx(0, abs=0.03)
    assert {row.outcome for row in comparison.ranks} <= {"same", "undecided"}
    assert len(comparison.ranks) == 4


def test_slower_rank_is_named_per_sample_with_different_batch_sizes() -> None:
    # given steps of twice the work, and a rank that takes 40 ms longer in those
    double = {phase: 2 * us for phase, us in MadeUp().phases.items()}
    comparison = pair(QUIET, MadeUp(seed=2, samples=16, phases=double, late={3: ("data", 40_000)}))
    assert [(row.rank, row.phase) for row in comparison.ranks if row.outcome == "worse"] == [(3, "data")]
    assert comparison.ranks[3].excess_b_us - comparison.ranks[3].excess_a_us == pytest.approx(40_000 / (4 * 16), rel=0.15)
    assert "per sample, in data" in comparison.summary


def test_tokens_take_precedence_over_samples() -> None:
    comparison = pair(MadeUp(seed=1, tokens=8 * 512), MadeUp(seed=2, tokens=8 * 1024))
    assert comparison.per == "token"
    assert comparison.outcome == "better"
    assert [rate.unit for rate in comparison.throughput] == ["samples", "tokens"]
    assert comparison.throughput[1].relative == pytest.approx(1.0, abs=0.05)


def test_samples_shared_by_several_ranks_count_once() -> None:
    tensor_parallel = {rank: {"dp": rank // 2, "tp": rank % 2} for rank in range(4)}
    assert comparable_steps(QUIET.recording(), "A").work["samples"] == pytest.approx(32)
    assert comparable_steps(replace(QUIET, coordinates=tensor_parallel).recording(), "A").work["samples"] == pytest.approx(16)
