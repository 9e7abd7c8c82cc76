"""Waits in sends, receives and operations with a root: schedules with planted late ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import ByRank, judged, numbered, record

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.matched import match_windows
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import assign_blame
from rankscope.analysis.collectives.waits.waiting import Waits, waits_of
from rankscope.analysis.collectives.windows import Reduction
from rankscope.runs.records import CollectiveRecord, RankInfo

MS = 1000
"""One millisecond in microseconds. Without a collective that all leave at once, no wait below 1 ms is claimed."""


def edges(waits: Waits) -> list[tuple[int, int, float]]:
    """Return the sorted (waiter, origin, ms) of all waits."""
    took = ((waits.end - waits.start) / 1e6).tolist()
    return sorted(zip(waits.waiter.tolist(), waits.origin.tolist(), took, strict=True))


def pair(send_at: float, receive_at: float, end: float, *, send_end: float | None = None) -> ByRank:
    return {
        0: [record(send_at, end if send_end is None else send_end, op="send", peer=1)],
        1: [record(receive_at, end, op="recv", peer=0)],
    }


def rooted(op: str, arrivals: list[float], end: float, *, root: int = 0, gone: dict[int, float] | None = None) -> ByRank:
    return {rank: [record(at, (gone or {}).get(rank, end), op=op, root=root)] for rank, at in enumerate(arrivals)}


def test_receivers_wait_for_late_senders_and_senders_for_late_receivers() -> None:
    assert edges(judged(pair(20 * MS, 5 * MS, 30 * MS))[1]) == [(1, 0, 15)]
    assert edges(judged(pair(5 * MS, 20 * MS, 30 * MS))[1]) == [(0, 1, 15)]


def test_sender_of_a_buffered_message_does_not_wait() -> None:
    assert edges(judged(pair(5 * MS, 20 * MS, 30 * MS, send_end=6 * MS))[1]) == []


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_ranks_wait_for_a_late_root(op: str) -> None:
    waits = judged(rooted(op, [20 * MS, 5 * MS, 10 * MS], 30 * MS))[1]
    assert edges(waits) == [(1, 0, 15), (2, 0, 10)]


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_late_receiver_delays_no_rank(op: str) -> None:
    assert edges(judged(rooted(op, [0, 2 * MS, 20 * MS], 30 * MS))[1]) == []


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_only_the_root_of_a_reduction_waits_for_the_last_rank(op: str) -> None:
    waits = judged(rooted(op, [0, 5 * MS, 20 * MS], 30 * MS, gone={1: 6 * MS, 2: 25 * MS}))[1]
    assert edges(waits) == [(0, 2, 20)]
    assert waits.since.tolist() == [5 * MS * 1000]
    assert edges(judged(rooted(op, [20 * MS, 0, 5 * MS], 30 * MS))[1]) == []


def test_lag_below_the_clock_uncertainty_is_no_wait() -> None:
    assert edges(judged(pair(0, 0.9 * MS, 5 * MS))[1]) == []
    sharp = {rank: [record(0, 1), *rows] for rank, rows in pair(10, 60, 100).items()}
    assert edges(judged({rank: numbered(rows) for rank, rows in sharp.items()})[1]) == [(0, 1, 0.05)]


def test_waits_of_ranks_without_a_common_clock_are_counted() -> None:
    hosts = {0: "a", 1: "b"}
    waits = judged(pair(0, 5 * MS, 9 * MS), hosts=hosts)[1]
    assert (edges(waits), waits.excluded) == ([], {"no_common_clock": 1})


def test_clock_shift_shown_by_a_collective_does_not_change_waits() -> None:
    shift = 500 * MS
    by_rank = {
        0: numbered([record(0, MS), record(5 * MS, 30 * MS, op="send", peer=1)]),
        1: numbered([record(shift, shift + MS), record(shift + 20 * MS, shift + 30 * MS, op="recv", peer=0)]),
    }
    assert edges(judged(by_rank, hosts={0: "a", 1: "b"})[1]) == [(0, 1, 15)]


def test_late_root_is_charged_and_a_late_sender_is_not() -> None:
    by_rank = rooted("broadcast", [20 * MS, 5 * MS, 10 * MS], 30 * MS)
    matching, waits = judged(by_rank)
    blame = assign_blame(matching.matches, Clocks(), list(by_rank), waits)
    assert blame.imposed_us == {0: 25 * MS, 1: 0, 2: 0}
    assert (blame.waits.gain_by.tolist(), blame.waits.gain_us.tolist()) == ([0], [10 * MS])
    assert blame.wait_us == {0: 0, 1: 15 * MS, 2: 10 * MS}
    assert blame.transfer_us == {0: 10 * MS, 1: 10 * MS, 2: 10 * MS}
    # In a pipeline the stages wait for each other by schedule: that is a wait, but charged to no rank.
    matching, waits = judged(pair(20 * MS, 5 * MS, 30 * MS))
    blame = assign_blame(matching.matches, Clocks(), [0, 1], waits)
    assert (blame.imposed_us, blame.wait_us) == ({0: 0, 1: 0}, {0: 0, 1: 15 * MS})
    assert not len(blame.waits)


milliseconds = st.integers(0, 400)
messages = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), milliseconds, milliseconds, st.integers(1, 50)), min_size=1)


@given(messages, st.permutations(range(4)))
def test_later_side_of_each_message_is_charged_with_the_lag(
    planted: list[tuple[int, int, int, int, int]], names: list[int]
) -> None:
    by_rank: dict[int, list[CollectiveRecord]] = {rank: [] for rank in names}
    truth: list[tuple[int, int, float]] = []
    for number, (sender, hop, send_at, receive_at, transfer) in enumerate(planted):
        result, other = names[sender], names[(sender + hop) % 4]
        base = number * 1000
        end = base + max(send_at, receive_at) + transfer
        by_rank[result].append(record((base + send_at) * MS, end * MS, op="send", peer=other))
        by_rank[other].append(record((base + receive_at) * MS, end * MS, op="recv", peer=result))
        lag = abs(send_at - receive_at)
        if lag > 1:
            truth.append((other, result, lag) if send_at > receive_at else (result, other, lag))
    matching, waits = judged({rank: numbered(rows) for rank, rows in by_rank.items()})
    assert len(matching.directed) == len(planted)
    assert edges(waits) == sorted(truth)
    transfers = sorted(round(transfer / 1e6) for transfer in waits.transfer_ns.tolist() if transfer)
    assert transfers == sorted(transfer for *_, transfer in planted if transfer > 1)


@given(st.sampled_from(["broadcast", "reduce"]), st.lists(milliseconds, min_size=3, max_size=6), st.data())
def test_waits_at_a_root_are_correct_for_any_rank_numbers(op: str, arrivals: list[int], data: st.DataObject) -> None:
    names = data.draw(st.permutations(range(len(arrivals))))
    end = (max(arrivals) + 5) * MS
    by_rank = {name: [record(at * MS, end, op=op, root=names[0])] for name, at in zip(names, arrivals, strict=True)}
    waits = judged(by_rank)[1]
    if op == "broadcast":
        truth = [(names[at], names[0], arrivals[0] - came) for at, came in enumerate(arrivals) if arrivals[0] - came > 1]
    else:
        last = max(arrivals[1:])
        tied = {names[at] for at, came in enumerate(arrivals) if at and came == last}
        truth = [(names[0], min(tied), last - arrivals[0])] if last - arrivals[0] > 1 else []
    assert edges(waits) == sorted(truth)


@given(st.lists(st.tuples(milliseconds, milliseconds), min_size=1, max_size=6))
def test_waits_lie_within_the_presence_of_the_waiting_rank(planted: list[tuple[int, int]]) -> None:
    by_rank: ByRank = {0: [], 1: []}
    for number, (send_at, receive_at) in enumerate(planted):
        base = number * 1000
        by_rank[0].append(record((base + send_at) * MS, (base + send_at + 30) * MS, op="send", peer=1))
        by_rank[1].append(record((base + receive_at) * MS, (base + max(send_at, receive_at) + 30) * MS, op="recv", peer=0))
    matching = match_collectives({rank: numbered(rows) for rank, rows in by_rank.items()})
    waits = waits_of(matching, Clocks(), {0: "n", 1: "n"})
    judged = waits.judged
    assert (judged.arrival_ns[waits.arrival] <= waits.since).all()
    assert (waits.since < waits.end).all()
    assert (waits.end <= judged.end_ns[waits.arrival]).all()


def test_containers_with_one_boot_id_share_a_clock() -> None:
    windows = {rank: Reduction(collectives=rows) for rank, rows in pair(0, 5 * MS, 9 * MS).items()}

    def waits(*boots: str | None) -> Waits:
        infos = {
            rank: RankInfo(rank=rank, world_size=2, host=f"container-{rank}", boot_id=boot, pid=1, start_unix_ns=1)
            for rank, boot in enumerate(boots)
        }
        return match_windows(windows, infos, 2).waits

    assert edges(waits("4be2", "4be2")) == [(0, 1, 5.0)]
    for boots in [(None, None), ("4be2", "90d1"), ("4be2", None)]:
        assert waits(*boots).excluded == {"no_common_clock": 1}
