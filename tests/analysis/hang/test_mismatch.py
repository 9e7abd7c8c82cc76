"""Mismatches of operations, sizes and data types, for every operation that torch records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.dumped_job import PENDING, Call, DumpedJob, leave_pending, p2p, report_of
from tests.flight_dump_files import as_json

from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.operations import OPERATIONS, operation, operation_name

Sizes = Sequence[Sequence[int]]
"""Shapes of the tensors of one side."""

EQUAL = {
    "all_reduce": ([[8, 4]], [[8, 4]]),
    "allreduce_coalesced": ([[8], [4]], [[8], [4]]),
    "ALLREDUCE_coalesced": ([[8], [4]], [[8], [4]]),
    "broadcast": ([[8]], [[8]]),
    "_broadcast_oop": ([[8]], [[8]]),
    "reduce": ([[8]], [[8]]),
    "_reduce_oop": ([[8]], [[8]]),
    "all_gather": ([[8]], [[32]]),
    "all_gather_single": ([[8]], [[32]]),
    "_all_gather_base": ([[8]], [[32]]),
    "all_gather_into_tensor_coalesced": ([[8], [4]], [[32], [16]]),
    "ALLGATHER_coalesced": ([[8], [4]], [[32], [16]]),
    "reduce_scatter": ([[32]], [[8]]),
    "reduce_scatter_single": ([[32]], [[8]]),
    "_reduce_scatter_base": ([[32]], [[8]]),
    "reduce_scatter_tensor_coalesced": ([[32], [16]], [[8], [4]]),
    "REDUCE_SCATTER_coalesced": ([[32], [16]], [[8], [4]]),
}
"""Sizes of the operations that need equal ones, by torch's name, in a group of four ranks."""
WITH_PARTS = ("all_gather_v", "reduce_scatter_v", "all_to_all", "all_to_all_single", "all_to_all_v_single", "gather", "scatter")
WITHOUT = ("barrier", "all_reduce_barrier", "all_reduce_sparse", "sparse_all_reduce", "split", "new_window", "coalesced")


def diagnosed(
    op: str,
    sizes: Mapping[int, tuple[Sizes, Sizes]],
    *,
    json: bool = False,
    without: Sequence[int] = (),
    of_rank: Mapping[int, Any] | None = None,
) -> HangReport:
    """Return the report on ranks that all came to their third collective, which does not end."""
    dumps = DumpedJob.of_events({"0": range(len(sizes))}, ["0"] * 3).dumps()
    for rank, dump in dumps.items():
        inputs, outputs = sizes[rank]
        dump["entries"][-1] |= {
            "profiling_name": f"nccl:{op}",
            "input_sizes": [list(shape) for shape in inputs],
            "output_sizes": [list(shape) for shape in outputs],
            "input_dtypes": ["Float"] * len(inputs),
            "output_dtypes": ["Float"] * len(outputs),
            **PENDING,
            **(of_rank or {}).get(rank, {}),
        }
    return report_of({rank: as_json(dump) if json else dump for rank, dump in dumps.items() if rank not in without})


def same(sizes: tuple[Sizes, Sizes], ranks: int = 4) -> dict[int, tuple[Sizes, Sizes]]:
    return dict.fromkeys(range(ranks), sizes)


def test_tested_operation_names_cover_the_table() -> None:
    names = {operation_name(name) for name in (*EQUAL, *WITH_PARTS, *WITHOUT)}
    collectives = {
        op for op, row in OPERATIONS.items() if row.rule != "pair" and not row.excluded.startswith(("p2p", "expert"))
    } - {"collective"}
    assert collectives <= names
    assert {operation_name(name) for name in EQUAL} == {op for op, row in OPERATIONS.items() if row.equal}
    assert not any(operation(operation_name(name)).has_one_type for name in WITHOUT)


