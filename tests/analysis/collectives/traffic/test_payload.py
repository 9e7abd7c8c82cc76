"""Operations are told apart by the layout where it is known, else by the pattern of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.analysis.collectives_by_hand import record

from rankscope.analysis.collectives.arrivals import records_of
from rankscope.analysis.collectives.figures import figures_of_collectives
from rankscope.analysis.collectives.traffic.payload import PAYLOADS, Coordinates, Payload, exposed_ns, payloads_of
from rankscope.runs.records import CollectiveRecord

MIB = 1 << 20
LAYOUT = {rank: {"pp": rank // 8, "dp": rank // 4 % 2, "cp": rank // 2 % 2, "tp": rank % 2} for rank in range(16)}


def operation(
    op: str, start: int = 0, end: int = 10, *, ranks: list[int] | None = None, size: int = MIB, **fields: Any
) -> CollectiveRecord:
    """Return an operation between two times in microseconds, enqueued at 0."""
    return record(start, end, op=op, group=str(ranks), group_ranks=ranks, bytes=size, enqueue_unix_ns=0, **fields)


def kinds(rows: Sequence[CollectiveRecord], layout: Coordinates | None = None) -> set[Payload | None]:
    return {(*PAYLOADS, None)[number] for number in payloads_of(records_of([(0, rows)]), layout or {}).tolist()}


def test_exposed_time_is_not_covered_by_compute() -> None:
    assert exposed_ns(records_of([(0, [operation("all_reduce", 10, 30, compute_spans_us=[(0, 12), (28, 50)])])])).tolist() == [
        16_000
    ]


@pytest.mark.parametrize(
    ("op", "ranks", "kind"),
    [
        ("all_reduce", [0, 4], "gradients"),
        ("all_reduce", [0, 2, 4, 6], "gradients"),
        ("all_gather_base", [0, 2, 4, 6], "shards"),
        ("all_reduce", [0, 1], "activations"),
        ("reduce_scatter_base", [0, 1], "activations"),
        ("all_to_allv", [0, 4], "tokens"),
        ("all_to_all", [0, 2], None),
        ("all_gather_base", [0, 2], None),
        ("all_reduce", [0, 8], None),
        ("all_reduce", list(range(16)), None),
        ("all_reduce", None, None),
        ("broadcast", [0, 4], None),
    ],
)
def test_group_dimensions_determine_the_payload_kind(op: str, ranks: list[int] | None, kind: Payload | None) -> None:
    assert kinds([operation(op, ranks=ranks)], LAYOUT) == {kind}


@pytest.mark.parametrize(("ranks", "kind"), [([0, 8], "stages"), ([0, 2], None)])
def test_payload_of_sends_follows_the_layout(ranks: list[int], kind: Payload | None) -> None:
    assert kinds([operation("send", ranks=ranks)], LAYOUT) == {kind}


def test_dimension_of_size_one_is_no_parallelism() -> None:
    layout = {rank: {"dp": rank, "tp": 0} for rank in range(4)}
    assert kinds([operation("all_reduce")], layout) == {"gradients"}


def test_reductions_beside_compute_or_back_to_back_are_gradients() -> None:
    beside = [operation("all_reduce", 100 * at, 100 * at + 50, compute_spans_us=[(100 * at, 100 * at + 40)]) for at in range(8)]
    queued = [operation("all_reduce", 100 * at, 100 * at + 99) for at in range(8)]
    at_the_end = [operation("all_reduce", 0, 1, size=4), operation("all_reduce", 500, 900)]
    assert kinds(beside) == kinds(queued) == kinds(at_the_end) == {"gradients"}


def test_equal_reductions_that_block_compute_are_activations() -> None:
    assert kinds([operation("all_reduce", 100 * at, 100 * at + 50) for at in range(8)]) == {"activations"}


def test_order_distinguishes_sequence_parallelism_from_shards() -> None:
    turns = ["all_gather_base", "reduce_scatter_base"] * 10
    layers = ["all_gather_base"] * 10 + ["all_gather_base", "reduce_scatter_base"] * 10
    assert kinds([operation(op, 100 * at, 100 * at + 50) for at, op in enumerate(turns)]) == {"activations"}
    assert kinds([operation(op, 100 * at, 100 * at + 50) for at, op in enumerate(layers)]) == {"shards"}


def test_payload_shares_are_fractions_of_exposed_time() -> None:
    rows = [
        operation("all_gather_base", 0, 100, compute_spans_us=[(0, 90)]),
        operation("all_reduce", 100, 130),
        operation("send", 130, 190),
    ]
    by_key = {name: figure.value for name, figure in figures_of_collectives(records_of([(0, rows)]), "windows").items()}
    assert by_key["exposed.shards"] == pytest.approx(0.1)
    assert by_key["exposed.gradients"] == pytest.approx(0.3)
    assert by_key["exposed.stages"] == pytest.approx(0.6)
    assert by_key["collectives.sharding_share"] == pytest.approx(100 / 130)
