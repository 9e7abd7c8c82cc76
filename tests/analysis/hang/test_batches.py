"""Coalesced batches of collectives, and of sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.dumped_job import DumpedJob, batch, p2p, report_of
from tests.flight_dump_files import START_NS

GATHERS = [("_all_gather_base", (8,), (32,)), ("_all_gather_base", (4,), (16,))]


def started_job(ranks: int = 4) -> dict[int, dict[str, Any]]:
    """Return the dumps of ranks that have ended two collectives."""
    return DumpedJob.of_events({"0": range(ranks)}, ["0"] * 2).dumps()


def exchange(dump: dict[str, Any], number: int, transfers: Sequence[str], *, done: bool = False) -> None:
    """Add a batch of sends and receives."""
    for transfer in transfers:
        p2p(dump, transfer, "0", number, collective_seq_id=2)
    end = {"state": "completed", "retired": True, "time_discovered_completed_ns": START_NS} if done else {}
    p2p(dump, "coalesced", "0", number, collective_seq_id=2, input_sizes=[], output_sizes=[], **end)


@pytest.mark.parametrize("batches", [3, 16, 20, 80])
def test_job_that_completed_all_batches_does_not_hang(batches: int) -> None:
    dumps = started_job()
    for dump in dumps.values():
        for _ in range(batches):
            batch(dump, GATHERS, done=True)
    report = report_of(dumps)
    assert (report.kind, report.waiting) == ("no_hang", [])


def test_rank_that_does_not_begin_the_next_batch_is_named() -> None:
    dumps = started_job()
    for rank, dump in dumps.items():
        for _ in range(40):
            batch(dump, GATHERS, done=True)
        if rank != 2:
            batch(dump, GATHERS)
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_arrived", [2])


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("hangs", [False, True])
def test_completed_batches_are_inferred_from_dumps_of_pending_work(members: int, hangs: bool) -> None:
    # Given dumps that have the members of all batches, which torch never ends, and not the records that close them
    dumps = started_job()
    for rank, dump in dumps.items():
        for _ in range(5):
            batch(dump, GATHERS[:members], done=True)
        if hangs and rank != 2:
            batch(dump, GATHERS[:members])
        dump["entries"] = [entry for entry in dump["entries"] if entry["state"] != "completed"]
    report = report_of(dumps)
    assert (report.kind, report.culprits) == (("hang", [2]) if hangs else ("no_hang", []))


def test_early_exchange_with_a_peer_not_used_again_has_completed() -> None:
    dumps = started_job()
    exchange(dumps[0], 1, ["send 0->3"], done=True)
    exchange(dumps[3], 1, ["recv 3<-0"], done=True)
    for number in range(2, 80):
        for rank, peer in ((0, 1), (1, 0), (2, 3), (3, 2)):
            exchange(dumps[rank], number, [f"send {rank}->{peer}", f"recv {rank}<-{peer}"], done=True)
    assert report_of(dumps).kind == "no_hang"
    # and the rank that does not join a later exchange is named
    exchange(dumps[2], 80, ["send 2->3", "recv 2<-3"])
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_arrived", [3])


Members = list[tuple[str, tuple[int, ...], tuple[int, ...]]]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ([GATHERS[0], ("_all_gather_base", (5,), (20,))], "size"),
        ([GATHERS[0], ("_reduce_scatter_base", (16,), (4,))], "op"),
        (GATHERS[:1], "op"),
        ([*GATHERS, GATHERS[0]], "op"),
        (GATHERS[::-1], "size"),
    ],
)
def test_rank_with_a_different_batch_is_named(other: Members, what: str) -> None:
    dumps = started_job()
    for rank, dump in dumps.items():
        batch(dump, other if rank == 2 else GATHERS)
    report = report_of(dumps)
    assert (report.cause, report.culprits, [row.what for row in report.mismatches]) == ("mismatch", [2], [what])


@pytest.mark.parametrize("op", ["_broadcast_oop", "_reduce_oop"])
def test_uneven_parts_mismatch_only_if_a_rank_has_another_size(op: str) -> None:
    # Given a gather or scatter of unequal parts, which torch does in one batch with an operation for each part
    parts: Members = [(op, (size,), (size,)) for size in (1, 2, 3, 4)]
    for wrong in (False, True):
        dumps = started_job()
        for rank, dump in dumps.items():
            batch(dump, [*parts[:2], (op, (9,), (9,)), parts[3]] if wrong and rank == 2 else parts)
        report = report_of(dumps)
        assert (report.cause, report.culprits) == (("mismatch", [2]) if wrong else ("stuck", []))


@pytest.mark.parametrize("members", [1, 2])
def test_rank_that_stops_within_a_batch_did_not_arrive(members: int) -> None:
    dumps = started_job()
    for rank, dump in dumps.items():
        batch(dump, GATHERS[:members] if rank == 2 else GATHERS, closed=rank != 2)
    report = report_of(dumps)
    assert (report.cause, report.culprits, report.mismatches) == ("not_arrived", [2], [])
    assert "part of the batch" in report.evidence[0].detail


def ring(rank: int, ranks: int = 4) -> list[str]:
    return [f"send {rank}->{(rank + 1) % ranks}", f"recv {rank}<-{(rank - 1) % ranks}"]


def neighbours(rank: int, ranks: int = 4) -> list[str]:
    """Return the exchange of a pipeline's stage with both neighbours."""
    peers = [peer for peer in (rank + 1, rank - 1) if 0 <= peer < ranks]
    return [transfer for peer in peers for transfer in (f"send {rank}->{peer}", f"recv {rank}<-{peer}")]


@pytest.mark.parametrize("transfers", [ring, neighbours])
def test_transfers_of_a_batch_have_no_order(transfers: Callable[[int], list[str]]) -> None:
    # Given ranks that all wait for both of their neighbours: this is no deadlock
    dumps = started_job()
    for rank, dump in dumps.items():
        exchange(dump, 1, transfers(rank))
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("stuck", [])


@pytest.mark.parametrize("transfers", [ring, neighbours])
@pytest.mark.parametrize("missing", range(4))
@pytest.mark.parametrize("has_dump", [True, False])
def test_rank_missing_from_an_exchange_is_named(transfers: Callable[[int], list[str]], missing: int, has_dump: bool) -> None:
    dumps = started_job()
    for rank, dump in dumps.items():
        if rank != missing:
            exchange(dump, 1, transfers(rank))
    if not has_dump:
        del dumps[missing]
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_arrived" if has_dump else "no_dump", [missing])
    assert all(row.waits_for for row in report.waiting)


def test_rank_blocked_before_its_batch_is_a_deadlock() -> None:
    # Given rank 1 that waits in a collective first, to which rank 0 comes after its exchange
    dumps = started_job(2)
    exchange(dumps[0], 1, ["send 0->1", "recv 0<-1"])
    batch(dumps[1], GATHERS)
    exchange(dumps[1], 1, ["send 1->0", "recv 1<-0"])
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("deadlock", [0, 1])