def test_tested_operation_names_cover_those_of_torch() -> None:
    types = pytest.importorskip("torch.distributed.flight_recorder.components.types")
    assert {*EQUAL, *WITH_PARTS, *WITHOUT} >= types.COLLECTIVES


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("op", EQUAL)
def test_rank_with_another_size_is_named_for_every_operation(op: str, side: int) -> None:
    sizes = same(EQUAL[op])
    assert diagnosed(op, sizes).cause == "stuck"
    changed = [[list(shape) for shape in shapes] for shapes in EQUAL[op]]
    changed[side][-1] = [changed[side][-1][0] + 1]
    report = diagnosed(op, {**sizes, 2: (changed[0], changed[1])})
    assert (report.cause, report.culprits) == ("mismatch", [2])
    assert [row.what for row in report.mismatches] == ["size"]
    assert sorted(report.mismatches[0].values.values()) == [[0, 1, 3], [2]]


@pytest.mark.parametrize("op", [*EQUAL, "all_to_all", "all_to_all_v_single", "all_gather_v"])
def test_rank_with_another_data_type_is_named_for_every_operation(op: str) -> None:
    sizes = EQUAL.get(op, ([[8]], [[8]]))
    other = {f"{side}_dtypes": ["Half"] * len(shapes) for side, shapes in zip(("input", "output"), sizes, strict=True)}
    report = diagnosed(op, same(sizes), of_rank={2: other})
    assert (report.cause, report.culprits) == ("mismatch", [2])
    assert (report.mismatches[0].what, report.mismatches[0].values) == ("dtype", {"Float": [0, 1, 3], "Half": [2]})


def test_data_type_of_a_rank_that_sends_no_data_is_ignored() -> None:
    sizes: dict[int, tuple[Sizes, Sizes]] = {0: ([[0]], [[4]]), 1: ([[4]], [[2]]), 2: ([[2]], [[0]])}
    assert diagnosed("all_to_all", sizes, of_rank={0: {"input_dtypes": ["Half"]}}).cause == "stuck"


@pytest.mark.parametrize("op", WITHOUT)
def test_operations_without_a_rule_are_no_mismatch(op: str) -> None:
    report = diagnosed(op, {rank: ([[8 + rank]], [[8]]) for rank in range(4)}, of_rank={2: {"input_dtypes": ["Half"]}})
    assert (report.cause, report.mismatches) == ("stuck", [])


def test_two_names_of_one_operation_are_no_mismatch() -> None:
    other = {"profiling_name": "nccl:all_gather_single"}
    assert diagnosed("_all_gather_base", same(EQUAL["_all_gather_base"]), of_rank={1: other}).cause == "stuck"


def test_different_tensor_of_a_coalesced_collective_is_shown() -> None:
    # Given equal sums
    report = diagnosed("allreduce_coalesced", {**same(([[8], [4], [2]], [])), 3: ([[8], [2], [4]], [])})
    assert report.culprits == [3]
    assert report.mismatches[0].values == {"4 elements in tensor 2 of 3": [0, 1, 2], "2 elements in tensor 2 of 3": [3]}
    # and another number of tensors
    report = diagnosed("allreduce_coalesced", {**same(([[8], [4]], [])), 0: ([[12]], [])})
    assert report.mismatches[0].values == {"12 elements in 1 tensor": [0], "12 elements in 2 tensors": [1, 2, 3]}


def test_all_tensors_of_a_coalesced_collective_are_compared() -> None:
    many = [[1]] * 200
    report = diagnosed("all_gather_into_tensor_coalesced", {**same((many, [])), 1: ([*many[:-1], [2]], [])})
    assert report.culprits == [1]


def test_root_with_another_size_is_named_although_it_completed() -> None:
    ended = {"state": "completed", "retired": True, "time_discovered_completed_ns": 1_790_000_000_500_000_000}
    report = diagnosed("broadcast", {**same(([[8]], [[8]])), 0: ([[9]], [[9]])}, of_rank={0: ended})
    assert (report.cause, report.culprits) == ("mismatch", [0])


