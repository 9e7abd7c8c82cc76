"""Coalesced batches of collectives, and of sends and receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.analysis.hang.reports import report_of
from tests.flight_dumps import START_NS, Job, batch, p2p

GATHERS = [("_all_gather_base", (8,), (32,)), ("_all_gather_base", (4,), (16,))]


def started_job(ranks: int = 4) -> dict[int, dict[str, Any]]:
    """Return the dumps of ranks that have ended two collectives."""
    return Job.of_events({"0": range(ranks)}, ["0"] * 2).dumps()


def exchange(dump: dict[str, Any], number: int, transfers: Sequence[str], *, done: bool = False) -> None:
    """Add a batch of sends and receives."""
    for transfer in transfers:
        p2p(dump, transfer, "0", number, collective_seq_id=2)
    end = {"state": "completed", "retired": True, "time_discovered_completed_ns": START_NS} if done else {}
    p2p(dump, "coalesced", "0", number, collective_seq_id=2, input_sizes=[], output_sizes=[], **end)


@pytest.mark.parametrize("batches", [3, 16, 20, 80])
def test_a_job_that_ended_all_its_batches_does_not_hang(batches: int) -> None:
    dumps = started_job()
    for dump in dumps.values():
        for _ in range(batches):
            batch(dump, GATHERS, done=True)
    report = report_of(dumps)
    assert (report.kind, report.waiting) == ("no_hang", [])


def test_after_many_batches_the_rank_that_does_not_begin_the_next_is_named() -> None:
    dumps = started_job()
    for rank, dump in dumps.items():
        for _ in range(40):
            batch(dump, GATHERS, done=True)
        if rank != 2:
            batch(dump, GATHERS)
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_arrived", [2])


def test_an_early_exchange_with_a_peer_that_is_not_used_again_has_ended() -> None:
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
