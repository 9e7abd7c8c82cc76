"""Blame on hand-written collectives, and what healing several ranks saves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import matched, record

from rankscope.analysis.collectives.clock import Clocks, consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import Blame, assign_blame
from rankscope.analysis.collectives.waits.savings import Savings
from rankscope.analysis.inference.judging.late_ranks import find_late, late_suspect
from rankscope.runs.records import CollectiveRecord


def blame(by_rank: dict[int, list[CollectiveRecord]]) -> Blame:
    matching = match_collectives(by_rank)
    return assign_blame(matching.matches, fit_clocks(matching.matches), sorted(by_rank))


def gains(blame: Blame) -> list[tuple[int, int, float]]:
    """Return (instance, place of the rank, microseconds) of each gain."""
    return list(zip(blame.waits.gain_of.tolist(), blame.waits.gain_by.tolist(), blame.waits.gain_us.tolist(), strict=True))


def test_collective_ended_by_a_rank_before_the_last_arrival_is_unmatched() -> None:
    # Two groups of two over gloo, whose traces do not name the group: ranks 2 and 3 begin when 0 and 1 are done.
    by_rank = {rank: [record(0 if rank < 2 else 9_000, 5_000 if rank < 2 else 20_000, stream=None)] for rank in range(4)}
    matching = match_collectives(by_rank)
    clocks = fit_clocks(matching.matches, dict.fromkeys(range(4), "n0"))
    checked = consistent(matching, clocks)
    assert (len(matching.matches), len(checked.matches), checked.unmatched, checked.method) == (1, 0, 1, None)


@pytest.mark.parametrize("stream", [9, None])
def test_blame_does_not_depend_on_clock_offsets(stream: int | None) -> None:
    def run(shift: int) -> Blame:
        late = [record(140 + shift + at, 150 + shift + at, index=number, stream=stream) for number, at in enumerate((0, 200))]
        early = [record(100 + at, 150 + at, index=number, stream=stream) for number, at in enumerate((0, 200))]
        return blame({0: early, 1: late})

    assert run(0).imposed_us == run(50_000).imposed_us == {0: 0, 1: 80}


def test_gloo_arrives_at_the_enqueue_and_not_at_the_start_of_the_worker() -> None:
    first = record(100, 150, stream=None, start_unix_ns=139_000)
    second = record(120, 150, stream=None, start_unix_ns=121_000)
    assert blame({0: [first], 1: [second]}).imposed_us == {0: 0, 1: 20}


def test_overlapping_waits_of_a_victim_count_once() -> None:
    victim = [record(100, 300, index=0), record(150, 310, index=1)]
    culprit = [record(290, 300, index=0), record(300, 310, index=1)]
    blamed = blame({0: victim, 1: culprit})
    assert blamed.imposed_us == {0: 0, 1: 200}  # from 100 to 300, not 190 + 150
    assert blamed.transfer_us == {0: 20, 1: 20}
    assert blamed.wait_us == {0: 190 + 150, 1: 0}


def test_compute_hides_imposed_wait() -> None:
    victim = [record(100, 200, compute_spans_us=[(0, 50)])]  # 100 to 150
    blamed = blame({0: victim, 1: [record(190, 200)]})
    assert (blamed.imposed_us[1], blamed.exposed_us[1]) == (90, 40)


def test_saving_is_the_time_after_the_second_last_arrival() -> None:
    blamed = blame({0: [record(100, 200)], 1: [record(170, 200)], 2: [record(190, 200)]})
    assert blamed.imposed_us == {0: 0, 1: 0, 2: 90 + 20}
    assert gains(blamed) == [(0, 2, 20)]


def test_lag_below_the_clock_residual_is_charged_to_no_rank() -> None:
    matches = match_collectives({0: [record(100, 200, stream=None)], 1: [record(103, 200, stream=None)]}).matches
    within = assign_blame(matches, Clocks({}, 5_000.0), [0, 1])
    assert (gains(within), within.imposed_us) == ([], {0: 0, 1: 0})
    assert gains(assign_blame(matches, Clocks({}, 1_000.0), [0, 1])) == [(0, 1, 3)]


def late_run(lates: list[int], ranks: int = 4) -> Blame:
    """Return a run of one collective per step; ``lates[step]`` is the rank that arrives 40 us late."""
    return blame(
        {
            rank: [
                record(100 + (40 if rank == late else 0) + 1000 * step, 150 + 1000 * step, step=step)
                for step, late in enumerate(lates)
            ]
            for rank in range(ranks)
        }
    )


def test_rank_that_is_always_late_is_named() -> None:
    slow = find_late(late_run([2] * 10), window_us=2000)
    assert slow is not None
    assert (slow.ranks, slow.pattern, slow.gain_us) == ([2], "fixed", 400)


def test_ranks_that_are_late_by_turns_are_not_named() -> None:
    assert find_late(late_run([0, 1, 2, 3] * 4), window_us=2000) is None


def both_late(steps: int, ranks: int, late: set[int], *, hidden: bool = False) -> Blame:
    """Return a run of one collective per step, to which some ranks come 40 us late, one of them, in turn, 1 us later."""
    return blame(
        {
            rank: [
                record(
                    100 + (40 + ((rank + step) % 2) if rank in late else step % 2) + 1000 * step,
                    150 + 1000 * step,
                    step=step,
                    compute_spans_us=[(0.0, 99.0)] if hidden else [],
                )
                for step in range(steps)
            ]
            for rank in range(ranks)
        }
    )


@pytest.mark.parametrize(("ranks", "late"), [(4, [1, 2]), (6, [1, 4])])
def test_two_late_ranks_are_named_though_healing_one_saves_nothing(ranks: int, late: list[int]) -> None:
    slow = find_late(both_late(12, ranks, set(late)), window_us=3000)
    assert slow is not None
    assert (sorted(slow.ranks), slow.pattern) == (late, "fixed")
    assert slow.gain_us == pytest.approx(12 * 40.5, rel=0.02)
    assert slow.p_value is not None
    assert slow.p_value <= 0.01


def test_two_late_ranks_without_significant_cost_are_not_named() -> None:
    assert find_late(both_late(12, 6, {1, 4}), window_us=30_000) is None
    assert find_late(both_late(12, 6, {1, 4}, hidden=True), window_us=3000) is None
    assert find_late(both_late(12, 4, {1, 2, 3}), window_us=3000) is None, "most of the ranks are no outliers"
    assert find_late(both_late(1, 6, {1, 4}), window_us=300) is None, "once may be chance"


def test_rank_late_twice_is_a_suspect_and_not_named() -> None:
    blamed = late_run([2, 2], ranks=3)
    assert find_late(blamed, window_us=1000) is None
    assert late_suspect(blamed, window_us=1000) == 2


def test_negligible_cost_names_no_rank() -> None:
    blamed = late_run([2] * 10)
    assert find_late(blamed, window_us=100_000) is None
    assert late_suspect(blamed, window_us=100_000) is None


arrivals = st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=8)


@given(arrivals)
def test_exposed_wait_is_part_of_imposed_wait_and_the_last_rank_waits_0(times: list[list[int]]) -> None:
    blamed = blame(
        {
            rank: [
                record(1000 * step + row[rank], 1000 * step + 600, step=step, compute_spans_us=[(0, 60)])
                for step, row in enumerate(times)
            ]
            for rank in range(3)
        }
    )
    lag = sum(max(row) - at for row in times for at in row)
    assert sum(blamed.imposed_us.values()) == pytest.approx(lag)
    for rank in range(3):
        assert 0 <= blamed.exposed_us[rank] <= blamed.imposed_us[rank] + 1e-6


MS = 1000
SECOND = 1000 * MS


def savings(*arrivals_ms: list[float], steps: list[int] | None = None, computes_ms: float = 0.0) -> Savings:
    """Return the savings of a job whose ranks come to each collective at these times; ``computes_ms``: beside each wait."""
    matches = []
    compute = [(0.0, computes_ms * 1000)] if computes_ms else []
    for number, row in enumerate(arrivals_ms):
        at, step = number * SECOND, steps[number] if steps else 0
        end = at + 1000 * max(row) + MS
        records = [record(at + 1000 * arrival, end, step=step, bytes=1, compute_spans_us=compute) for arrival in row]
        matches.append(dict(enumerate(records)))
    blame = assign_blame(matched(*matches), Clocks(residual_ns=0.0), range(len(arrivals_ms[0])))
    return Savings(blame, blame.ranks, blame.steps)


def test_pauses_at_another_collective_do_not_hide_the_cost_of_a_rank() -> None:
    """The whole step of rank 1 is as long as that of rank 0, and both delay the others."""
    saved = savings([0, 9, 1, 0], [9, 0, 0, 1])
    assert saved.together([0])[0] / 1000 == pytest.approx(8)
    assert saved.together([0, 1])[0] / 1000 == pytest.approx(8 + 8)
    assert saved.each()[:, 0].tolist() == pytest.approx([8000, 8000, 0, 0])


def test_healed_rank_would_still_wait_for_the_next_latest_rank() -> None:
    saved = savings([9, 8, 0, 0])
    assert saved.together([0])[0] / 1000 == pytest.approx(1)
    assert saved.together([1])[0] == 0
    assert saved.together([0, 1])[0] / 1000 == pytest.approx(9)


def test_waits_beside_compute_cost_nothing() -> None:
    assert savings([9, 0, 0], computes_ms=5).together([0])[0] / 1000 == 4
    assert savings([9, 0, 0], computes_ms=20).together([0])[0] == 0


def test_savings_are_computed_per_step() -> None:
    saved = savings([4, 0, 0], [0, 3, 0], [2, 0, 0], steps=[5, 5, 6])
    assert (saved.together([0]) / 1000).tolist() == pytest.approx([4, 2])
    assert np.allclose(saved.each() / 1000, [[4, 2], [3, 0], [0, 0]])