def test_ranks_with_unknown_sizes_are_not_named() -> None:
    unknown: dict[int, tuple[Sizes, Sizes]] = {0: ([], []), 1: ([], [])}
    assert diagnosed("all_reduce", {**same(([[8]], [[8]])), **unknown}).cause == "stuck"
    report = diagnosed("all_reduce", {**same(([[8]], [[8]]), 5), 0: ([], []), 4: ([[7]], [[7]])})
    assert report.culprits == [4]
    # nor sizes that make no sense
    report = diagnosed(
        "all_reduce", same(([[8]], [[8]])), of_rank={1: {"input_sizes": [[2**61], [2**61]], "output_sizes": [["8"]]}}
    )
    assert report.cause == "stuck"


def splits(*rows: Sequence[int]) -> Sizes:
    return [[size] for row in rows for size in row]


def exchange(sent: Sequence[Sequence[int]]) -> dict[int, tuple[Sizes, Sizes]]:
    """Return the tensors of an all-to-all in which rank ``i`` sends ``sent[i][j]`` elements to rank ``j``."""
    return {rank: (splits(row), splits([other[rank] for other in sent])) for rank, row in enumerate(sent)}


UNEVEN = [[1, 2, 3], [4, 0, 6], [7, 8, 9]]


def test_pair_with_different_splits_is_shown_and_neither_rank_named() -> None:
    assert diagnosed("all_to_all", exchange(UNEVEN)).cause == "stuck"
    # Given splits whose totals agree
    sizes = exchange(UNEVEN)
    sizes[1] = (splits([4, 1, 5]), splits([2, 1, 8]))
    report = diagnosed("all_to_all", sizes)
    assert (report.kind, report.cause, report.culprits) == ("hang", "mismatch", [])
    mismatch = report.mismatches[0]
    assert [(part.sender, part.receiver, part.sent, part.expected) for part in mismatch.parts] == [(1, 2, 5, 6)]
    assert mismatch.values == {"sends 5 elements to rank 2": [1], "expects 6 elements from rank 1": [2]}
    assert "Ranks 1, 2 do not agree" in report.summary


def test_rank_whose_splits_differ_from_all_others_is_named() -> None:
    sizes = exchange(UNEVEN)
    sizes[2] = (splits([7, 8, 9]), splits([2, 7, 9]))
    report = diagnosed("all_to_all", sizes)
    assert report.culprits == [2]
    assert [(part.sender, part.receiver) for part in report.mismatches[0].parts] == [(0, 2), (1, 2)]


def test_splits_recorded_beside_one_tensor_identify_the_pair() -> None:
    sent = {0: [3, 5], 1: [2, 2]}
    expected = {0: [3, 2], 1: [4, 2]}
    sizes: dict[int, tuple[Sizes, Sizes]] = {rank: ([[sum(sent[rank])]], [[sum(expected[rank])]]) for rank in sent}
    of_rank = {rank: {"input_split_sizes": sent[rank], "output_split_sizes": expected[rank]} for rank in sent}
    report = diagnosed("all_to_all_single", sizes, of_rank=of_rank)
    assert [(part.sender, part.receiver, part.sent, part.expected) for part in report.mismatches[0].parts] == [(0, 1, 5, 4)]
    # Splits that are not those of the tensors do not count; the totals do.
    of_rank[0]["input_split_sizes"] = [300, 500]
    report = diagnosed("all_to_all_single", sizes, of_rank=of_rank)
    assert (report.mismatches[0].sent, report.mismatches[0].expected) == (12, 11)


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("op", ["all_to_all", "all_to_all_single", "all_to_all_v_single"])
def test_inconsistent_totals_of_an_all_to_all_accuse_no_rank(op: str, json: bool) -> None:
    # Given tensors whose splits are not in the dump, uneven but right
    sizes: dict[int, tuple[Sizes, Sizes]] = {0: ([[16, 2]], [[20, 2]]), 1: ([[10, 2]], [[4, 2]]), 2: ([[5, 2]], [[7, 2]])}
    report = diagnosed(op, sizes, json=json)
    assert (report.cause, "splits" in report.summary) == ("stuck", True)
    # then wrong
    sizes[1] = ([[10, 2]], [[3, 2]])
    report = diagnosed(op, sizes, json=json)
    assert (report.kind, report.cause, report.culprits) == ("hang", "mismatch", [])
    mismatch = report.mismatches[0]
    assert (mismatch.what, mismatch.sent, mismatch.expected, mismatch.parts) == ("size", 62, 60, [])
    assert mismatch.values == {"32 elements in, 40 out": [0], "20 elements in, 6 out": [1], "10 elements in, 14 out": [2]}
    assert "62" in report.summary
    assert "60" in report.summary


