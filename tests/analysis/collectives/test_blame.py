"""Matching, clocks and blame on hand-written collectives, and what healing several ranks saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import matched

from rankscope.analysis.collectives.clock import Clocks, consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import Blame, assign_blame
from rankscope.analysis.collectives.waits.savings import Savings
from rankscope.analysis.inference.judging.late_ranks import find_late, late_suspect
from rankscope.runs.records import CollectiveRecord


def collective(
    arrive: int, end: int, *, index: int = 0, step: int = 0, stream: int | None = 9, **fields: Any
) -> CollectiveRecord:
    """Return a record with times in microseconds; a worker on the CPU starts 5 us after the enqueue."""
    return CollectiveRecord(
        step=step,
        group=fields.pop("group", "0"),
        index=index,
        op=fields.pop("op", "all_reduce"),
        enqueue_unix_ns=(arrive - (20 if stream is not None else 0)) * 1000,
        start_unix_ns=(arrive + (0 if stream is not None else 5)) * 1000,
        end_unix_ns=end * 1000,
        stream=stream,
        **fields,
    )


def blame(by_rank: dict[int, list[CollectiveRecord]]) -> Blame:
    matching = match_collectives(by_rank)
    return assign_blame(matching.matches, fit_clocks(matching.matches), sorted(by_rank))


def gains(blame: Blame) -> list[tuple[int, int, float]]:
    """Return (instance, place of the rank, microseconds) of each gain."""
    return list(zip(blame.waits.gain_of.tolist(), blame.waits.gain_by.tolist(), blame.waits.gain_us.tolist(), strict=True))


def test_sequence_numbers_match_what_order_would_not() -> None:
    by_rank = {
        0: [collective(0, 9, sequence=5, index=0), collective(10, 19, sequence=6, index=1)],
        1: [collective(12, 19, sequence=6, index=0)],
    }
    matching = match_collectives(by_rank)
    assert [match.records[0].sequence for match in matching.matches] == [6]
    assert (matching.unmatched, matching.method) == (1, "sequence")


def test_without_sequence_a_rank_that_lacks_one_makes_order_meaningless() -> None:
    by_rank = {0: [collective(0, 9), collective(10, 19, index=1)], 1: [collective(12, 19)]}
    matching = match_collectives(by_rank)
    assert (len(matching.matches), matching.unmatched, matching.method) == (0, 2, None)


def test_operations_or_sizes_that_differ_do_not_match() -> None:
    assert match_collectives({0: [collective(0, 9)], 1: [collective(0, 9, op="all_gather")]}).unmatched == 1
    assert match_collectives({0: [collective(0, 9, bytes=8)], 1: [collective(0, 9, bytes=16)]}).unmatched == 1
    assert len(match_collectives({0: [collective(0, 9, bytes=8)], 1: [collective(0, 9)]}).matches) == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"op": "send", "p2p": True}, "p2p"),
        ({"op": "broadcast"}, "broadcast"),
        ({"op": "gather"}, "rooted"),
        ({"op": "all_to_allv"}, "uneven_all_to_all"),
        ({"op": "dispatch"}, "expert_parallel"),
        ({"op": "coalesced"}, "p2p"),
        ({"op": "coalesced", "p2p": True}, "p2p"),
        ({"op": "unknown"}, "unknown_operation"),
        ({"op": "exchange_of_halos"}, "unknown_operation"),
    ],
)
def test_operations_that_say_nothing_about_waiting_are_counted_by_reason(fields: dict[str, Any], reason: str) -> None:
    matching = match_collectives({rank: [collective(0, 9, **fields), collective(10, 19, index=1)] for rank in (0, 1)})
    assert matching.excluded == {reason: 1}
    assert (len(matching.matches), matching.unmatched) == (1, 0)


def test_an_all_to_all_of_unequal_sizes_is_excluded() -> None:
    matching = match_collectives(
        {0: [collective(0, 9, op="all_to_all", bytes=8)], 1: [collective(0, 9, op="all_to_all", bytes=9)]}
    )
    assert matching.excluded == {"uneven_all_to_all": 1}


def test_a_group_is_complete_only_with_all_its_ranks() -> None:
    by_rank = {rank: [collective(0, 9, group_ranks=[0, 1, 2])] for rank in (0, 1)}
    assert match_collectives(by_rank).unmatched == 1
    assert match_collectives({rank: [collective(0, 9)] for rank in (0, 1)}, world_size=3).unmatched == 1


def test_groups_of_the_same_name_with_other_members_are_kept_apart() -> None:
    by_rank = {rank: [collective(0, 9, group="tp", group_ranks=[0, 1] if rank < 2 else [2, 3])] for rank in range(4)}
    assert [match.ranks for match in match_collectives(by_rank).matches] == [[0, 1], [2, 3]]


def test_clock_offsets_are_found_from_ends() -> None:
    offset = {0: 0, 1: 7_000, 2: -3_000}
    by_rank = {
        rank: [collective(at + shift, at + 50 + shift, index=number) for number, at in enumerate((100, 300, 500))]
        for rank, shift in offset.items()
    }
    clocks = fit_clocks(match_collectives(by_rank).matches)
    assert clocks.offset_ns[1] - clocks.offset_ns[0] == 7_000_000
    assert clocks.offset_ns[2] - clocks.offset_ns[0] == -3_000_000
    assert clocks.residual_ns == 0


def test_ranks_of_one_host_share_a_clock() -> None:
    by_rank = {0: [collective(100, 200)], 1: [collective(100, 203)], 2: [collective(1100, 1201)]}
    clocks = fit_clocks(match_collectives(by_rank).matches, {0: "a", 1: "a", 2: "b"})
    assert clocks.offset_ns[0] == clocks.offset_ns[1]
    assert clocks.offset_ns[2] - clocks.offset_ns[0] == pytest.approx(1_000_000, abs=3_000)


def test_nobody_leaves_a_collective_before_the_last_has_arrived() -> None:
    # Two groups of two over gloo, whose traces do not name the group: ranks 2 and 3 begin when 0 and 1 are done.
    by_rank = {rank: [collective(0 if rank < 2 else 9_000, 5_000 if rank < 2 else 20_000, stream=None)] for rank in range(4)}
    matching = match_collectives(by_rank)
    clocks = fit_clocks(matching.matches, dict.fromkeys(range(4), "n0"))
    checked = consistent(matching, clocks)
    assert (len(matching.matches), len(checked.matches), checked.unmatched, checked.method) == (1, 0, 1, None)


@pytest.mark.parametrize("stream", [9, None])
def test_blame_is_the_same_whatever_the_clocks_say(stream: int | None) -> None:
    def run(shift: int) -> Blame:
        late = [collective(140 + shift + at, 150 + shift + at, index=number, stream=stream) for number, at in enumerate((0, 200))]
        early = [collective(100 + at, 150 + at, index=number, stream=stream) for number, at in enumerate((0, 200))]
        return blame({0: early, 1: late})

    assert run(0).imposed_us == run(50_000).imposed_us == {0: 0, 1: 80}


def test_gloo_arrives_at_the_enqueue_and_not_when_the_worker_starts() -> None:
    first = CollectiveRecord(
        step=0, group="cpu", index=0, op="all_reduce", enqueue_unix_ns=100_000, start_unix_ns=139_000, end_unix_ns=150_000
    )
    second = CollectiveRecord(
        step=0, group="cpu", index=0, op="all_reduce", enqueue_unix_ns=120_000, start_unix_ns=121_000, end_unix_ns=150_000
    )
    assert blame({0: [first], 1: [second]}).imposed_us == {0: 0, 1: 20}


def test_overlapping_waits_of_a_victim_count_once() -> None:
    victim = [collective(100, 300, index=0), collective(150, 310, index=1)]
    culprit = [collective(290, 300, index=0), collective(300, 310, index=1)]
    blamed = blame({0: victim, 1: culprit})
    assert blamed.imposed_us == {0: 0, 1: 200}  # from 100 to 300, not 190 + 150
    assert blamed.transfer_us == {0: 20, 1: 20}
    assert blamed.wait_us == {0: 190 + 150, 1: 0}


def test_compute_hides_imposed_wait() -> None:
    victim = [collective(100, 200, compute_spans_us=[(20, 70)])]  # 100 to 150
    blamed = blame({0: victim, 1: [collective(190, 200)]})
    assert (blamed.imposed_us[1], blamed.exposed_us[1]) == (90, 40)


def test_only_the_time_after_the_second_last_could_be_saved() -> None:
    blamed = blame({0: [collective(100, 200)], 1: [collective(170, 200)], 2: [collective(190, 200)]})
    assert blamed.imposed_us == {0: 0, 1: 0, 2: 90 + 20}
    assert gains(blamed) == [(0, 2, 20)]


def test_a_lag_below_the_clock_residual_is_nobodys() -> None:
    matches = match_collectives({0: [collective(100, 200, stream=None)], 1: [collective(103, 200, stream=None)]}).matches
    within = assign_blame(matches, Clocks({}, 5_000.0), [0, 1])
    assert (gains(within), within.imposed_us) == ([], {0: 0, 1: 0})
    assert gains(assign_blame(matches, Clocks({}, 1_000.0), [0, 1])) == [(0, 1, 3)]


def late_run(lates: list[int], ranks: int = 4) -> Blame:
    """Return a run of one collective per step; ``lates[step]`` is the rank that arrives 40 us late."""
    return blame(
        {
            rank: [
                collective(100 + (40 if rank == late else 0) + 1000 * step, 150 + 1000 * step, step=step)
                for step, late in enumerate(lates)
            ]
            for rank in range(ranks)
        }
    )


def test_the_rank_that_is_always_late_is_named() -> None:
    slow = find_late(late_run([2] * 10), window_us=2000)
    assert slow is not None
    assert (slow.ranks, slow.pattern, slow.gain_us) == ([2], "fixed", 400)


def test_a_rank_that_is_late_by_turns_is_not() -> None:
    assert find_late(late_run([0, 1, 2, 3] * 4), window_us=2000) is None


def both_late(steps: int, ranks: int, late: set[int], *, hidden: bool = False) -> Blame:
    """Return a run of one collective per step, to which some ranks come 40 us late, one of them, in turn, 1 us later."""
    return blame(
        {
            rank: [
                collective(
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
def test_two_late_ranks_are_both_named_though_healing_one_saves_nothing(ranks: int, late: list[int]) -> None:
    slow = find_late(both_late(12, ranks, set(late)), window_us=3000)
    assert slow is not None
    assert (sorted(slow.ranks), slow.pattern) == (late, "fixed")
    assert slow.gain_us == pytest.approx(12 * 40.5, rel=0.02)
    assert slow.p_value is not None
    assert slow.p_value <= 0.01


def test_two_that_are_late_together_are_not_named_for_nothing() -> None:
    assert find_late(both_late(12, 6, {1, 4}), window_us=30_000) is None
    assert find_late(both_late(12, 6, {1, 4}, hidden=True), window_us=3000) is None
    assert find_late(both_late(12, 4, {1, 2, 3}), window_us=3000) is None, "most of the ranks are no outliers"
    assert find_late(both_late(1, 6, {1, 4}), window_us=300) is None, "once may be chance"


def test_twice_late_may_be_chance_and_is_said_to_be() -> None:
    blamed = late_run([2, 2], ranks=3)
    assert find_late(blamed, window_us=1000) is None
    assert late_suspect(blamed, window_us=1000) == 2


def test_what_costs_next_to_nothing_names_nobody() -> None:
    blamed = late_run([2] * 10)
    assert find_late(blamed, window_us=100_000) is None
    assert late_suspect(blamed, window_us=100_000) is None


arrivals = st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=8)


@given(arrivals)
def test_exposed_is_part_of_imposed_and_the_last_waits_for_nobody(times: list[list[int]]) -> None:
    blamed = blame(
        {
            rank: [
                collective(1000 * step + row[rank], 1000 * step + 600, step=step, compute_spans_us=[(0, 60)])
                for step, row in enumerate(times)
            ]
            for rank in range(3)
        }
    )
    lag = sum(max(row) - at for row in times for at in row)
    assert sum(blamed.imposed_us.values()) == pytest.approx(lag)
    for rank in range(3):
        assert 0 <= blamed.exposed_us[rank] <= blamed.imposed_us[rank] + 1e-6


MS = 1_000_000
SECOND = 1000 * MS


def savings(*arrivals_ms: list[float], steps: list[int] | None = None, computes_ms: float = 0.0) -> Savings:
    """Return the savings of a job whose ranks come to each collective at these times; ``computes_ms``: beside each wait."""
    matches = []
    for number, row in enumerate(arrivals_ms):
        at = number * SECOND
        records = [
            CollectiveRecord(
                step=steps[number] if steps else 0,
                group="0",
                group_ranks=list(range(len(row))),
                index=number,
                op="all_reduce",
                bytes=1,
                enqueue_unix_ns=at + round(arrival * MS),
                start_unix_ns=at + round(arrival * MS),
                end_unix_ns=at + round(max(row) * MS) + MS,
                stream=7,
                compute_spans_us=[(0.0, computes_ms * 1000)] if computes_ms else [],
            )
            for arrival in row
        ]
        matches.append(dict(enumerate(records)))
    blame = assign_blame(matched(*matches), Clocks(residual_ns=0.0), range(len(arrivals_ms[0])))
    return Savings(blame, blame.ranks, blame.steps)


def test_pauses_at_another_collective_do_not_hide_what_a_rank_costs() -> None:
    """The whole step of rank 1 is as long as that of rank 0, and both delay the others."""
    saved = savings([0, 9, 1, 0], [9, 0, 0, 1])
    assert saved.together([0])[0] / 1000 == pytest.approx(8)
    assert saved.together([0, 1])[0] / 1000 == pytest.approx(8 + 8)
    assert saved.each()[:, 0].tolist() == pytest.approx([8000, 8000, 0, 0])


def test_a_healed_rank_would_still_wait_for_the_next_one() -> None:
    saved = savings([9, 8, 0, 0])
    assert saved.together([0])[0] / 1000 == pytest.approx(1)
    assert saved.together([1])[0] == 0
    assert saved.together([0, 1])[0] / 1000 == pytest.approx(9)


def test_waits_beside_compute_are_no_cost() -> None:
    assert savings([9, 0, 0], computes_ms=5).together([0])[0] / 1000 == 4
    assert savings([9, 0, 0], computes_ms=20).together([0])[0] == 0


def test_savings_are_of_each_step() -> None:
    saved = savings([4, 0, 0], [0, 3, 0], [2, 0, 0], steps=[5, 5, 6])
    assert (saved.together([0]) / 1000).tolist() == pytest.approx([4, 2])
    assert np.allclose(saved.each() / 1000, [[4, 2], [3, 0], [0, 0]])