def test_recorded_splits_are_not_requested() -> None:
    report = diagnosed("all_to_all", exchange([[4, 4], [4, 4]]))
    assert (report.cause, "splits" in report.summary) == ("stuck", False)
    assert "splits" not in diagnosed("all_reduce", same(([[4]], [[4]]))).summary


def test_totals_without_the_dump_of_a_rank_are_inconclusive() -> None:
    sizes: dict[int, tuple[Sizes, Sizes]] = {0: ([[16]], [[20]]), 1: ([[10]], [[3]]), 2: ([[5]], [[7]])}
    report = diagnosed("all_to_all", sizes, without=[2])
    assert report.mismatches == []
    assert report.cause == "no_dump"


def test_uneven_all_gather_is_legal_but_a_wrong_part_is_a_mismatch() -> None:
    inputs, outputs = [1, 2, 3], splits([1, 2, 3])
    sizes: dict[int, tuple[Sizes, Sizes]] = {rank: ([[size]], outputs) for rank, size in enumerate(inputs)}
    for op in ("all_gather", "all_gather_v"):
        assert diagnosed(op, sizes).cause == "stuck"
        report = diagnosed(op, {**sizes, 1: ([[4]], outputs)})
        assert report.culprits == [1]
        assert {part.sender for part in report.mismatches[0].parts} == {1}


def test_uneven_reduce_scatter_is_legal_but_a_wrong_part_is_a_mismatch() -> None:
    inputs, outputs = splits([1, 2, 3]), [1, 2, 3]
    sizes: dict[int, tuple[Sizes, Sizes]] = {rank: (inputs, [[size]]) for rank, size in enumerate(outputs)}
    for op in ("reduce_scatter", "reduce_scatter_v"):
        assert diagnosed(op, sizes).cause == "stuck"
        report = diagnosed(op, {**sizes, 2: (inputs, [[4]])})
        assert report.culprits == [2]
        assert {part.receiver for part in report.mismatches[0].parts} == {2}


def test_lists_of_equal_parts_are_compared_like_one_tensor() -> None:
    sizes = same(([[4]], [[4]] * 4))
    assert diagnosed("all_gather", sizes).cause == "stuck"
    assert diagnosed("all_gather", {**sizes, 3: ([[5]], [[4]] * 4)}).culprits == [3]


def test_only_the_root_of_a_gather_or_scatter_has_parts() -> None:
    # Torch records an empty tensor where a rank has none.
    gather: dict[int, tuple[Sizes, Sizes]] = {0: ([[8]], [[8]] * 3), 1: ([[8]], [[0]]), 2: ([[8]], [[0]])}
    scatter = {rank: (outputs, inputs) for rank, (inputs, outputs) in gather.items()}
    assert diagnosed("gather", gather, of_rank={1: {"output_dtypes": ["Undefined"]}}).cause == "stuck"
    assert diagnosed("scatter", scatter, of_rank={1: {"input_dtypes": ["Undefined"]}}).cause == "stuck"
    report = diagnosed("gather", {**gather, 2: ([[9]], [[0]])})
    assert [(part.sender, part.receiver, part.sent, part.expected) for part in report.mismatches[0].parts] == [(2, 0, 9, 8)]
    report = diagnosed("scatter", {**scatter, 2: ([[0]], [[9]])})
    assert [(part.sender, part.receiver, part.sent, part.expected) for part in report.mismatches[0].parts] == [(0, 2, 8, 9)]


def test_advice_without_a_culprit_is_a_sentence() -> None:
    report = diagnosed("all_to_all", {0: ([[3]], [[3]]), 1: ([[3]], [[4]])})
    assert all("  " not in row for row in report.next)
    assert "each rank" in report.next[0]


def test_other_operation_is_reported_rather_than_its_size() -> None:
    dumps = DumpedJob(
        {"0": range(3)}, {rank: [Call("0", "all_to_all" if rank == 2 else "all_reduce", (rank + 1,))] for rank in range(3)}
    )
    documents = dumps.dumps()
    leave_pending(documents)
    report = report_of(documents)
    assert (report.mismatches[0].what, report.culprits) == ("op", [2])


@pytest.mark.parametrize(
    ("change", "what"), [({"input_sizes": [[8]], "output_sizes": [[8]]}, "size"), ({"input_dtypes": ["Half"]}, "dtype")]
)
@pytest.mark.parametrize("batched", [False, True])
def test_differing_send_and_receive_are_shown_and_neither_is_named(change: dict[str, Any], what: str, batched: bool) -> None:
    dumps = DumpedJob.of_events({"0": (0, 1)}, ["0"] * 2).dumps()
    p2p(dumps[0], "send 0->1", "0", 1, **change)
    p2p(dumps[1], "recv 1<-0", "0", 1)
    if batched:
        for dump in dumps.values():
            p2p(dump, "coalesced", "0", 1, input_sizes=[], output_sizes=[])
    report = report_of(dumps)
    assert (report.cause, report.culprits, [row.what for row in report.mismatches]) == ("mismatch", [], [what])


def test_transfers_completed_on_one_side_only_are_not_compared() -> None:
    # Given the size of a message before the message, and a send that has ended although its receive has not
    dumps = DumpedJob.of_events({"0": (0, 1)}, ["0"] * 2).dumps()
    p2p(dumps[0], "send 0->1", "0", 2, input_sizes=[[64]], output_sizes=[[64]])
    p2p(dumps[1], "recv 1<-0", "0", 1)
    p2p(dumps[1], "recv 1<-0", "0", 2, input_sizes=[[64]], output_sizes=[[64]])
    assert report_of(dumps).mismatches == []


@pytest.mark.parametrize("ended", [1, 2, 3])
def test_smaller_size_is_a_mismatch_although_it_completed_on_its_rank(ended: int) -> None:
    dumps = DumpedJob.of_events({"0": range(4)}, ["0"] * 6, ahead=6).dumps()
    for rank, dump in dumps.items():
        for place, entry in enumerate(dump["entries"][-3:]):
            entry.update({"input_sizes": [[2]], "output_sizes": [[2]]} if rank == 2 else {})
            entry.update(PENDING if rank != 2 or place >= ended else {})
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("mismatch", [2])


def test_a_mismatch_beside_a_rank_without_a_dump_is_named() -> None:
    report = diagnosed("all_reduce", {**same(EQUAL["all_reduce"]), 2: ([[9]], [[9]])}, without=[3])
    assert (report.cause, report.culprits, report.suspects) == ("mismatch", [2], [3])


def test_mismatches_of_several_groups_are_all_named() -> None:
    groups = {"0": range(8), "1": range(4), "2": range(4, 8)}
    dumps = DumpedJob.of_events(groups, ["0", "1", "2"] * 3).dumps()
    leave_pending(dumps, state="started")
    dumps[2]["entries"][-1].update(input_sizes=[[9]], output_sizes=[[9]])
    dumps[7]["entries"][-1].update(input_dtypes=["Half"], output_dtypes=["Half"])
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("mismatch", [2, 7])
    assert {row.group for row in report.mismatches} == {"1", "2"}
    for fact in ("Rank 2", "group 1", "Rank 7", "group 2", "Half"):
        assert fact in report.summary
